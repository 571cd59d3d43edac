"""The tests of a training: which ways its cells ask for, and their numbers with whatever state it is in."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Set
from dataclasses import replace
from typing import Any, NamedTuple

from ..core import Protocol, Shards, State
from ..data import World
from ..eval.analysis import flat
from ..eval.grid import diverged, said_diverged
from ..experiment import ConfigError, labels
from ..running import run as api
from ..running.watch import Watch
from ..shifts import Shift
from .record import Cell, Named


class Test(NamedTuple):
    """One way to test a training."""

    personal: Named
    adapter: Named
    stream: Shift
    traced: bool = False
    """Whether what the adapter tells of every sample is averaged too."""

    @property
    def name(self) -> str:
        """The same for equal settings, in any recipe."""
        parts = (self.personal.record, self.adapter.record, self.stream)
        return ", ".join(labels.label(p) for p in parts) + (", traced" if self.traced else "")


def test_of(cell: Cell) -> Test:
    """How the model behind a cell is tested."""
    return Test(cell.personal, cell.adapter, cell.stream, cell.measure.startswith("trace:"))


def finished(test: Mapping[str, Any], looks: Set[int]) -> bool:
    """Whether a record's test has its accuracy and all looks. Of a stopped run there is a part of the curve alone."""
    return "accuracy" in test and seen(test, looks)


def seen(test: Mapping[str, Any], looks: Set[int]) -> bool:
    """Whether a record's test has all these looks."""
    return looks <= {point[0] for point in test.get("curve", ())}


class Server:
    """Serves the tests of one training with whatever state it is in."""

    def __init__(self, world: World, worker: Any, engine: Any, tests: list[Test]) -> None:
        self.world, self.worker, self.engine, self.tests = world, worker, engine, tests
        streams = list(dict.fromkeys(t.stream for t in tests))
        built = [api.streams_of(world, [s]) for s in streams]  # one by one: their names may be the same
        self.streams = {s: next(iter(b.values()))[1] for s, b in zip(streams, built, strict=True)}

    def look(self, state: State) -> dict[str, list[float]]:
        """By test `[round, validation accuracy, accuracy]`: both adapted, and personalised where the test is."""
        out, val = {}, self.world.shards(self.world.val)
        for test, down, models in self._deployed(state):
            own = _mean(self._serve(models, val, test))
            out[test.name] = [float(state.round), own, _mean(self._met(test, down, models))]
        return out

    def tested(self, state: State, watch: Watch) -> dict[str, dict[str, Any]]:
        """By test: accuracy, spread and calibration over clients, and the accuracy of each that has examples in it."""
        out = {}
        for test, down, models in self._deployed(state):
            metrics = self._met(test, down, models)
            n = self.streams[test.stream].shards.n
            traces = flat(metrics.pop("trace", {}), n, test.adapter.name)
            held = metrics["n"] > 0
            accuracy = metrics["accuracy"][held].double()
            out[test.name] = {
                "accuracy": _mean(metrics),
                "std": round(float(accuracy.std(correction=0)), 6),
                "loss": round(float(metrics["loss"][held].double().mean()), 6),
                "ece": round(float(metrics["ece"][held].double().mean()), 6),
                "per_client": [round(a, 6) for a in accuracy.tolist()],
                "clients": held.nonzero()[:, 0].tolist(),
                "stream_hash": api.stream_hash(self.streams[test.stream]),
                "traces": {k: round(float(v.double().mean()), 6) for k, v in traces.items() if v.dim() == 1},
            }
            watch.tested()
        return out

    def _deployed(self, state: State) -> Iterable[tuple[Test, Any, Any]]:
        """Every test with the models that it serves; tests of one personaliser share them."""
        down = self.worker.method.download(self.worker.task, state.server)
        for personal in dict.fromkeys(t.personal for t in self.tests):
            models = self.engine.deploy(down, state.mine, personal.record)
            for test in (t for t in self.tests if t.personal == personal):
                reason = test.adapter.record.refusal(self.worker.task, self.engine.model_of(models, 0))
                if reason:
                    raise ConfigError(f"{test.name}: {reason}")
                yield test, down, models

    def _met(self, test: Test, down: Any, models: Any) -> Any:
        stream = self.streams[test.stream]
        live = self.engine.join(down, stream.shards.clients) if stream.new else models
        return self._serve(live, stream.shards, test, test.traced)

    def _serve(self, models: Any, shards: Shards, test: Test, trace: bool = False) -> Any:
        """A batch is never longer than the longest stream: a large one stands for the whole set.

        In it shorter streams wrap around; where every sample must count once, the adapter must be transductive.
        """
        protocol: Protocol = test.stream.protocol
        longest = max(int(shards.n.max()), 1)
        fits = replace(protocol, batch=min(protocol.batch, longest)) if protocol.batch > longest else protocol
        metrics = self.engine.serve(models, shards, test.adapter.record, fits, trace)
        if clients := diverged(metrics):  # argmax would make a class, and a table an accuracy, of them
            raise ArithmeticError(f"{test.name}: {test.adapter.name} {said_diverged(clients)}; lower its learning rate")
        return metrics


def _mean(metrics: Any) -> float:
    accuracy = metrics["accuracy"][metrics["n"] > 0].double()
    return round(float(accuracy.mean()), 6) if len(accuracy) else 0.0
