"""Tested experiments on their streams: tables and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import store
from ..core import Adapter, Engine, Personalizer, State, Worker, check, rng
from ..data import World
from ..eval import Cost, Names, Table, Test, Tested, Traces, rounds_to_test, stream_accuracy
from ..eval import evaluate as evaluate_grid
from ..eval.same_stream import names as stream_names
from ..experiment import Experiment, kinds, labels
from ..shifts import Shift, Stream
from .build import Fit, cost_card
from .watch import Watch

Built = dict[str, tuple[Shift, Stream]]
"""Streams by name, each with the shift that made it."""


def streams_of(world: World, streams: Iterable[Shift]) -> Built:
    """Every stream by name, built from the world's fixed test examples."""
    key = rng.fold(rng.key(world.seed), "streams")
    records = tuple(streams)
    out: Built = {}
    for name, shift in zip(labels.distinct(records), records, strict=True):
        try:
            stream = shift.build(world, key)
            if not bool((stream.shards.n > 0).any()):
                raise ValueError("no client has an example in it")
            out[name] = (shift, stream)
        except (TypeError, ValueError) as e:
            raise ValueError(f"stream '{name}' cannot be made from {world.name}: {e}") from e
    return out


Look = Callable[[State], dict[str, Any]]
"""What else is seen at every look at the validation data: more columns of its row."""


def look_of(experiment: Experiment, worker: Worker, engine: Engine, built: Built) -> Look:
    """Every stream's accuracy, with the experiment's personaliser and its first adapter that can serve."""
    adapters, tests = by_name(experiment.adapters), _tests(built)
    return lambda state: stream_accuracy(worker, engine, state, tests, adapters, experiment.personal)


def evaluate(
    fit: Fit,
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    watch: Watch | None = None,
) -> Table:
    """Test a trained experiment: every adapter on every stream. The defaults are the experiment's own."""
    if not hasattr(fit, "experiment"):
        how = "ac.train(experiment)" if isinstance(fit, Experiment) else "ac.train(experiment) or ac.load(path)"
        raise TypeError(f"evaluate: fit is of type {type(fit).__name__}, and must be what {how} returns")
    adapters, streams = given("evaluate", adapters, streams, personal)
    built = streams_of(fit.world, streams or fit.experiment.streams)
    return evaluated(fit, adapters, built, personal, watch or Watch())[0]


def given(
    owner: str, adapters: Sequence[Adapter] | None, streams: Sequence[Shift] | None, personal: Personalizer | None
) -> tuple[Sequence[Adapter] | None, Sequence[Shift] | None]:
    """The adapters and streams that are to take the place of an experiment's own; refuses what is no such record.

    None of them at all is refused too: somebody whose list came out empty would take the experiment's own for it.
    """
    found: dict[str, Any] = {"adapters": adapters, "streams": streams}
    for name, base in (("adapters", Adapter), ("streams", Shift)):
        if found[name] is not None:
            found[name] = kinds.several(owner, name, found[name], base)
            if not found[name]:
                allowed = "must hold at least one; leave it out to test the experiment's own"
                raise check.FieldError(f"{owner}: {name}=() {allowed}", name)
    if personal is not None:
        kinds.one(owner, "personal", personal, Personalizer)
    return found["adapters"], found["streams"]


def evaluate_together(
    fits: Sequence[Fit],
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    watch: Watch | None = None,
) -> list[Table]:
    """Test what `train_together` gave: vectorised where it was trained so. The numbers are those of `evaluate`."""
    adapters, streams = given("evaluate_together", adapters, streams, personal)
    if (engine := _shared(fits)) is None:
        return [evaluate(f, adapters, streams, personal, watch) for f in fits]
    built = [streams_of(f.world, streams or f.experiment.streams) for f in fits]
    return _tables(engine, fits, built, adapters, personal, watch or Watch())


def _shared(fits: Sequence[Fit]) -> Engine | None:
    """The engine whose lanes these are, where they are all of its lanes, in their order."""
    lanes = [f.lane for f in fits if f.lane is not None]
    if len(lanes) < len(fits) or [i for _, i in lanes] != list(range(lanes[0][0].lanes.count)):
        return None
    return lanes[0][0] if len({id(engine) for engine, _ in lanes}) == 1 else None


def _tables(
    engine: Engine,
    fits: Sequence[Fit],
    built: Sequence[Built],
    adapters: Sequence[Adapter] | None,
    personal: Personalizer | None,
    watch: Watch,
    traces: Traces | None = None,
    costs: dict[str, Cost] | None = None,
) -> list[Table]:
    """The tables of trainings that run on one engine. The defaults are those of the first experiment."""
    e = fits[0].experiment
    named, personal = by_name(adapters or e.adapters), personal or e.personal
    turns = max(rounds_to_test(f.state) for f in fits)
    label = e.label if len(fits) == 1 else f"{e.label}, {len(fits)} together"
    watch.testing(label, e.seed, len(named) * len(built[0]) * turns)
    trained = []
    for fit, own in zip(fits, built, strict=True):
        names = _names(fit, personal, named.values(), [shift for shift, _ in own.values()])
        held = fit.world.shards(fit.world.val) if any(a.calibrates for a in named.values()) else None
        trained.append(Tested(fit.worker, fit.state, _tests(own), names, held))
    return evaluate_grid(engine, trained, named, personal, watch.tested, traces, costs)


def _names(fit: Fit, personal: Personalizer, adapters: Iterable[Adapter], streams: Iterable[Shift]) -> Names:
    """What rows say of a training that is tested with these, which need not be the experiment's own."""
    up = cost_card(fit)["up_bytes_per_client"]
    e = replace(fit.experiment, adapters=tuple(adapters), streams=tuple(streams))
    return Names(labels.name(e.method), labels.name(personal), e.seed, up, tuple(e.settings()))


def traces(
    source: Fit | str | Path, adapters: Sequence[Adapter] | None = None, streams: Sequence[Shift] | None = None
) -> Traces:
    """What the adapters did with every sample: `traces(...)["the"]["original"]["personal_weight"]`.

    Of a run folder made with `analysis=true`, or measured now on a trained experiment, at the last round. `client` says
    whose sample each one was; vectors are there for the samples `at` alone (see `acclimate.eval.analysis.Traces`).
    """
    if not isinstance(source, Fit):
        if adapters is not None or streams is not None:
            raise ValueError("adapters and streams can be chosen for a trained experiment, not for a run folder")
        return store.read_traces(store.RunFolder(Path(source)).traces)
    adapters, streams = given("traces", adapters, streams, None)
    kept: Traces = {}
    evaluated(source, adapters, streams_of(source.world, streams or source.experiment.streams), None, Watch(), kept)
    return kept


def by_name(adapters: Sequence[Adapter]) -> dict[str, Adapter]:
    """Adapters under the names that tables have for them."""
    return dict(zip(labels.distinct(adapters), adapters, strict=True))


def _tests(built: Built) -> dict[str, Test]:
    return {name: Test(stream.shards, shift.protocol, stream.new) for name, (shift, stream) in built.items()}


def evaluated(
    fit: Fit,
    adapters: Sequence[Adapter] | None,
    built: Built,
    personal: Personalizer | None,
    watch: Watch,
    traces: Traces | None = None,
    costs: dict[str, Cost] | None = None,
) -> tuple[Table, dict[str, Any]]:
    """The table of streams that are there already, and what each of them is; fills `traces` and `costs` where given."""
    (table,) = _tables(fit.engine, [fit], [built], adapters, personal, watch, traces, costs)
    return table, {name: {**stream.card, **stream_names(stream)} for name, (_, stream) in built.items()}
