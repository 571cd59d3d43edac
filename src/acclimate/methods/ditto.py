"""Ditto. Li et al., ICML 2021, Algorithm 1: a private model tied to the federated one.

- The federated model w is FedAvg's, untouched by what follows.
- The private v_k walks on from where it was, down f_k(v) + lam/2 ||v - w||^2, w being the model received this round.

The client deploys v_k, with its own batch statistics (only parameters are tied); one that never took part deploys w.
lam = 1 is the paper's value for clients with too little data to choose their own (0.1 under strong attacks), and
FedTHE's choice. Algorithm 1 gives both models the same number of steps; FedTHE's budget is
`personal_work=Work(epochs=1)`, and it trains Ditto without weight decay.

FedTHE's released code adds the proximal gradient after the optimiser's step, where the next step clears it: its
private models are local models without a tie (here: `lam=0`).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, check, difference, rng, train, tree
from ..ops.losses import proximal


@dataclass(frozen=True)
class Ditto(Weighted):
    """FedAvg, and beside it a private model with a proximal term (Li et al., ICML 2021)."""

    lam: float = 1.0
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    personal_work: Work = Work()
    """How much the private model is trained per round."""

    def __post_init__(self) -> None:
        check.at_least(self, "lam", 0.0)
        check.choices(self)

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = down["vars"]
        tied = proximal(task.loss, received, self.lam)
        delta = difference(task.loss, received, data, self.opt, self.work, key)
        v = train(tied, mine["vars"], data, self.opt, self.personal_work, rng.fold(key, "personal"))
        return {"delta": delta, "n": data["n"]}, {"vars": v, "seen": torch.ones_like(mine["seen"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": tree.where(mine["seen"] > 0, mine["vars"], down["vars"])}
