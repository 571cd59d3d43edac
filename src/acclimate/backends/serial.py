"""One client after the other: the readable reference, and what a debugger wants."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import (
    Adapter,
    Backend,
    Engine,
    Holdings,
    NonFinite,
    Personalizer,
    Private,
    Protocol,
    Reply,
    Tree,
    Worker,
    exchange,
    message,
    tree,
)


@dataclass(frozen=True)
class Serial(Backend):
    """A Python loop over clients, each with exactly its own examples (no padding)."""

    def open(self, worker: Worker, train: Holdings, device: torch.device) -> SerialEngine:
        return SerialEngine(worker, train, device)


class SerialEngine(Engine):
    """Holds the clients' private state in memory."""

    def __init__(self, worker: Worker, train: Holdings, device: torch.device) -> None:
        super().__init__(worker, train, device)
        self.mine = stacked_start(worker, self.shards)

    def _data(self, shards: Holdings, client: int, round: int) -> Tree:
        rows, n = shards.own(client), shards.n[client]
        who, when = (torch.full((), v, dtype=torch.int64, device=self.device) for v in (client, round))
        return shards.tree(rows, n, who, when, ragged=False)

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        rules = self.worker.uplink
        part, news, bad, up = None, [], [], None
        for c in cohort.tolist():
            up, new, ok = self.worker.train(down, self.mine.take(c), self._data(self.shards, c, round))
            message.check_message(rules, up, type(self.worker.method).__name__)
            if not bool(ok):
                bad.append(c)
            read = self.worker.read(tree.map(lambda x: x[None], up))
            one = message.partial(rules, torch.tensor([c], device=self.device), read)
            part = one if part is None else message.combine(part, one)
            news.append(new)
        if bad:
            raise NonFinite(bad, round)
        assert part is not None and up is not None
        self.mine = self.mine.put(cohort.to(self.device), tree.stack(news))
        return Reply(part, tree.map(lambda x: torch.empty_like(x, device="meta"), up))

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> list[Tree]:
        return [
            self.worker.personalise(down, mine.take(c), self._data(self.shards, c, 0), personal)
            for c in range(self.shards.clients)
        ]

    def model_of(self, models: list[Tree], client: int) -> Tree:
        return models[client]

    def calibrated(self, models: list[Tree], held: Holdings, adapter: Adapter) -> list[Tree]:
        held, empty = held.to(self.device), (held.n == 0).tolist()
        data = [self._nothing(held, c) if empty[c] else self._data(held, c, 0) for c in range(len(models))]
        return [
            {**model, "reference": self.worker.calibrate(model, own, adapter)}
            for model, own in zip(models, data, strict=True)
        ]

    def join(self, down: Tree, newcomers: int) -> list[Tree]:
        return welcomed(self.worker, down, range(self.shards.clients, self.shards.clients + newcomers), self.device)

    def serve(
        self, models: list[Tree], test: Holdings, adapter: Adapter, protocol: Protocol, trace: bool = False
    ) -> Tree:
        test = test.to(self.device)
        if exchange.exchanges(adapter):
            stacked = tree.stack(models)
            return exchange.serve(
                self.worker, stacked, test, adapter, protocol, lambda half: SerialEngine(half, test, self.device)
            )
        rows = test.longest if trace else None
        empty = (test.n == 0).tolist()
        scores = []
        for c, model in enumerate(models):
            data = self._data(test, c, 0) if not empty[c] else self._nothing(test, c)
            scores.append(self.worker.adapt(model, data, adapter, protocol, rows))
        served: Tree = tree.to(tree.stack(scores), "cpu")
        return served

    def _nothing(self, test: Holdings, client: int) -> Tree:
        """A client with an empty stream: one row that is not counted."""
        return {**self._data(test, client, 0), "rows": test.table(torch.tensor([client]), 1)[0]}


def welcomed(worker: Worker, down: Tree, clients: range, device: torch.device) -> list[Tree]:
    """The live models of clients that were not there for training."""
    fresh = [worker.start(c, like=torch.empty(0, device=device)) for c in clients]
    return [worker.method.deploy(worker.task, down, tree.to(mine, device)) for mine in fresh]


def stacked_start(worker: Worker, shards: Holdings) -> Tree:
    """Every client's private state before its first round."""
    mine = [worker.start(c, like=shards.n) for c in range(shards.clients)]
    tree.check(mine[0], f"{type(worker.method).__name__}.init_client")
    stacked: Tree = tree.to(tree.stack(mine), shards.n.device)
    return stacked
