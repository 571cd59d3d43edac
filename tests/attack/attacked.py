"""A federation in one process whose messages may be tampered with: the engine of the network, without a network.

`MemoryLink` stands where Flower's link stands. Every client is a node of its own, with a key of its own; its messages
are made by the real client half and read by the real server half.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import torch

from acclimate.backends import Serial
from acclimate.backends.flower.engine import Flower, FlowerEngine
from acclimate.backends.flower.protocol import NodeAnswer, Parcel, Request
from acclimate.core import Fault, Shards, Tree, Worker, fit, tree
from acclimate.experiment import Experiment, catalogue
from acclimate.experiment.settings import expand
from acclimate.running.build import worker_of

FIRST = 100
"""The number of client 0's node."""

Tamper = Callable[[int, Request, NodeAnswer], list[NodeAnswer]]
"""From a client, a request to its node and the honest answer to what the node sends."""


def parcel(up: Tree) -> Parcel:
    return Parcel(tree.nbytes(up) if tree.leaves(up) else 0, lambda: up)


class MemoryLink:
    """The server's way to nodes that live in this process."""

    def __init__(self, worker: Worker, train: Shards, tamper: Tamper, bound: bool = True) -> None:
        self.worker, self.train, self.tamper, self.bound = worker, train, tamper, bound
        self.keep: Sequence[Tree] = ()
        self.stream_names: Mapping[str, str] = {}
        self.refused: list[Fault] = []
        self.barred: dict[int, str] = {}
        self.mine: dict[tuple[int, int], Tree] = {}
        self.lines = 0

    def owned(self, node: int, clients: int) -> list[int] | None:
        return [node - FIRST] if self.bound else None

    def bar(self, client: int, reason: str) -> None:
        self.barred[client] = reason

    def nodes(self) -> list[int]:
        return [FIRST + c for c in range(self.train.clients)]

    def wait(self, seconds: float) -> None:
        time.sleep(min(seconds, 0.001))

    def log(self, text: str) -> None:
        self.lines += 1

    def exchange(self, requests: Sequence[Request], seconds: float, group: str) -> list[NodeAnswer]:
        return [sent for r in requests for sent in self.tamper(r.node - FIRST, r, self.honest(r))]

    def honest(self, request: Request) -> NodeAnswer:
        c = request.node - FIRST
        if request.kind == "query":
            return NodeAnswer(request.node, {}, {"clients": [c]})
        round, ups = request.fields["round"], {}
        for client, version in ((int(k), v) for k, v in request.fields["versions"].items()):
            mine = self.mine[client, version] if version else self.worker.start(client)
            up, new, _ = self.worker.train(request.trees["down"], mine, data_of(self.train, client, round))
            self.mine[client, round + 1] = new
            ups[f"up.{client}"] = parcel(up)
        return NodeAnswer(request.node, ups, {"round": round, "failed": {}})


def data_of(shards: Shards, client: int, round: int) -> Tree:
    who, when = (torch.full((), v, dtype=torch.int64) for v in (client, round))
    return shards.tree(shards.own(client), shards.n[client], who, when, ragged=False)


def honest(client: int, request: Request, answer: NodeAnswer) -> list[NodeAnswer]:
    return [answer]


def experiment(name: str = "fedavg", *settings: str, clients: int = 4, filters: Sequence[Any] = ()) -> Experiment:
    """Real digits, dealt out alike; one epoch of small batches wherever a method trains."""
    method = catalogue.METHODS[name]
    work = [f"method.{f}.{k}" for f in vars(method) if f.endswith("work") for k in ("epochs=1", "batch=8")]
    norm = ["model.norm=batch"] if name in ("fedbn", "dsbn") else []
    base = ["model=mlp", "model.hidden=8", f"data.clients={clients}", "data.partition=iid", "device=cpu"]
    (made,) = expand([f"method={name}", *base, *work, *norm, *settings])
    return replace(made, backend=Serial(), filters=tuple(filters))


@functools.cache
def world_of(data: Any, seed: int) -> Any:
    """The world of an experiment: the same for all methods, and half of the time that a federation takes to be made."""
    return data.world(seed)


class Federation:
    """An experiment on a `MemoryLink`, round by round."""

    def __init__(self, e: Experiment, tamper: Tamper = honest, bound: bool = True, **options: Any) -> None:
        self.world = world_of(e.data, e.seed)
        self.worker = worker_of(e, self.world)
        train = self.world.shards(self.world.train)
        self.link = MemoryLink(self.worker, train, tamper, bound)
        self.options = Flower(**{"deadline": 1.0, "patience": 0.01, **options})
        self.engine = FlowerEngine(self.worker, train, torch.device("cpu"), self.options, self.link)
        self.state = fit.start(self.worker, self.engine, self.world.clients)

    def run(self, rounds: int) -> fit.State:
        """Train; states as the loop makes them, without validation."""
        cohort = torch.arange(self.world.clients)
        for r in range(self.state.round, self.state.round + rounds):
            server, reply, _ = fit.one_round(self.worker, self.engine, self.state.server, cohort, r)
            after = replace(self.state, round=r + 1, server=server, intake=self.engine.intake, mine=self.engine.mine)
            self.state = fit.with_faults(after, reply.faults)
        return self.state

    def accuracy(self) -> float:
        """Of the shared model, over the test examples of all clients."""
        rows = torch.cat(list(self.world.test))
        x, y = self.world.examples.x[rows], self.world.examples.y[rows]
        down = self.worker.method.download(self.worker.task, self.state.server)
        model = self.worker.method.deploy(self.worker.task, down, self.worker.start(0))
        out = self.worker.method.predict(self.worker.task, model, x, "eval", None)
        return float((out.logits.argmax(-1) == y).float().mean())
