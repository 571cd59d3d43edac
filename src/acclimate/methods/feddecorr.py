"""FedDecorr. Shi et al., 'Towards Understanding and Mitigating Dimensional Collapse', ICLR 2023, Eq. 6.

Local loss: cross-entropy plus beta / d^2 ||K||_F^2, where K is the correlation matrix of a batch's d features. Features
of clients with few classes collapse onto few directions; the term spreads them. The diagonal of K is constant and is
left out. Variances are padded by 1e-5, as in batch norm, because features of rectified units may be constant.

The term is written as the paper's equation has it, as far as we know it, not as the released code scales it.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, check, difference, rng


@dataclass(frozen=True)
class FedDecorr(Weighted):
    """FedAvg whose features are decorrelated within a batch (Shi et al., ICLR 2023)."""

    beta: float = 0.1
    """The weight of the decorrelation."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.at_least(self, "beta", 0.0)
        check.choices(self)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            return F.cross_entropy(out.logits, batch["y"]) + self.beta * correlation(out.features), out.buffers

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}, mine


def correlation(z: Tensor) -> Tensor:
    """The sum of the squared correlations of different features over a batch [B, d], over d^2."""
    apart = z - z.mean(0)
    unit = apart * (apart.square().mean(0) + 1e-5).rsqrt()
    among = unit.mT @ unit / z.shape[0]
    return (among * (1.0 - torch.eye(z.shape[1], device=z.device))).square().sum() / z.shape[1] ** 2
