"""FedNTD, not-true distillation. Lee et al., NeurIPS 2022, Eq. 3-5.

Local loss: cross-entropy plus beta tau^2 KL(p_g || p), where p and p_g are the softmax at temperature tau of the
trained and the received model over all classes but the sample's own. What the received model knows of classes that a
client does not hold is kept; the true class is left to the labels.

Public codes have beta 1 and tau 1 or 3; tau is 1 here. The received model sees the same view of a batch as the trained
one, with the batch's own statistics.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, check, difference, rng


@dataclass(frozen=True)
class FedNTD(Weighted):
    """FedAvg that keeps the received model's answers on the not-true classes (Lee et al., NeurIPS 2022)."""

    beta: float = 1.0
    """The weight of the distillation."""
    tau: float = 1.0
    """The temperature."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.at_least(self, "beta", 0.0)
        check.positive(self, "tau")
        check.choices(self)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            teacher = task.apply(down["vars"], batch["x"], "train", key).logits
            kept = not_true_divergence(out.logits, teacher, batch["y"], self.tau)
            return F.cross_entropy(out.logits, batch["y"]) + self.beta * self.tau**2 * kept, out.buffers

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}, mine


def not_true_divergence(logits: Tensor, teacher: Tensor, y: Tensor, tau: float) -> Tensor:
    """KL(teacher || student) of the softmax over the classes that are not `y`, mean over the batch."""
    own = y[:, None] == torch.arange(logits.shape[-1], device=y.device)
    p, q = (torch.where(own, torch.full_like(z, -1e4), z / tau).log_softmax(-1) for z in (teacher, logits))
    return (p.exp() * (p - q)).sum(-1).mean()
