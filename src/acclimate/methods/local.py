"""Local training without a federation: the line that every federated method has to beat."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from ..core import SGD, Method, Optimizer, Rules, Task, Tree, Work, rng, train


@dataclass(frozen=True)
class Local(Method):
    """Every client trains its own model on its own data; nothing is sent."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    uplink: ClassVar[Rules] = {}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        return {}, {"vars": train(task.loss, mine["vars"], data, self.opt, self.work, key)}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return server

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine["vars"]}
