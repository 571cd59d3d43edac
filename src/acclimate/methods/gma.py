"""GMA, gradient-masked averaging. Tenison et al., 'Gradient Masked Averaging for Federated Learning', 2022.

- Agreement of a coordinate over the round's clients: A = |mean_k sign(delta_k)|, every client counting one.
- Mask: 1 where A >= tau, else A itself (the soft mask); x <- x + lr_g mask * mean_k delta_k.

The signs travel as a group of their own, so that the message stays linear and the server sees no single client; a
server that reads each difference could take the signs from there, at half the upload. Batch statistics are averaged
plainly. The paper tunes tau; 0.1 is what FedTHE found best. FedTHE's released code counts every client as one in the
mean of the differences too: `weights="uniform"`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, difference, rng, tree
from ..core.limits import COMMON, Limits, Within


@dataclass(frozen=True)
class GMA(Weighted):
    """FedAvg whose server damps the coordinates on which clients disagree (Tenison et al., 2022)."""

    tau: float = 0.1
    """Coordinates with at least this agreement pass unchanged."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    server_lr: float = 1.0

    limits: ClassVar[Limits] = {**COMMON, "sign": Within(-1.0, 1.0)}

    def __post_init__(self) -> None:
        check.within(self, "tau", 0.0, 1.0)
        check.positive(self, "server_lr")
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "sign": Mean(), "n": Sum()}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(task.loss, down["vars"], data, self.opt, self.work, key)
        return {"delta": delta, "sign": tree.map(torch.sign, delta["params"]), "n": data["n"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        def masked(delta: Tensor, sign: Tensor) -> Tensor:
            agreement = sign.abs()
            return delta * torch.where(agreement >= self.tau, torch.ones_like(agreement), agreement)

        step = tree.map(masked, total["delta"]["params"], total["sign"])
        old = server["vars"]
        params = tree.add(old["params"], step, self.server_lr)
        return {**server, "vars": {"params": params, "buffers": tree.add(old["buffers"], total["delta"]["buffers"])}}
