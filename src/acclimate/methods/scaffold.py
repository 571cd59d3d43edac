"""SCAFFOLD. Karimireddy et al., ICML 2020, Algorithm 1 with option II for the control variates.

- Local step (line 10): y <- y - lr (g(y) - c_i + c): the gradient of the loss plus <c - c_i, y>.
- c_i+ = c_i - c + (x - y) / (K lr) (line 12, option II), where K lr is the sum of the local learning rates.
- x <- x + lr_g mean(delta) and c <- c + |S|/N mean(c_i+ - c_i) (lines 16-17); the mean over clients is uniform.

The paper bounds no gradient. Here the corrected one is bounded by 10, unless `work.clip` says otherwise: without a
bound, training on CIFAR-10 ends in values that are not finite.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Rules, Sum, Task, Tree, Work, check, rng, train, tree


@dataclass(frozen=True)
class SCAFFOLD(Method):
    """Stochastic controlled averaging: control variates correct client drift (Karimireddy et al., ICML 2020)."""

    opt: SGD = SGD(lr=0.05)
    work: Work = Work(clip=10.0)
    server_lr: float = 1.0

    downlink = ("vars", "control")
    uplink: ClassVar[Rules] = {"delta": Mean(), "control": Sum()}

    def __post_init__(self) -> None:
        check.positive(self, "server_lr")
        if not isinstance(self.opt, SGD) or self.opt.momentum or self.opt.weight_decay:
            raise check.FieldError(
                f"SCAFFOLD: opt={self.opt} must be plain SGD (momentum=0, weight_decay=0): option II of Algorithm 1 "
                "recovers the mean gradient from the distance walked",
                "opt",
            )

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        number = torch.full((), float(clients), device=key.device)
        return {"vars": vars, "control": tree.zeros(vars["params"]), "clients": number}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"control": tree.zeros(task.init(key)["params"])}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = down["vars"]
        correction = tree.sub(down["control"], mine["control"])

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            ce, buffers = task.loss(vars, batch, key)
            return ce + tree.dot(correction, vars["params"]), buffers

        y = train(loss, received, data, self.opt, self.work, key)
        delta = tree.sub(y, received)
        mean_gradient = tree.scale(delta["params"], -1.0 / self.work.travelled(self.opt, data).clamp_min(1e-12))
        control = tree.sub(mean_gradient, correction)
        return {"delta": delta, "control": tree.sub(control, mine["control"])}, {"control": control}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        delta = {**total["delta"], "params": tree.scale(total["delta"]["params"], self.server_lr)}
        return {
            **server,
            "vars": tree.add(server["vars"], delta),
            "control": tree.add(server["control"], total["control"], 1.0 / server["clients"]),
        }
