"""GA, generalization adjustment. Zhang et al., CVPR 2023, Eq. 7-9 and Algorithm 1: weights move until gaps are alike.

- A client's gap G_i is its loss under the averaged model less that under its own model before averaging: what the
  others cost it.
- a_i <- a_i + d_r (G_i - mean G) / max |G - mean G|, then a is clipped to 0..1 and normalised; d_r falls linearly from
  `step` / clients to 0 over `rounds`. Larger gap, larger weight. All clients start alike.

A client learns what the averaged model is worth to it when it receives it, one round later, so a gap counts from the
round after that: two rounds pass before weights move. Otherwise the server would have to keep every client's model.
Losses are over a client's own training examples, all of a client's labelled data that training may see; the released
code takes validation accuracy. As there, `variant="released"` does not subtract the mean gap. Where only some clients
take part, the weights of the others stay until all are normalised.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import SGD, Gather, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..core.limits import COMMON, LOSS, Granted, Limits, Within
from ..ops.losses import local_risk
from ..ops.masks import own_share


@dataclass(frozen=True)
class GA(Method):
    """FedAvg whose weights go to the clients that averaging costs most (Zhang et al., CVPR 2023)."""

    step: float = 0.2
    """How far a weight moves in the first round, as a part of 1 / clients."""
    rounds: int = 40
    """Rounds over which the step falls to nothing."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    variant: Literal["paper", "released"] = "paper"

    downlink = ("vars", "weights")
    limits: ClassVar[Limits] = {**COMMON, "share": Granted("weights"), "seen": Within(0, 1), "gap": Within(-LOSS, LOSS)}

    def __post_init__(self) -> None:
        check.within(self, "step", 0.0, 1.0)
        check.at_least(self, "rounds", 1)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": Mean("share"), "share": Sum(), "gap": Gather(), "seen": Gather(), "id": Gather()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        weights = torch.full((clients,), 1.0 / clients, device=key.device)
        return {"vars": task.init(key), "weights": weights, "round": torch.zeros((), device=key.device)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"loss": torch.zeros((), device=key.device), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        gap = (local_risk(task, down["vars"], data) - mine["loss"]) * mine["seen"]
        w = train(task.loss, down["vars"], data, self.opt, self.work, key)
        share = own_share(down["weights"], data["id"])
        up = {"delta": tree.sub(w, down["vars"]), "share": share, "gap": gap, "seen": mine["seen"], "id": data["id"]}
        return up, {"loss": local_risk(task, w, data), "seen": torch.ones_like(mine["seen"])}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        step = self.step / server["weights"].shape[0] * (1 - server["round"] / self.rounds).clamp_min(0.0)
        gap = total["gap"] if self.variant == "released" else centred(total["gap"], total["seen"])
        moves = step * (gap / gap.abs().max().clamp_min(1e-12))
        weights = on_simplex(server["weights"].index_add(0, total["id"], moves))
        return {**super().server(task, server, total, key), "weights": weights, "round": server["round"] + 1}


def centred(gap: Tensor, seen: Tensor) -> Tensor:
    """Gaps less their mean, over the clients that have one; zero for those who take part for the first time."""
    return (gap - (gap * seen).sum() / seen.sum().clamp_min(1)) * seen


def on_simplex(weights: Tensor) -> Tensor:
    """Weights clipped to 0..1 and normalised; alike where nothing is left."""
    kept = weights.clamp(0.0, 1.0)
    return torch.where(kept.sum() > 0, kept / kept.sum().clamp_min(1e-12), torch.full_like(kept, 1.0 / len(kept)))
