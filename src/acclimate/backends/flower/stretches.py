"""Clients at nodes that exchange while they adapt. Their states stay at the nodes; the server sees their messages."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import replace
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core import CannotExchange, Exchanging, Fault, Reply, Shards, Tree, Worker, exchange, tree
from ...core.stream import Protocol as StreamProtocol
from .intake import Intake
from .live_models import ModelRecipe, Trees
from .messages import RoundMessages, metrics_of, without_secrets
from .protocol import FleetError, Link, NodeAnswer, stream_name

DOWN = "exchange"
"""The name of what the server sends in an exchange: `down` is what live models are made of."""


class Asking(Protocol):
    """What is asked of the engine that has the nodes."""

    worker: Worker
    link: Link
    options: Any

    def model_of(self, models: ModelRecipe, client: int) -> Tree:
        """A model of zeros of the right form."""
        ...

    def ask(
        self,
        models: ModelRecipe,
        clients: list[int],
        fields: Mapping[str, Any],
        wait_for_all: bool = False,
        trees: Trees = lambda _: {},
    ) -> list[tuple[NodeAnswer, list[int]]]:
        """Ask the nodes of these clients."""
        ...

    def leave_out(self, client: int, kind: str, reason: str) -> None:
        """Note a client that is left out of a test."""
        ...


def serve(engine: Asking, models: ModelRecipe, test: Shards, adapter: Exchanging, protocol: StreamProtocol) -> Tree:
    """The metrics of clients that exchange; those whose nodes do not answer are left out, as in any test."""
    if models.personal is None:
        raise CannotExchange(
            f"{type(adapter).__name__} exchanges at test time, and newcomers of a fleet have no node of their own; "
            "use backend=serial, vmap, processes or ray"
        )
    if reason := exchange.refusal(engine.worker, adapter, int((test.n > 0).sum())):
        raise CannotExchange(reason)
    turn = NodeStretches(engine, models, test, adapter, protocol)
    try:
        exchanged = exchange.stretches(turn.half, turn.train, turn.alone, test.n, torch.device("cpu"))
    except ArithmeticError as e:  # some message was large; other adapters need not suffer from it
        raise CannotExchange(f"an exchange at test time: {e}") from e
    if not turn.scores:
        raise FleetError("no client could be tested; the log says why")
    nothing = tree.zeros(next(iter(turn.scores.values())))
    scores: Tree = tree.stack([turn.scores.get(c, nothing) for c in range(test.clients)])
    return {**scores, "exchanged": exchanged}


class NodeStretches:
    """Asks nodes for stretches of their clients' streams. Metrics come with the last one of each client."""

    def __init__(
        self, engine: Asking, models: ModelRecipe, test: Shards, adapter: Exchanging, protocol: StreamProtocol
    ) -> None:
        self.engine, self.models, self.n = engine, models, test.n
        self.half = exchange.serving(engine.worker, adapter, protocol)
        self.scores: dict[int, Tree] = {}
        named = stream_name(test)
        name = engine.link.stream_names.get(named, named)
        text = f"{models.name}{name}{adapter}{protocol}"
        session = hashlib.sha256(text.encode()).hexdigest()[:16]
        self._fields = {"test": name, "adapter": adapter, "protocol": protocol, "session": session}
        self._expected = expected(self.half, engine.model_of(models, 0), test)
        self._intake = Intake(self.half, test.n, engine.options.clip, engine.options.max_share)

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """A stretch that ends with a message of every client."""
        arrived = RoundMessages(round, self._expected, self.half, self._intake, down)
        for answer, asked in self._ask(down, cohort, round, send=True):
            arrived.take(answer, asked)
        arrived.judge()
        present = [c for c in cohort.tolist() if c in arrived.decoded]
        for c, fault in arrived.faults.items():
            self.engine.leave_out(c, fault.kind, f"not tested: {fault.reason}")
        if not present:
            raise FleetError("no client answered in an exchange at test time; the log says why")
        return Reply(arrived.combined(arrived.bounded(present)), self._expected)

    def alone(self, down: Tree, cohort: Tensor, round: int) -> None:
        """A stretch after which nobody sends; streams that are over are scored at their nodes."""
        assert isinstance(self.half.method, exchange.Serving)
        over = (round + 1) * self.half.method.samples
        for answer, asked in self._ask(down, cohort, round, send=False):
            for c in (c for c in asked if int(self.n[c]) <= over):
                found = metrics_of(answer.parcels.get(f"metrics.{c}"), c, round)
                if isinstance(found, Fault):
                    self.engine.leave_out(c, found.kind, f"not tested: {found.reason}")
                else:
                    self.scores[c] = found

    def _ask(self, down: Tree, cohort: Tensor, round: int, send: bool) -> Any:
        fields = {**self._fields, "stretch": round, "send": send}

        def trees(clients: list[int]) -> dict[str, Tree]:
            return {DOWN: exchange.for_some(down, clients)} if down else {}

        return self.engine.ask(self.models, cohort.tolist(), fields, trees=trees)


def expected(half: Worker, model: Tree, like: Shards) -> Tree:
    """The form of one client's message (meta tensors), from a stretch of zeros."""
    half, serving = replace(half, filters=without_secrets(half.filters)), half.method
    assert isinstance(serving, exchange.Serving)
    samples = serving.samples
    x = torch.zeros(samples, *like.x.shape[1:], dtype=like.x.dtype)
    zero, rows = torch.zeros((), dtype=torch.int64), torch.arange(samples)
    one = Shards(x, torch.zeros(samples, dtype=torch.int64), rows[None], torch.tensor([samples]))
    mine = serving.begin(half.task, model, samples, half.key("init"))
    up, _, _ = half.train({}, mine, one.tree(rows, one.n[0], zero, zero, ragged=False))
    meta: Tree = tree.map(lambda t: torch.empty_like(t, device="meta"), up)
    return meta
