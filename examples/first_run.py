"""Train, adapt, test: the shortest way from nothing to a table. Takes a few seconds on two cores.

python examples/first_run.py
"""

import acclimate as ac

experiment = ac.Experiment(
    data=ac.data.Digits(partition=ac.data.Dirichlet(alpha=0.1), clients=6),
    model=ac.models.MLP(hidden=(64,), norm="batch"),
    method=ac.methods.FedAvg(),
    rounds=5,
    seed=0,
)

fit = ac.train(experiment)
for row in fit.history:
    print(f"round {row['round']}: validation accuracy {row['val_accuracy']:.1%}, sent so far {row['up_bytes']:,} bytes")

adapters = [ac.adapters.NoAdapt(), ac.adapters.Tent(), ac.adapters.T3A()]
table = ac.evaluate(fit, adapters=adapters)
table += ac.evaluate(fit, adapters=adapters, personal=ac.personal.FineTune())
print()
print("accuracy at the last round, % ± std over clients")
print(table)

plain, tuned = ({"personal": p, "adapter": "none", "selection": "last"} for p in ("none", "finetune"))
print()
for stream in ("original", "out-of-client"):
    before, after = table.accuracy(stream=stream, **plain), table.accuracy(stream=stream, **tuned)
    print(f"fine-tuning changes the {stream} stream by {100 * (after - before):+.1f} points")
