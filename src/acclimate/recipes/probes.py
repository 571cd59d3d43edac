"""The tests of a training: which ways its cells ask for, and their numbers with whatever state it is in."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Set
from dataclasses import replace
from functools import cache, partial
from typing import Any, NamedTuple

from ..core import Protocol, Shards, State
from ..data import World
from ..eval.analysis import flat
from ..eval.grid import diverged, said_diverged
from ..eval.rows import summary_of
from ..experiment import ConfigError, labels
from ..running import run as api
from ..running.watch import Watch
from ..shifts import Shift
from .record import Cell, Named


class Probe(NamedTuple):
    """One way to test a training."""

    personal: Named
    adapter: Named
    stream: Shift
    traced: bool = False
    """Whether what the adapter tells of every sample is averaged too."""
    examples: str = "test"
    """Which examples of a client the stream is made of."""

    @property
    def name(self) -> str:
        """The same for equal settings, in any recipe."""
        parts = (self.personal.record, self.adapter.record, self.stream)
        more = [word for word, on in (("traced", self.traced), ("validation", self.examples != "test")) if on]
        return ", ".join([*(labels.label(p) for p in parts), *more])


def probe_of(cell: Cell) -> Probe:
    """How the model behind a cell is tested."""
    return Probe(cell.personal, cell.adapter, cell.stream, cell.measure.startswith("trace:"), cell.examples)


def finished(test: Mapping[str, Any], looks: Set[int]) -> bool:
    """Whether a record's test has its accuracy and all looks. Of a stopped run there is a part of the curve alone."""
    return "accuracy" in test and seen(test, looks)


def seen(test: Mapping[str, Any], looks: Set[int]) -> bool:
    """Whether a record's test has all these looks."""
    return looks <= {point[0] for point in test.get("curve", ())}


class Prober:
    """Serves the tests of one training with whatever state it is in."""

    def __init__(self, world: World, worker: Any, engine: Any, probes: list[Probe]) -> None:
        self.world, self.worker, self.engine, self.probes = world, worker, engine, probes
        wanted = dict.fromkeys((p.stream, p.examples) for p in probes)
        self.streams = {place: self._built(*place) for place in wanted}  # one by one: their names may be the same

    def _built(self, stream: Shift, examples: str) -> Any:
        world = self.world if examples == "test" else replace(self.world, test=self.world.val, val=self.world.test)
        return next(iter(api.streams_of(world, [stream]).values()))[1]

    def look(self, state: State) -> dict[str, list[float]]:
        """By test `[round, validation accuracy, accuracy]`: both adapted, and personalised where the test is."""
        out, val, own = {}, self.world.shards(self.world.val), {}
        for probe, models, newcomers in self._deployed(state):
            how = (probe.personal, probe.adapter, probe.stream.protocol)
            if how not in own:  # tests on other streams validate alike
                own[how] = summary_of(self._serve(models, val, probe)).rounded().accuracy
            met = summary_of(self._met(probe, models, newcomers)).rounded().accuracy
            out[probe.name] = [float(state.round), own[how], met]
        return out

    def tested(self, state: State, watch: Watch) -> dict[str, dict[str, Any]]:
        """By test: accuracy, spread and calibration over clients, and the accuracy of each that has examples in it."""
        out = {}
        for probe, models, newcomers in self._deployed(state):
            metrics, stream = self._met(probe, models, newcomers), self.streams[probe.stream, probe.examples]
            traces = flat(metrics.pop("trace", {}), stream.shards.n, probe.adapter.name)
            out[probe.name] = {
                **summary_of(metrics).rounded()._asdict(),
                "stream_hash": api.stream_hash(stream),
                "traces": {k: round(float(v.double().mean()), 6) for k, v in traces.items() if v.dim() == 1},
            }
            watch.tested()
        return out

    def _deployed(self, state: State) -> Iterable[tuple[Probe, Any, Callable[[int], Any]]]:
        """Every test with the models of clients and of newcomers; tests of one personaliser share the first, all share
        the second, because a newcomer may have to learn for as long as a round takes."""
        down = self.worker.method.download(self.worker.task, state.server)
        newcomers = cache(partial(self.engine.join, down))
        for personal in dict.fromkeys(p.personal for p in self.probes):
            models = self.engine.deploy(down, state.mine, personal.record)
            for probe in (p for p in self.probes if p.personal == personal):
                reason = probe.adapter.record.refusal(self.worker.task, self.engine.model_of(models, 0))
                if reason:
                    raise ConfigError(f"{probe.name}: {reason}")
                yield probe, models, newcomers

    def _met(self, probe: Probe, models: Any, newcomers: Callable[[int], Any]) -> Any:
        stream = self.streams[probe.stream, probe.examples]
        met = newcomers(stream.shards.clients) if stream.new else models
        return self._serve(met, stream.shards, probe, probe.traced)

    def _serve(self, models: Any, shards: Shards, probe: Probe, trace: bool = False) -> Any:
        """A batch is never longer than the longest stream: a large one stands for the whole set.

        In it shorter streams wrap around; where every sample must count once, the adapter must be transductive.
        """
        protocol: Protocol = probe.stream.protocol
        longest = max(int(shards.n.max()), 1)
        fits = replace(protocol, batch=min(protocol.batch, longest)) if protocol.batch > longest else protocol
        metrics = self.engine.serve(models, shards, probe.adapter.record, fits, trace)
        if clients := diverged(metrics):  # argmax would make a class, and a table an accuracy, of them
            reason = f"{probe.adapter.name} {said_diverged(clients)}; lower its learning rate"
            raise ArithmeticError(f"{probe.name}: {reason}")
        return metrics
