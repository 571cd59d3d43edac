"""IFCA, the iterative federated clustering algorithm. Ghosh et al., NeurIPS 2020, Algorithm 1 with model averaging.

- The server sends `clusters` models. A client takes the one of least loss on its training data, trains that one, and
  sends the difference in its place, with zeros for the others; each model moves by the mean over those who chose it.
- When the last models have arrived, a client chooses once more, and goes live with its choice. A newcomer has no labels
  to choose by, and takes the model that most examples voted for in the last round.

Models start from different draws, the first from the one that FedAvg has: one cluster is FedAvg. In the paper a client
sends its number and one model; here all places travel, `clusters` models, so that messages add up without being read.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import SGD, Mean, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, rng, train, tree
from ..core.limits import ExampleCount, Limits
from ..ops.losses import local_risk
from ..ops.masks import own_row
from ..ops.nets import drawn_apart


@dataclass(frozen=True)
class IFCA(Weighted):
    """FedAvg with several models, of which every client takes the one that fits it best (Ghosh et al., 2020)."""

    clusters: int = 2
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("models", "votes")
    limits: ClassVar[Limits] = {"votes": ExampleCount(pooled=True)}

    def __post_init__(self) -> None:
        check.whole(self, "clusters", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": Mean("votes"), "votes": Sum()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        votes = torch.zeros(self.clusters, device=key.device)
        return {"models": tree.stack(drawn_apart(task, key, self.clusters)), "votes": votes}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"choice": torch.full((), -1, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        mine = self.finish_personal(task, down, mine, data, key)
        received = own_row(down["models"], mine["choice"])
        delta = tree.sub(train(task.loss, received, data, self.opt, self.work, key), received)
        chosen = (torch.arange(self.clusters, device=data["n"].device) == mine["choice"]).to(torch.float32)
        up = tree.map(lambda d: chosen.view(-1, *[1] * d.dim()) * d, delta)
        return {"delta": up, "votes": chosen * (data["n"] if self.weights == "samples" else 1)}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"models": tree.add(server["models"], total["delta"]), "votes": total["votes"]}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        risks = [local_risk(task, tree.take(down["models"], j), data) for j in range(self.clusters)]
        return {"choice": torch.stack(risks).argmin()}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        choice = torch.where(mine["choice"] < 0, down["votes"].argmax(), mine["choice"])
        return {"vars": own_row(down["models"], choice)}
