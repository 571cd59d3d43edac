"""FedFomo. Zhang et al., 'Personalized Federated Learning with First Order Model Optimization', ICLR 2021, Eq. 2-4.

- Every client has a model of its own, and the server a copy of each. A client looks at `models` of the others' w_j:
  each has the weight max(0, (L(w_old) - L(w_j)) / |w_j - w_old|), L being its loss on one in `parts` of its examples,
  which it does not train on. Weights are normalised; training goes on from w_old + sum_j weight_j (w_j - w_old).
- The server adds the weights to a table of affinities, which starts at the identity; a client looks at those of largest
  affinity, among equals at random, and with the chance `explore` at any.

The server gathers models, so it sees each of them. It sends the whole table of models to everybody, who reads `models`
rows of it: messages from the server are the same for all here, and a download is as large as all clients' models. A
newcomer takes the mean of those who have trained, or of all clients in a run that an earlier version began: its state
does not say who they are. Distances are over parameters; batch statistics are mixed along.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Gather, Method, Optimizer, Rules, Task, Tree, Work, check, rng, train, tree
from ..core.limits import COMMON, Limits, Within
from ..ops.losses import local_risk
from ..ops.masks import held_out, mean_row, own_row, own_share


@dataclass(frozen=True)
class FedFomo(Method):
    """Every client mixes in the models that are better on its own examples (Zhang et al., ICLR 2021)."""

    models: int = 5
    """How many of the others' models a client looks at in a round: the paper's M."""
    parts: int = 5
    """One in so many of a client's examples is kept to judge models by."""
    explore: float = 0.3
    """The chance that a client looks at models whatever their affinity."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("models", "affinity", "seen")
    added: ClassVar[Mapping[str, float]] = {"seen": 1.0}
    uplink: ClassVar[Rules] = {name: Gather() for name in ("model", "gain", "id")}
    limits: ClassVar[Limits] = {**COMMON, "gain": Within(0.0, 1.0)}

    def __post_init__(self) -> None:
        check.whole(self, "models", 1)
        check.whole(self, "parts", 2)
        check.within(self, "explore", 0.0, 1.0)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        models = tree.map(lambda p: p.expand(clients, *p.shape).clone(), task.init(key))
        seen = torch.zeros(clients, device=key.device)
        return {"models": models, "affinity": torch.eye(clients, device=key.device), "seen": seen}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        fitted, judged = held_out(data, self.parts)
        chosen = self.looked_at(down["affinity"], data["id"], rng.fold(key, "choose"))
        mixed, weights = better(task, down["models"], mine["vars"], chosen, judged)
        w = train(task.loss, mixed, fitted, self.opt, self.work, key)
        gain = torch.zeros_like(own_share(down["affinity"], data["id"])).index_add(0, chosen, weights)
        return {"model": w, "gain": gain, "id": data["id"]}, {"vars": w, "seen": torch.ones_like(mine["seen"])}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        models = tree.put(server["models"], total["id"], total["model"])
        affinity = server["affinity"].index_add(0, total["id"], total["gain"])
        return {"models": models, "affinity": affinity, "seen": server["seen"].index_fill(0, total["id"], 1.0)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        mean = mean_row(down["models"], down["seen"])
        return {"vars": tree.where(mine["seen"] > 0, mine["vars"], mean)}

    def looked_at(self, affinity: Tensor, client: Tensor, key: rng.Key) -> Tensor:
        """The numbers of the other clients whose models are judged, at most `models`."""
        others = affinity.shape[0]
        draw = rng.uniform(rng.fold(key, "draw"), others)
        known = torch.where(rng.uniform(key) < self.explore, torch.zeros_like(draw), own_share(affinity, client))
        itself = torch.arange(others, device=affinity.device) == client
        rank = torch.where(itself, torch.full_like(draw, -1.0), known + 1e-6 * draw)
        return rank.topk(min(self.models, others - 1)).indices


def better(task: Task, models: Tree, old: Tree, chosen: Tensor, judged: Tree) -> tuple[Tree, Tensor]:
    """The client's model with the chosen ones mixed in, and their weights."""
    now, mixed, steps = local_risk(task, old, judged), old, []
    others = [own_row(models, j) for j in chosen]
    for other in others:
        far = tree.norm(tree.sub(other["params"], old["params"])).clamp_min(1e-12)
        steps.append(((now - local_risk(task, other, judged)) / far).clamp_min(0.0))
    drops = torch.stack([*steps, torch.zeros_like(now)])[:-1]  # with one client there is nobody to look at
    weights = drops / drops.sum().clamp_min(1e-12)
    for weight, other in zip(weights, others, strict=True):
        mixed = tree.add(mixed, tree.sub(other, old), weight)
    return mixed, weights
