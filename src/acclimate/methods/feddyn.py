"""FedDyn. Acar et al., ICLR 2021, Algorithm 1: a regulariser that moves until local optima agree with the global one.

- Client: min L_k(w) - <g_k, w> + alpha/2 ||w - w_t||^2, then g_k <- g_k - alpha (w_k - w_t). g_k stays at the client.
- Server, over the cohort: h <- h - alpha / N sum of (w_k - w_t), and w_{t+1} = mean of w_k, less h/alpha.

The mean is uniform. h/alpha does not depend on alpha: it is minus the sum of all mean differences so far. So where
alpha goes to 0, clients train as in FedAvg, but the server still adds that sum. `alpha=0` has neither, h being 0, and
is uniform FedAvg. Batch statistics are averaged plainly. Gradients are bounded by 10, as public codes have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..core.limits import Limits, Within
from ..ops.losses import proximal


@dataclass(frozen=True)
class FedDyn(Method):
    """FedAvg with a linear and a quadratic term per client, which follow the training (Acar et al., ICLR 2021)."""

    alpha: float = 0.1
    """The weight of the quadratic term, and the rate at which the linear one moves."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work(clip=10.0)

    uplink: ClassVar[Rules] = {"delta": Mean(), "present": Sum()}
    limits: ClassVar[Limits] = {"present": Within(0.0, 1.0)}

    def __post_init__(self) -> None:
        check.at_least(self, "alpha", 0.0)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        number = torch.full((), float(clients), device=key.device)
        return {"vars": vars, "h": tree.zeros(vars["params"]), "clients": number}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"g": tree.zeros(task.init(key)["params"])}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        tied = proximal(task.loss, down["vars"], self.alpha)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            value, buffers = tied(vars, batch, key)
            return value - tree.dot(mine["g"], vars["params"]), buffers

        delta = tree.sub(train(loss, down["vars"], data, self.opt, self.work, key), down["vars"])
        g = tree.add(mine["g"], delta["params"], -self.alpha)
        return {"delta": delta, "present": torch.ones_like(data["n"])}, {"g": g}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        mean = super().server(task, server, total, key)["vars"]
        share = total["present"] / server["clients"]
        h = tree.add(server["h"], total["delta"]["params"], -self.alpha * share)
        away = tree.scale(h, 1.0 / self.alpha if self.alpha else 0.0)
        return {**server, "vars": {**mean, "params": tree.sub(mean["params"], away)}, "h": h}
