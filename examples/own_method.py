"""A method of your own, without registration: every client deploys a blend of its own model and the federation's.

Both halves of a method stand in one record. What is not written here (how the server starts, what it sends down, that
it averages the clients' `delta` weighted by `n`) is inherited from `ac.Method`.

python examples/own_method.py
"""

from dataclasses import dataclass, replace

import acclimate as ac
from acclimate import tree
from acclimate.core import train


@dataclass(frozen=True)
class Blended(ac.Method):
    """FedAvg, but a client goes live with `share` of its own trained model and the rest of the averaged one."""

    opt: ac.optim.Optimizer = ac.optim.SGD(lr=0.05)
    work: ac.Work = ac.Work(epochs=2)
    share: float = 0.5

    def init_client(self, task, client, key):
        return {"vars": task.init(key)}  # private state: it is stored with the client and never sent

    def client(self, task, down, mine, data, key):
        w = train(task.loss, down["vars"], data, self.opt, self.work, key)
        return {"delta": tree.sub(w, down["vars"]), "n": data["n"]}, {"vars": w}

    def deploy(self, task, down, mine):
        return {"vars": tree.add(down["vars"], tree.sub(mine["vars"], down["vars"]), self.share)}


experiment = ac.Experiment(
    data=ac.data.Digits(clients=6),
    model=ac.models.MLP(hidden=(64,)),
    method=ac.methods.FedAvg(work=ac.Work(epochs=2)),
    adapters=(ac.adapters.NoAdapt(), ac.adapters.T3A()),
    rounds=8,
)

table = ac.Table()
for method in (experiment.method, Blended()):
    table += ac.evaluate(ac.train(replace(experiment, method=method)))
print(table)
print()
for name, size in table.uploads().items():
    print(f"{name}: one client uploads {size:,} bytes per round")
