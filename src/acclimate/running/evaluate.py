"""Trained experiments on their streams: tables and traces."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import store
from ..core import Adapter, Engine, Personalizer, State, Worker, rng
from ..core.backend import Joint
from ..data import World
from ..eval import Names, Table, Test, Traces, Trained, rounds_to_test, stream_accuracy
from ..eval import evaluate as evaluate_grid
from ..eval import evaluate_together as evaluate_joint
from ..experiment import Experiment, catalogue
from ..ops.hashing import content_hash
from ..shifts import Shift, Stream
from .build import Fit, cost_card
from .watch import Watch

Built = dict[str, tuple[Shift, Stream]]
"""Streams by name, and what they were made by."""


def streams_of(world: World, streams: Iterable[Shift]) -> Built:
    """Every stream by name, built from the world's fixed test examples."""
    key = rng.fold(rng.key(world.seed), "streams")
    records = tuple(streams)
    out: Built = {}
    for name, shift in zip(catalogue.distinct(records), records, strict=True):
        try:
            made = shift.build(world, key)
            if not bool((made.shards.n > 0).any()):
                raise ValueError("no client has an example in it")
            out[name] = (shift, made)
        except (TypeError, ValueError) as e:
            raise ValueError(f"stream '{name}' cannot be made from {world.name}: {e}") from e
    return out


def stream_hash(stream: Stream) -> str:
    """Names exactly what the clients met: pixels, labels and order."""
    s = stream.shards
    used = s.rows.unique()
    return content_hash(s.x[used], s.y[used], s.rows, s.n)[:16]


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
    built = streams_of(fit.world, streams or fit.experiment.streams)
    return evaluated(fit, adapters, built, personal, watch or Watch())[0]


def evaluate_together(
    fits: Sequence[Fit],
    adapters: Sequence[Adapter] | None = None,
    streams: Sequence[Shift] | None = None,
    personal: Personalizer | None = None,
    watch: Watch | None = None,
) -> list[Table]:
    """Test what `train_together` gave: vectorised where it was trained so. The numbers are those of `evaluate`."""
    if (joint := _shared(fits)) is None:
        return [evaluate(f, adapters, streams, personal, watch) for f in fits]
    e, records = fits[0].experiment, streams or fits[0].experiment.streams
    named, personal = by_name(adapters or e.adapters), personal or e.personal
    tests = [_tests(streams_of(f.world, records)) for f in fits]
    names = [_names(f, personal, named.values(), records) for f in fits]
    trained = [Trained(f.state, t, n) for f, t, n in zip(fits, tests, names, strict=True)]
    turns, watch = max(rounds_to_test(f.state) for f in fits), watch or Watch()
    watch.testing(f"{e.label}, {len(fits)} together", e.seed, len(named) * len(tests[0]) * turns)
    return evaluate_joint(joint, trained, named, personal, watch.tested)


def _shared(fits: Sequence[Fit]) -> Joint | None:
    """What tests these together, where they are all that were trained together, in their order."""
    joints = [f.joint for f in fits if f.joint is not None]
    if len(joints) < len(fits) or [i for _, i in joints] != list(range(joints[0][0].size)):
        return None
    return joints[0][0] if len({id(j) for j, _ in joints}) == 1 else None


def _names(fit: Fit, personal: Personalizer, adapters: Iterable[Adapter], streams: Iterable[Shift]) -> Names:
    """What rows say of a training that is tested with these, which need not be the experiment's own."""
    up = cost_card(fit)["up_bytes_per_client"]
    e = replace(fit.experiment, adapters=tuple(adapters), streams=tuple(streams))
    return Names(catalogue.name(e.method), catalogue.name(personal), e.seed, up, tuple(e.settings()))


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
    kept: Traces = {}
    evaluated(source, adapters, streams_of(source.world, streams or source.experiment.streams), None, Watch(), kept)
    return kept


def by_name(adapters: Sequence[Adapter]) -> dict[str, Adapter]:
    """Adapters under the names that tables have for them."""
    return dict(zip(catalogue.distinct(adapters), adapters, strict=True))


def _tests(built: Built) -> dict[str, Test]:
    return {name: Test(stream.shards, shift.protocol, stream.new) for name, (shift, stream) in built.items()}


def evaluated(
    fit: Fit,
    adapters: Sequence[Adapter] | None,
    built: Built,
    personal: Personalizer | None,
    watch: Watch,
    traces: Traces | None = None,
) -> tuple[Table, dict[str, Any]]:
    """The table of streams that are there already, and what each of them is; fills `traces` where it is given."""
    e = fit.experiment
    named, personal = by_name(adapters or e.adapters), personal or e.personal
    watch.testing(e.label, e.seed, len(named) * len(built) * rounds_to_test(fit.state))
    tests = _tests(built)
    names = _names(fit, personal, named.values(), [shift for shift, _ in built.values()])
    table = evaluate_grid(fit.worker, fit.engine, fit.state, tests, named, personal, names, watch.tested, traces)
    return table, {name: {**stream.card, "hash": stream_hash(stream)} for name, (_, stream) in built.items()}
