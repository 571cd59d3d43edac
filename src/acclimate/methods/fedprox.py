"""FedProx. Li et al., MLSys 2020, Eq. 2 and Algorithm 2: a proximal term ties local models to the received one.

The text lets each client stop at its own inexactness gamma; as in the released code, that is a number of epochs here.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from ..core import SGD, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..ops.counting import mean_by
from ..ops.losses import proximal


@dataclass(frozen=True)
class FedProx(Method):
    """FedAvg whose local loss adds mu/2 ||w - w_received||^2 (Li et al., MLSys 2020)."""

    mu: float = 0.1
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    weights: Literal["samples", "uniform"] = "samples"
    """Whether a client counts by its number of examples or as one."""

    def __post_init__(self) -> None:
        check.at_least(self, "mu", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": mean_by(self.weights)} | ({"n": Sum()} if self.weights == "samples" else {})

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = down["vars"]
        w = train(proximal(task.loss, received, self.mu), received, data, self.opt, self.work, key)
        up = {"delta": tree.sub(w, received)} | ({"n": data["n"]} if self.weights == "samples" else {})
        return up, mine
