"""FedProx. Li et al., MLSys 2020, Eq. 2 and Algorithm 2: a proximal term ties local models to the received one.

The text lets each client stop at its own inexactness gamma; as in the released code, that is a number of epochs here.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import SGD, Optimizer, Rules, Task, Tree, Weighted, Work, check, difference, rng, tree
from ..ops.losses import proximal


@dataclass(frozen=True)
class FedProx(Weighted):
    """FedAvg whose local loss adds mu/2 ||w - w_received||^2 (Li et al., MLSys 2020)."""

    mu: float = 0.1
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.at_least(self, "mu", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, **self.counts}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        tied = proximal(task.loss, down["vars"], self.mu)
        delta = difference(tied, down["vars"], data, self.opt, self.work, key)
        return tree.pick({"delta": delta, "n": data["n"]}, self.uplink), mine
