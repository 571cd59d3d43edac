"""A test-time adapter of your own: it corrects the classifier for the classes that the stream seems to hold.

An adapter gets unlabelled batches only. Its state is a tree of tensors that it returns with every batch.

python examples/own_adapter.py
"""

from dataclasses import dataclass

import torch

import acclimate as ac


@dataclass(frozen=True)
class Prior(ac.Adapter):
    """Adds the log of the running mean prediction to the logits: classes that come often are believed more."""

    rate: float = 0.2
    strength: float = 0.5

    def init(self, task, model):
        weight = model["vars"]["params"][task.head_weight]
        return {"prior": torch.full_like(weight[:, 0], 1.0 / task.num_classes)}

    def step(self, task, predict, model, state, x, key):
        out = predict(model, x)
        prior = (1 - self.rate) * state["prior"] + self.rate * out.logits.softmax(-1).mean(0)
        return out.logits + self.strength * (prior * task.num_classes).log(), {"prior": prior}


experiment = ac.Experiment(
    data=ac.data.Digits(clients=6),
    model=ac.models.MLP(hidden=(64,), norm="batch"),
    method=ac.methods.FedAvg(work=ac.Work(epochs=2)),
    rounds=6,
)
fit = ac.train(experiment)

streams = [ac.shifts.Original(batch=8), ac.shifts.Corrupted(batch=8), ac.shifts.OutOfClient(batch=8)]
adapters = [ac.adapters.NoAdapt(), Prior()]
print(ac.evaluate(fit, adapters=adapters, streams=streams))
print()

fresh = [ac.shifts.Corrupted(batch=8, reset="batch")]  # the same stream; the adapter forgets after every batch
print("with a reset after every batch:")
print(ac.evaluate(fit, adapters=adapters, streams=fresh))
