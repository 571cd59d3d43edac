"""CFL, clustered federated learning. Sattler, Mueller & Samek, TNNLS 2021, Algorithm 2: split clients that disagree.

- All clients begin in one cluster. Within a cluster this is FedAvg.
- From round `start` on, a cluster is split where its updates cancel, |mean| < `still` max |update|, and it has more
  than two clients in the cohort. The halves are those of complete linkage on minus the cosine of the updates; each goes
  on by itself.
- Clients that are absent when their cluster is split stay with the half that keeps its number.

The server gathers the clients' updates, so it sees each of them. It sends a table of all clients' models to everybody,
who reads its own row: messages from the server are the same for all here. A newcomer takes the model of the largest
cluster. The paper has two absolute thresholds, |mean| < eps_1 and max |update| > eps_2, which depend on model, rate and
work; here it is their ratio, and public codes' 0.4 and 1.6 make the default. They begin after 20 rounds.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Gather, Optimizer, Rules, Task, Tree, Weighted, Work, check, difference, rng, tree
from ..ops.masks import own_row


@dataclass(frozen=True)
class CFL(Weighted):
    """FedAvg within clusters of clients, which are split where updates point apart (Sattler et al., 2021)."""

    still: float = 0.25
    """A cluster may be split where the norm of its mean update is below this share of the largest update's."""
    start: int = 5
    """The first round in which clusters may be split."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("models", "cluster")

    def __post_init__(self) -> None:
        check.at_least(self, "still", 0.0)
        check.whole(self, "start", 0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {name: Gather() for name in ("delta", "n", "id")}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        models = tree.map(lambda p: p.expand(clients, *p.shape).clone(), task.init(key))
        cluster = torch.zeros(clients, dtype=torch.int64, device=key.device)
        return {"models": models, "cluster": cluster, "round": torch.zeros((), device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"row": torch.full((), -1, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = own_row(down["models"], data["id"])
        delta = difference(task.loss, received, data, self.opt, self.work, key)
        return {"delta": delta, "n": data["n"], "id": data["id"]}, {"row": data["id"]}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        there, cluster = total["id"], server["cluster"]
        weight = (total["n"] if self.weights == "samples" else torch.ones_like(there)).to(torch.float32)
        if float(server["round"]) >= self.start:
            cluster = cluster.index_copy(0, there, self.split(cluster, there, total["delta"]["params"], weight))
        share = (cluster[:, None] == cluster[there]) * weight
        share = share / share.sum(1, keepdim=True).clamp_min(1e-12)
        steps = tree.map(lambda d: torch.einsum("ij,j...->i...", share, d), total["delta"])
        return {"models": tree.add(server["models"], steps), "cluster": cluster, "round": server["round"] + 1}

    def split(self, cluster: Tensor, there: Tensor, delta: Tree, weight: Tensor) -> Tensor:
        """The clusters of the clients that took part, after splits."""
        updates = torch.cat([d.flatten(1) for d in tree.leaves(delta)], dim=1)
        new, free = cluster[there], int(cluster.max()) + 1
        for label in new.unique().tolist():
            members = (new == label).nonzero()[:, 0]
            own, share = updates[members], weight[members] / weight[members].sum()
            if len(members) > 2 and (share @ own).norm() < self.still * own.norm(dim=1).max():
                new = new.index_copy(0, members, torch.where(halves(own), free, label))
                free += 1
        return new

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return {"row": data["id"]}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        largest = (down["cluster"][:, None] == down["cluster"]).sum(1).argmax()
        row = torch.where(mine["row"] < 0, largest, mine["row"])
        return {"vars": own_row(down["models"], row)}


def halves(updates: Tensor) -> Tensor:
    """Which rows are not in the first row's half, by complete linkage on minus the cosine: bool [rows]."""
    unit = F.normalize(updates, dim=1)
    apart = (-unit @ unit.mT).fill_diagonal_(torch.inf)
    group = torch.arange(len(unit), device=unit.device)
    for _ in range(len(unit) - 2):
        a, b = divmod(int(apart.argmin()), len(unit))
        far = torch.maximum(apart[a], apart[b])  # two groups are as far apart as their farthest members
        far[a] = torch.inf
        apart[a], apart[:, a] = far, far
        apart[b], apart[:, b] = torch.inf, torch.inf
        group = torch.where(group == b, a, group)
    return group != group[0]
