"""FedSAM. Qu et al., ICML 2022, Algorithm 1: clients look for flat minima, so that their mean is one too.

Local step: w~ = w + rho g(w) / |g(w)|, then w <- w - lr g(w~), both gradients on one batch (Foret et al., ICLR 2021).
Models are averaged as by FedAvg; the paper's MoFedSAM, which adds a momentum across clients, is not built. Batch
statistics are those of w.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import SGD, Method, Optimizer, Task, Tree, Work, check, difference, rng
from ..ops.losses import sharp


@dataclass(frozen=True)
class FedSAM(Method):
    """FedAvg with sharpness-aware local steps (Qu et al., ICML 2022)."""

    rho: float = 0.05
    """How far uphill the gradient is taken."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.at_least(self, "rho", 0.0)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(sharp(task.loss, self.rho), down["vars"], data, self.opt, self.work, key)
        return {"delta": delta, "n": data["n"]}, mine
