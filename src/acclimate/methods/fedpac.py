"""FedPAC. Xu, Tong & Huang, 'Personalized Federated Learning with Feature Alignment and Classifier Collaboration', ICLR
2023, Algorithm 1: a shared body, a head per client, and heads mixed by the server for each client.

- Client: the head first (`head_work`, body frozen), then the body under that head, with cross-entropy plus `lam` times
  the mean squared difference of features and the global prototype of their class. The body is averaged.
- It sends its prototypes, mean features per class under its trained body, which the server averages by class counts;
  and, under the received body, h_i = p_i(y) mean_i(f | y) for each class, with the variance V_i of that estimate.
- Server: head_i = sum_j a_ij head_j over the cohort, a_i on the simplex with the least
  |h_i - sum_j a_ij h_j|^2 + sum_j a_ij^2 V_j, which is the paper's quadratic programme a^T (diag(V) + D_i) a.
- When the last model has arrived, the head is trained on it once more.

Everybody is sent the table of all heads and reads its own row: messages from the server are the same for all here. The
paper's server sends each client its own. A newcomer takes the mean head of those who have trained, or of all clients in
a run that an earlier version began: its state does not say who they are.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Gather, Mean, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, rng, train, tree
from ..core.limits import COMMON, Level, Limits
from ..ops.masks import mean_of, mean_row, own_row, real_rows
from ..ops.nets import features_of, fit_head, head_of, named
from ..ops.params import merge, shared
from ..ops.prototypes import class_means, own_prototypes, pulled
from ..ops.simplex import best_mixtures


@dataclass(frozen=True)
class FedPAC(Weighted):
    """FedRep with features held near common prototypes and heads mixed for each client (Xu et al., ICLR 2023)."""

    lam: float = 1.0
    """The weight of the distance to the global prototypes."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    """How much the body is trained."""
    head_opt: Optimizer = SGD(lr=0.1)
    head_work: Work = Work(epochs=1)
    """How much the head is trained, before the body."""

    downlink = ("vars", "heads", "prototypes", "known", "seen")
    added: ClassVar[Mapping[str, float]] = {"seen": 1.0}
    limits: ClassVar[Limits] = {**COMMON, "h": Level(), "variance": Level()}

    def __post_init__(self) -> None:
        check.at_least(self, "lam", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        each: Rules = {name: Gather() for name in ("id", "head", "h", "variance")}
        return {"delta": self.mean, "n": Sum(), "prototypes": Mean("counts"), "counts": Sum(), **each}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        heads = tree.map(lambda p: p.expand(clients, *p.shape).clone(), head_of(task, vars))
        prototypes, known = (torch.zeros(task.num_classes, *d, device=key.device) for d in ((task.dim,), ()))
        tables = {"heads": heads, "prototypes": prototypes, "known": known}
        return {"vars": shared(vars, task.head), **tables, "seen": torch.zeros(clients, device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"head": head_of(task, task.init(key)), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            return pulled(out, out.features, batch["y"], down["prototypes"], down["known"], self.lam), out.buffers

        features = features_of(task, _whole(task, down, mine["head"]), data)
        mine = self._fitted(down, mine, features, data, rng.fold(key, "head"))
        h, variance = described(features, data, task.num_classes)
        w = train(loss, _whole(task, down, mine["head"]), data, self.opt, self.work, key, only=task.body)
        prototypes, counts = own_prototypes(task, w, data)
        up = {"delta": tree.sub(shared(w, task.head), down["vars"]), "n": data["n"], "id": data["id"]}
        about = {"prototypes": prototypes, "counts": counts, "head": mine["head"], "h": h, "variance": variance}
        return {**up, **about}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        mix = best_mixtures(total["h"], total["variance"])
        mixed = tree.map(lambda heads: torch.einsum("ij,j...->i...", mix, heads), total["head"])
        met = total["counts"] > 0
        return {
            "vars": tree.add(server["vars"], total["delta"]),
            "heads": tree.put(server["heads"], total["id"], mixed),
            "prototypes": torch.where(met[:, None], total["prototypes"], server["prototypes"]),
            "known": torch.maximum(server["known"], met.to(server["known"].dtype)),
            "seen": server["seen"].index_fill(0, total["id"], 1.0),
        }

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return self._fitted(down, mine, features_of(task, _whole(task, down, mine["head"]), data), data, key)

    def _fitted(self, down: Tree, mine: Tree, features: Tensor, data: Tree, key: rng.Key) -> Tree:
        """The private state with the head that the server mixed for this client, trained on the received body."""
        head = fit_head(own_row(down["heads"], data["id"]), features, data, self.head_opt, self.head_work, key)
        return {"head": head, "seen": torch.ones_like(mine["seen"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        mean = mean_row(down["heads"], down["seen"])
        return {"vars": _whole(task, down, tree.where(mine["seen"] > 0, mine["head"], mean))}


def described(features: Tensor, data: Tree, num_classes: int) -> tuple[Tensor, Tensor]:
    """Mean features per class times the class's frequency [C, d], and the variance of that estimate."""
    n = data["n"].clamp_min(1)
    means, counts = class_means(features, data["y"][data["rows"]], data["n"], num_classes)
    h = means * (counts / n)[:, None]
    square = mean_of(features.square().sum(-1), real_rows(features.shape[0], data["n"]))
    return h, (square - h.square().sum()) / n


def _whole(task: Task, down: Tree, head: Tree) -> Tree:
    return merge(down["vars"], {"params": named(task, head), "buffers": {}})
