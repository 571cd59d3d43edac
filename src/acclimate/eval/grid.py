"""Every adapter on every stream, at the last round and at the one that validation selected."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Adapter,
    CannotCalibrate,
    CannotExchange,
    Engine,
    Personalizer,
    Private,
    Protocol,
    Shards,
    State,
    Task,
    Worker,
    tree,
)
from ..core.nn.layers import TooFewValues
from .analysis import Traces, flat
from .rows import summary_of
from .table import Refused, Row, Table

NOT_FINITE = "produced values that are not finite"
"""How the reason of an adapter that failed on some client begins."""


class Test(NamedTuple):
    """One stream as the grid serves it; `new` where its clients were not there for training."""

    shards: Shards
    protocol: Protocol
    new: bool = False
    copied: Tensor | None = None
    """Of which example each row of `shards.x` is a copy, where rows are copies."""


Streams = Mapping[str, Test]


@dataclass(frozen=True)
class Names:
    """What the rows of one experiment share: how its parts are called, and what a client uploads per round."""

    method: str
    personal: str
    seed: int
    up_bytes: int
    settings: tuple[str, ...] = ()


@dataclass
class Cost:
    """What it took to serve an adapter: on all streams together, on the machine of the test."""

    seconds: float = 0.0
    samples: int = 0
    state_bytes: int = 0
    """What one client keeps for the adapter, beside its model, when its stream begins."""


class Tested(NamedTuple):
    """One training that is to be tested, alone or with others that have their lanes in the same engine."""

    worker: Worker
    state: State
    streams: Streams
    names: Names
    held: Shards | None = None
    """The clients' labelled validation examples, for adapters that calibrate."""


def evaluate(
    engine: Engine,
    trained: Sequence[Tested],
    adapters: Mapping[str, Adapter],
    personal: Personalizer,
    tick: Callable[[], None] = lambda: None,
    traces: Traces | None = None,
    costs: dict[str, Cost] | None = None,
) -> list[Table]:
    """The results tables of all trainings of an engine: of one, or of each of its lanes.

    `tick` is called after every adapter on every stream. Streams have the same names in all lanes. The rounds that
    validation selected are tested together too, whichever they are. Where `traces` is given, it is filled with what the
    adapters did at the last round of the one training; where `costs` is given, with what serving them took.
    """
    first, lanes, rows = trained[0], engine.lanes, [_Rows(t.names) for t in trained]
    tests = {name: engine.gather([t.streams[name].shards for t in trained]) for name in first.streams}
    held = engine.gather([t.held for t in trained if t.held is not None]) if first.held is not None else None
    chosen = [_selected(t.state) for t in trained]
    refused: tuple[Refused, ...] = ()
    for turn in range(max(map(len, chosen))):
        picked = [own[min(turn, len(own) - 1)] for own in chosen]
        downs = [t.worker.method.download(t.worker.task, p.server) for t, p in zip(trained, picked, strict=True)]
        down, mine = lanes.downs(downs), lanes.mine([p.mine for p in picked])
        models = engine.deploy(down, mine, personal)
        served, refused = _served(first.worker.task, engine.model_of(models, 0), adapters, first.names)
        for name, adapter in served.items():
            try:
                ready = engine.calibrated(models, held, adapter) if adapter.calibrates and held is not None else models
            except CannotCalibrate as e:
                refused += (_refused(first.names, name, str(e)),)
                continue
            cost = Cost() if costs is None else costs.setdefault(name, _kept(first.worker.task, engine, ready, adapter))
            unable: dict[str, str] = {}
            for stream, test in first.streams.items():
                trace = traces is not None and "last" in picked[0].selections
                live = _live(engine, down, ready, test, adapter)
                if reason := _lacking(engine, live, test, adapter):
                    refused += (_refused(first.names, name, f"stream {stream}: {reason}"),)
                    tick()
                    continue
                began = time.perf_counter()
                try:
                    metrics = engine.serve(live, tests[stream], adapter, test.protocol, trace)
                except CannotExchange as e:  # maybe of this stream's clients; another stream may have more
                    unable[stream] = str(e)
                    tick()
                    continue
                except TooFewValues as e:  # of this stream's batches; another stream may have larger ones
                    refused += (_refused(first.names, name, f"stream {stream}: {e}"),)
                    tick()
                    continue
                cost.samples += int(metrics["n"].sum())  # reading it waits for the device
                cost.seconds += time.perf_counter() - began
                seen = metrics.pop("trace", {})
                for own, p, found, some in zip(rows, picked, lanes.each(metrics), chosen, strict=True):
                    sound = turn >= len(some) or own.add(found, name, stream, p.selections, p.round)
                if sound and traces is not None and (kept := flat(seen, test.shards.n, name)):
                    traces.setdefault(name, {})[stream] = kept
                tick()
            refused += tuple(_refused(first.names, name, reason) for reason in _told(unable, len(first.streams)))
    return [own.table(refused) for own in rows]


def _told(unable: Mapping[str, str], streams: int) -> list[str]:
    """Why an adapter's clients could not exchange: once where it is so of all streams, and else stream by stream."""
    once = list(dict.fromkeys(unable.values()))
    if len(unable) == streams and len(once) == 1:
        return once
    return [f"stream {stream}: {reason}" for stream, reason in unable.items()]


def _kept(task: Task, engine: Engine, models: Any, adapter: Adapter) -> Cost:
    """The size of an adapter's first state; nothing is served yet."""
    return Cost(state_bytes=tree.nbytes(adapter.init(task, engine.model_of(models, 0))))


class _Rows:
    """The rows of one experiment, and which adapters have none on a stream because they diverged there."""

    def __init__(self, names: Names) -> None:
        self.names = names
        self.rows: list[Row] = []
        self.diverged: dict[tuple[str, str], str] = {}

    def add(
        self, metrics: Mapping[str, Tensor], adapter: str, stream: str, selections: Sequence[str], round: int
    ) -> bool:
        """A row per selection; none, and False, where the answers were not finite: argmax makes a class of them."""
        if clients := diverged(metrics):
            reason = f"{adapter} {said_diverged(clients)} of stream {stream} at round {round}"
            self.diverged.setdefault((adapter, stream), reason)
            return False
        self.rows += [_row(metrics, self.names, adapter, stream, s, round) for s in selections]
        return True

    def table(self, refused: tuple[Refused, ...]) -> Table:
        """What diverged at one of the tested rounds has no row of the other either: a mean of what is left misleads."""
        rows = tuple(r for r in self.rows if (r["adapter"], r["stream"]) not in self.diverged)
        gone = tuple(_refused(self.names, adapter, reason) for (adapter, _), reason in self.diverged.items())
        return Table(rows, refused + gone)


def diverged(metrics: Mapping[str, Tensor]) -> list[int]:
    """The clients whose answers were not finite: their loss is not either, so nothing is computed again."""
    return (~torch.isfinite(metrics["loss"]) & (metrics["n"] > 0)).nonzero()[:, 0].tolist()


def said_diverged(clients: Sequence[int]) -> str:
    """`produced values that are not finite on client(s) 0, 2`."""
    who = ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
    return f"{NOT_FINITE} on client(s) {who}"


def stream_accuracy(
    worker: Worker,
    engine: Engine,
    state: State,
    streams: Streams,
    adapters: Mapping[str, Adapter],
    personal: Personalizer,
) -> dict[str, Any]:
    """A point of the learning curves: the accuracy of every stream (`streams`) with the first adapter that can serve.

    It is what the table would say if training ended here, without the streams where the adapter diverges. Labels of the
    streams are read for this number alone: the round that validation selects does not depend on it.
    """
    down = worker.method.download(worker.task, state.server)
    models = engine.deploy(down, state.mine, personal)
    model = engine.model_of(models, 0)
    for name in (n for n, a in adapters.items() if not a.calibrates and a.refusal(worker.task, model) is None):
        try:
            return {"adapter": name, "streams": _accuracies(engine, down, models, streams, adapters[name])}
        except (CannotExchange, TooFewValues):
            continue
    return {}


def _accuracies(engine: Engine, down: tree.Tree, models: Any, streams: Streams, adapter: Adapter) -> dict[str, float]:
    """The accuracy of every stream on which the adapter does not diverge."""
    seen = {}
    for stream, test in streams.items():
        live = _live(engine, down, models, test, adapter)
        if _lacking(engine, live, test, adapter):
            continue
        metrics = engine.serve(live, test.shards, adapter, test.protocol)
        if not diverged(metrics):
            seen[stream] = summary_of(metrics).accuracy
    return seen


def _live(engine: Engine, down: tree.Tree, models: Any, test: Test, adapter: Adapter) -> Any:
    """The models that meet a stream. Newcomers have no labels to personalise on, or to calibrate with: they get the
    deployed model."""
    if not test.new:
        return models
    joined, shards = engine.join(down, test.shards.clients), test.shards
    nothing = Shards.of(shards.x[:1], shards.y[:1], [torch.zeros(0, dtype=torch.int64)] * shards.clients)
    return engine.calibrated(joined, nothing, adapter) if adapter.calibrates else joined


def _lacking(engine: Engine, live: Any, test: Test, adapter: Adapter) -> str | None:
    """Why newcomers cannot be served: their models lack what a personaliser gives the others."""
    task = engine.worker_of(engine.shards.clients).task
    return adapter.refusal(task, engine.model_of(live, 0)) if test.new else None


def rounds_to_test(state: State) -> int:
    """How many rounds the table covers: one where validation selected the last."""
    return len(_selected(state))


class _Selected(NamedTuple):
    """A round that is tested, by which selections, and the states it left."""

    round: int
    selections: list[str]
    server: tree.Tree
    mine: Private


def _selected(state: State) -> list[_Selected]:
    last, best = _Selected(state.round, ["last"], state.server, state.mine), state.best
    if best is None:
        return [last]
    if best.round == state.round:
        return [last._replace(selections=["last", "validation"])]
    return [last, _Selected(best.round, ["validation"], best.server, best.mine)]


def _served(
    task: Task, model: tree.Tree, adapters: Mapping[str, Adapter], names: Names
) -> tuple[dict[str, Adapter], tuple[Refused, ...]]:
    """Adapters that can serve the live model, and the reasons of those that cannot."""
    served, refused = {}, []
    for name, adapter in adapters.items():
        if reason := adapter.refusal(task, model):
            refused.append(_refused(names, name, reason))
        else:
            served[name] = adapter
    return served, tuple(refused)


def _refused(names: Names, adapter: str, reason: str) -> Refused:
    return Refused(method=names.method, personal=names.personal, adapter=adapter, reason=reason)


def _row(metrics: Mapping[str, Tensor], names: Names, adapter: str, stream: str, selection: str, round: int) -> Row:
    found = summary_of(metrics)
    return Row(
        method=names.method,
        personal=names.personal,
        adapter=adapter,
        stream=stream,
        settings=list(names.settings),
        seed=names.seed,
        clients=len(found.clients),
        accuracy=found.accuracy,
        std=found.std,
        loss=found.loss,
        ece=found.ece,
        selection=selection,
        round=round,
        up_bytes=names.up_bytes,
        exchanged_bytes=found.exchanged,
        per_client=found.per_client,
    )
