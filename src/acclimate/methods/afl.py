"""AFL, agnostic federated learning. Mohri, Sivek & Suresh, ICML 2019: good for any mixture of the clients.

- min over w, max over lambda in the simplex of sum_k lambda_k L_k(w) (their Eq. 4), by alternating steps.
- A client sends its difference after local training, and its loss under the received model. The server moves the model
  by the differences weighted with lambda, and lambda uphill: lambda <- project(lambda + lambda_lr L).

The paper takes one gradient step per round; local training in its place is how AFL is compared in federated learning.
Where only some clients take part, their weights are normalised, and their losses count for those who stayed away
(divided by the share of clients that took part, so that the step is right on average).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch

from ..core import SGD, Gather, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, difference, rng
from ..core.limits import COMMON, LOSS, Granted, Limits, Within
from ..ops.losses import local_risk
from ..ops.masks import own_share
from ..ops.simplex import project


@dataclass(frozen=True)
class AFL(Method):
    """FedAvg whose client weights move towards the clients with the largest loss (Mohri et al., ICML 2019)."""

    lambda_lr: float = 0.1
    """The rate of the mixture's steps: the paper's gamma_lambda."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "mixture")
    uplink: ClassVar[Rules] = {"delta": Mean("share"), "share": Sum(), "loss": Gather(), "id": Gather()}
    limits: ClassVar[Limits] = {**COMMON, "share": Granted("mixture"), "loss": Within(0.0, LOSS)}

    def __post_init__(self) -> None:
        check.at_least(self, "lambda_lr", 0.0)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "mixture": torch.full((clients,), 1.0 / clients, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(task.loss, down["vars"], data, self.opt, self.work, key)
        share = own_share(down["mixture"], data["id"])
        return {"delta": delta, "share": share, "id": data["id"], "loss": local_risk(task, down["vars"], data)}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        mixture, present = server["mixture"], total["id"].shape[0]
        uphill = torch.zeros_like(mixture).index_put((total["id"],), total["loss"]) * (mixture.shape[0] / present)
        new = project(mixture + self.lambda_lr * uphill)
        return {**super().server(task, server, total, key), "mixture": new}
