"""The Python interface: train, evaluate, run, resume, load, report.

`building`, `training` and `testing` are the parts of it that write nothing; what is public there is here too.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import store
from ..core import Engine, Worker
from ..core import fit as loop
from ..data import World
from ..eval import Cost, Table, Traces, summary
from ..experiment import Experiment, encode
from ..reporting.report import render
from ..reporting.strips import samples
from .build import Fit, Interrupted, build, check_mixed, cost_card, device_of
from .check import check_all, naming, untestable
from .estimates import of_built
from .evaluate import Built, by_name, evaluate, evaluate_together, evaluated, look_of, stream_hash, streams_of, traces
from .select import check as check_select
from .select import selected
from .train import can_join, train, train_from, train_lanes, train_together, vectorised
from .watch import Watch

__all__ = [
    "Fit",
    "Interrupted",
    "build",
    "by_name",
    "device_of",
    "evaluate",
    "evaluate_together",
    "load",
    "report",
    "resume",
    "run",
    "run_all",
    "stored_table",
    "stream_hash",
    "streams_of",
    "traces",
    "train",
    "train_from",
    "train_together",
    "with_seeds",
]


def run(
    experiment: Experiment,
    out: str | Path,
    overwrite: bool = False,
    watch: Watch | None = None,
    reuse: Path | None = None,
) -> Table:
    """Train with checkpoints, test, and write the whole run folder.

    `reuse` is a sibling run of the same training (see `Experiment.training_hash`), whose state is taken over.
    """
    return _run(experiment, Path(out), overwrite, watch or Watch(), reuse)


def _run(
    experiment: Experiment, path: Path, overwrite: bool, watch: Watch, reuse: Path | None, alone: bool = True
) -> Table:
    """`run`. Of several, one that no adapter can serve is named below their table; alone, it would measure nothing."""
    store.refuse_overwrite(path, overwrite)
    ready = _ready(experiment)  # before an earlier run is removed: what cannot be built should not cost its results
    if alone and ready is not None and (reason := untestable(experiment, ready.world, ready.worker)):
        ready.engine.close()
        raise ValueError(reason)
    folder = store.RunFolder.create(path, experiment, device_of(experiment.device), overwrite)
    if reuse is not None:
        for name in (folder.state.name, "fleet.json"):  # the latter: the name by which nodes know the training
            if (reuse / name).exists():
                store.write(folder.path / name, (reuse / name).read_bytes())
    return _finish(folder, experiment, watch, ready)


class _Ready(NamedTuple):
    """What an experiment was built into."""

    world: World
    worker: Worker
    engine: Engine
    streams: Built
    seconds: float
    """How long that took."""


def _ready(experiment: Experiment) -> _Ready | None:
    """All that training and testing need; None where another process builds it."""
    check_mixed(experiment)
    if experiment.backend.conducted() is not None:
        if experiment.select:
            raise ValueError("select= needs answers to single samples, which may not leave the nodes of a fleet")
        return None
    began = time.perf_counter()
    world, worker, engine = build(experiment)
    streams = streams_of(world, experiment.streams)  # before training: what cannot be tested should not cost an hour
    if experiment.select:
        check_select(world, streams, experiment.select)
    return _Ready(world, worker, engine, streams, time.perf_counter() - began)


def _finish(folder: store.RunFolder, experiment: Experiment, watch: Watch, ready: _Ready | None = None) -> Table:
    """From whatever the folder holds to a finished run."""
    ready = ready or _ready(experiment)
    if ready is None:
        return _hand_over(folder, str(experiment.backend.conducted()), watch)
    began = time.perf_counter()
    world, worker, engine, streams, seconds = ready
    folder.world = world.content
    state = loop.start(worker, engine, world.clients)
    state = folder.restore(state, experiment.identities()) or state
    built = time.perf_counter()
    look = look_of(experiment, worker, engine, streams) if experiment.analysis else None
    fit = train_from(experiment, world, worker, engine, state, watch, folder, look)
    folder.log(fit.state)
    trained = time.perf_counter()
    kept: Traces | None = {} if experiment.analysis else None
    costs: dict[str, Cost] = {}
    table, cards = evaluated(fit, None, streams, None, watch, kept, costs)
    chosen = selected(fit, None, streams, experiment.select) if experiment.select else None
    if kept is not None:
        meanings = {name: a.traces for name, a in by_name(experiment.adapters).items()}
        found = {**summary(kept, meanings, engine.device), "estimates": of_built(fit, None, streams, None).to_dict()}
        folder.keep_analysis(kept, found, experiment.seed, fit.state.round)
    timings = {
        "build_seconds": seconds + built - began,
        "train_seconds": trained - built,
        "evaluate_seconds": time.perf_counter() - trained,
        "round_seconds_median": sorted(fit.seconds)[len(fit.seconds) // 2] if fit.seconds else None,
    }
    results = {
        "schema": store.RESULTS_SCHEMA,
        "label": experiment.label,
        "seed": experiment.seed,
        "command": store.command_line(),
        "table": list(table.rows),
        "refused": list(table.refused),
        **({"selected": chosen.to_dict()} if chosen is not None else {}),
        "cost": cost_card(fit),
        "faults": [*fit.state.faults, *(f._asdict() for f in engine.missed())],
        "data": {**world.card(), **_dealing(experiment, world), "streams": cards},
        "timings": {k: v if v is None else round(v, 4) for k, v in timings.items()},
        "serving": {name: _served(cost) for name, cost in costs.items()},
        "pictures": samples(world, {name: stream for name, (_, stream) in streams.items()}),
    }
    engine.close()
    store.write(folder.results, store.json_text(results, indent=1) + "\n")
    store.write(folder.report, render([folder.load()]))
    return table


def _served(cost: Cost) -> dict[str, Any]:
    """What serving an adapter took, for results.json; it is a time, so a rerun has another."""
    return {"ms_per_sample": round(1000 * cost.seconds / max(cost.samples, 1), 4), "state_bytes": cost.state_bytes}


def _dealing(experiment: Experiment, world: World) -> dict[str, Any]:
    """Which partition dealt the examples, with its revision, where they were dealt here."""
    partition = experiment.data.partition
    revision = {"revision": partition.revision} if hasattr(partition, "revision") else {}
    return {"partition": {**encode(partition), **revision}} if world.content else {}


def _hand_over(folder: store.RunFolder, conductor: str, watch: Watch) -> Table:
    """Let another process finish the run, and follow it."""
    module, _, name = conductor.partition(":")
    getattr(importlib.import_module(module), name)(folder.path, watch)
    return stored_table(folder)


def run_all(
    experiments: Sequence[Experiment], out: str | Path, overwrite: bool = False, watch: Watch | None = None
) -> Table:
    """One experiment into `out`, or several into folders below it, with an index and one report over all."""
    if not experiments:
        raise ValueError("there is no experiment to run")
    path = Path(out)
    if len(experiments) == 1:
        return run(experiments[0], path, overwrite, watch)
    store.refuse_overwrite(path, overwrite)
    check_all(experiments)  # before earlier runs are removed, and before hours of training
    index = store.IndexFolder(path)
    index.clear(list(experiments))
    index.plan(list(experiments))  # last: an index never names results of earlier runs as its own
    return _finish_index(index, list(experiments), watch or Watch())


def _finish_index(index: store.IndexFolder, experiments: list[Experiment], watch: Watch) -> Table:
    """From whatever the folders hold to finished runs and their report."""
    try:
        return _finish_each(index, experiments, watch)
    except Interrupted as stop:  # one run was stopped; what is to be gone on with is all of them
        raise Interrupted(index.path, stop.round) from None


def _finish_each(index: store.IndexFolder, experiments: list[Experiment], watch: Watch) -> Table:
    table = Table()
    trained: dict[str, Path] = {}
    watch.suite(len(experiments))
    _train_seeds(index, experiments, watch)
    for path, experiment in zip(index.runs(), experiments, strict=True):
        folder, training = store.RunFolder(path), experiment.history_hash()
        if folder.finished:
            table += stored_table(folder)
        else:
            with naming(path.name):
                if folder.state.exists():
                    table += _finish(folder, experiment, watch)
                else:
                    table += _run(experiment, path, True, watch, trained.get(training), alone=False)
        trained.setdefault(training, path)
        watch.done()
    report(index.path, out=index.path / "report.html")
    return table


def _train_seeds(index: store.IndexFolder, experiments: list[Experiment], watch: Watch) -> None:
    """Where a GPU can, train the seeds of each experiment together; their folders then hold a finished training."""
    groups: dict[str, list[tuple[Path, Experiment]]] = {}
    for path, e in zip(index.runs(), experiments, strict=True):
        folder = store.RunFolder(path)
        if not (folder.finished or folder.state.exists()):
            groups.setdefault(replace(e, seed=0).history_hash(), []).append((path, e))
    for members in groups.values():
        same = [e for _, e in members]
        parts = [build(e) for e in same] if can_join(same) else []
        if vectorised(parts):
            device = device_of(same[0].device)
            folders = [store.RunFolder.create(p, e, device, overwrite=True) for p, e in members]
            for folder, (world, _, _) in zip(folders, parts, strict=True):
                folder.world = world.content
            train_lanes(same, parts, folders, watch)


def stored_table(folder: store.RunFolder) -> Table:
    """The table of a finished run."""
    results = folder.load()["results"]
    return Table(tuple(results["table"]), tuple(results["refused"]))


def resume(path: str | Path, watch: Watch | None = None, **given: Any) -> Table:
    """Go on with a run, or a folder of runs, from its last checkpoint; a finished one is only read."""
    watch, root = watch or Watch(), Path(path)
    if (root / "index.json").exists():
        index = store.IndexFolder(root)
        return _finish_index(index, index.experiments(**given), watch)
    folder = store.RunFolder(root)
    experiment = folder.experiment(**given)
    return stored_table(folder) if folder.finished else _finish(folder, experiment, watch)


def load(path: str | Path, **given: Any) -> Fit:
    """A trained experiment from its run folder; `given` supplies Python objects that config.json cannot hold."""
    folder = store.RunFolder(Path(path))
    experiment = folder.experiment(**given)
    world, worker, engine = build(experiment)
    like = loop.start(worker, engine, world.clients)
    state = folder.restore(like, experiment.identities())
    if state is None:
        raise store.RunError(f"{folder.state} does not exist: nothing was trained yet; try `acclimate resume {path}`")
    return Fit(experiment, world, worker, engine, state)


def report(*runs: str | Path, out: str | Path, more: Mapping[str, str] | None = None) -> Path:
    """One HTML page over run folders, or folders of them; `more` are further sections of it, by their heading."""
    folders = [f for r in runs for f in store.find_runs(Path(r))]
    finished = [f for f in folders if f.finished]
    if not finished:
        where = ", ".join(map(str, runs))
        raise store.RunError(
            f"no finished run in {where} ({len(folders)} not finished); go on with `acclimate resume {runs[0]}`"
        )
    target = Path(out)
    left = [f.path.name for f in folders if not f.finished]
    store.write(target, render([f.load() for f in finished], more=more, unfinished=left))
    return target


def with_seeds(experiments: Sequence[Experiment], seeds: int) -> list[Experiment]:
    """Each experiment with `seeds` consecutive seeds; none twice, where the experiments are the same but for theirs."""
    if seeds < 1:
        raise ValueError(f"seeds={seeds} must be at least 1")
    out: list[Experiment] = []
    for e in (replace(e, seed=e.seed + s) for e in experiments for s in range(seeds)):
        if e not in out:  # not a set: a record of a user need not be hashable
            out.append(e)
    return out
