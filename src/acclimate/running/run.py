"""The Python interface: train, evaluate, run, resume, load, report.

`building`, `training` and `testing` are the parts of it that write nothing; what is public there is here too.
"""

from __future__ import annotations

import importlib
import logging
import os
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
from ..eval.same_stream import stream_hash
from ..experiment import Experiment
from ..ops.devices import device_of
from ..reporting.board import collect
from ..reporting.report import render
from ..reporting.saved_table import ENDINGS, ending_of, saved
from ..reporting.strips import samples
from . import failures
from .build import Fit, Interrupted, build, check_mixed, cost_card
from .check import check_all, naming, untestable
from .estimates import of_built
from .evaluate import Built, by_name, evaluate, evaluate_together, evaluated, look_of, streams_of, traces
from .pace import slow
from .results import dealing, faults_of, served
from .select import check as check_select
from .select import selected
from .train import train, train_from, train_seeds, train_together
from .watch import Watch

log = logging.getLogger("acclimate")
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
    "train_seeds",
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
    secret = store.secrets.read(reuse) if reuse is not None else None
    with store.locked(path):
        # before an earlier run is removed: what cannot be built should not cost its results
        ready = _ready(experiment, secret)
        if alone and ready is not None and (reason := untestable(experiment, ready.world, ready.worker)):
            ready.engine.close()
            raise ValueError(reason)
        folder = store.RunFolder.create(path, experiment, device_of(experiment.device), overwrite)
        for name in (store.secrets.NAME, "fleet.json"):  # a new run has a key and a name of its own
            (folder.path / name).unlink(missing_ok=True)
        if reuse is not None:
            # fleet.json has the name by which nodes know the training, secret.json that of its key; the state comes
            # last: where it lies in a folder, the run goes on from it, and needs the others
            names = ("fleet.json", store.secrets.NAME, folder.frozen.name, folder.pace.name, folder.kernels.name)
            for name in (*names, folder.state.name):
                if (reuse / name).exists():
                    store.write(folder.path / name, (reuse / name).read_bytes())
        if ready is not None:
            return _finish_here(folder, experiment, watch, ready)
    return _hand_over(folder, experiment, watch)


class _Ready(NamedTuple):
    """What an experiment was built into."""

    world: World
    worker: Worker
    engine: Engine
    streams: Built
    seconds: float
    """How long that took."""


def _ready(experiment: Experiment, secret: bytes | None = None, old: bool = False) -> _Ready | None:
    """All that training and testing need; None where another process builds it."""
    check_mixed(experiment)
    if experiment.backend.conducted() is not None:
        if experiment.select:
            raise ValueError("select= needs answers to single samples, which may not leave the nodes of a fleet")
        return None
    began = time.perf_counter()
    world, worker, engine = build(experiment, secret, old)
    streams = streams_of(world, experiment.streams)  # before training: what cannot be tested should not cost an hour
    if experiment.select:
        check_select(world, streams, experiment.select)
    return _Ready(world, worker, engine, streams, time.perf_counter() - began)


def _finish(folder: store.RunFolder, experiment: Experiment, watch: Watch) -> Table:
    """From whatever the folder holds to a finished run."""
    folder.check_started()
    if experiment.backend.conducted() is not None:
        _ready(experiment)
        return _hand_over(folder, experiment, watch)
    with store.locked(folder.path):
        with failures.of_earlier(folder.path):
            ready = _ready(experiment, store.secrets.read(folder.path), old=folder.state.exists())
        assert ready is not None
        return _finish_here(folder, experiment, watch, ready)


def _finish_here(folder: store.RunFolder, experiment: Experiment, watch: Watch, ready: _Ready) -> Table:
    """The same in this process, with what the experiment was built into."""
    began = time.perf_counter()
    world, worker, engine, streams, seconds = ready
    folder.trains(world.content, engine.tasks)
    folder.sweep()
    if worker.secret is not None and not (folder.path / store.secrets.NAME).exists():
        store.secrets.keep(folder.path, worker.secret)
    state = loop.start(worker, engine, world.clients)
    state = folder.restore(state, experiment.identities()) or state
    built = time.perf_counter()
    if watch.warns and engine.device.type == "cpu":  # on a GPU, another shape would be recorded for it
        for name, guess in slow(worker, world.clients, by_name(experiment.adapters), streams).items():
            watch.slow(name, guess)
    look = look_of(experiment, worker, engine, streams) if experiment.analysis else None
    fit = train_from(experiment, world, worker, engine, state, watch, folder, look)
    folder.log(fit.state)
    trained = time.perf_counter()
    kept: Traces | None = {} if experiment.analysis else None
    costs: dict[str, Cost] = {}
    table, cards = evaluated(fit, None, streams, None, watch, kept, costs)
    chosen = selected(fit, streams, experiment.select) if experiment.select else None
    if kept is not None:
        meanings = {name: a.traces for name, a in by_name(experiment.adapters).items()}
        found = {**summary(kept, meanings, engine.device), "estimates": of_built(fit, None, streams, None).to_dict()}
        folder.keep_analysis(kept, found, experiment.seed, fit.state.round)
    timings = {
        "build_seconds": seconds + built - began,
        **folder.pace_so_far(),
        "evaluate_seconds": time.perf_counter() - trained,
    }
    ended = loop.with_faults(fit.state, engine.missed())
    results = {
        "label": experiment.label,
        "seed": experiment.seed,
        "command": store.command_line(),
        "table": list(table.rows),
        "refused": list(table.refused),
        **({"selected": chosen.to_dict()} if chosen is not None else {}),
        "cost": cost_card(fit),
        **faults_of(ended, worker),
        "data": {**world.card(), **dealing(experiment, world), "streams": cards},
        "timings": {k: v if v is None else round(v, 4) for k, v in timings.items()},
        "serving": {name: served(cost) for name, cost in costs.items()},
        "pictures": samples(world, {name: stream for name, (_, stream) in streams.items()}),
    }
    engine.close()
    folder.failed.unlink(missing_ok=True)
    folder.keep_results(store.without_places(results))
    store.write(folder.report, render([folder.load()]))
    return table


def _hand_over(folder: store.RunFolder, experiment: Experiment, watch: Watch) -> Table:
    """Let another process finish the run, and follow it; one that is at it already is followed, not started again."""
    module, _, name = str(experiment.backend.conducted()).partition(":")
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
    with store.locked(path):
        store.refuse_overwrite(path, overwrite)  # again: another process may have been at work here until now
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
    table, failed = Table(), dict[str, str]()
    trained: dict[str, Path] = {}
    watch.suite(len(experiments))
    try:
        train_seeds(index.runs(), experiments, watch)
    except ArithmeticError as e:  # of one of the seeds; below it is noted, and the others end
        log.info("trained one by one: %s", e)
    for path, experiment in zip(index.runs(), experiments, strict=True):
        folder, training = store.RunFolder(path), experiment.history_hash()
        if folder.finished:
            table += _read(folder)
        elif (reason := failures.reason_of(path)) is not None:
            failed[path.name] = reason
        else:
            with naming(path.name), failures.noted(path, failed):
                if folder.state.exists():
                    table += _finish(folder, experiment, watch)
                else:
                    table += _run(experiment, path, True, watch, trained.get(training), alone=False)
        trained.setdefault(training, path)
        watch.done()
    if len(failed) < len(experiments):
        report(index.path, out=index.path / "report.html")
    if failed:
        raise failures.RunsFailed(index.path, failed, table)
    return table


def _read(folder: store.RunFolder) -> Table:
    """The table of a finished run. Where its process ended before it wrote the report, that is written."""
    if not folder.report.exists() and os.access(folder.path, os.W_OK):
        report(folder.path, out=folder.report)
    return stored_table(folder)


def stored_table(folder: store.RunFolder) -> Table:
    """The table of a finished run."""
    results = folder.load()["results"]
    with store.reading(folder.results, "run it again with --overwrite"):
        return Table(tuple(results["table"]), tuple(results["refused"]))


def resume(path: str | Path, watch: Watch | None = None, again: bool = False, **given: Any) -> Table:
    """Go on with a run, or a folder of runs, from its last checkpoint; a finished one is only checked and read, and
    gets its report where that is missing. In a folder of runs, those whose training diverged are left as they are, or
    trained `again` from their first round.

    `given` replaces fields that config.json cannot hold; with `trust=True`, it may name your own classes.
    """
    watch, root = watch or Watch(), Path(path)
    if (root / "index.json").exists():
        index = store.IndexFolder(root)
        experiments = index.experiments(**given)
        with store.locked(root):
            for run_path in index.runs() if again else ():
                if failures.reason_of(run_path) is not None:
                    store.RunFolder(run_path).clear()
            return _finish_index(index, experiments, watch)
    folder = store.RunFolder(root)
    experiment = folder.experiment(**given)
    if again and folder.failed.exists() and not folder.finished:
        return _run(experiment, root, True, watch, None)
    return _read(folder) if folder.finished else _finish(folder, experiment, watch)


def load(path: str | Path, **given: Any) -> Fit:
    """A trained experiment from its run folder; `given` supplies Python objects that config.json cannot hold.

    With `trust=True`, or a list of `module:Class`, config.json may name your own classes, which are then imported.
    """
    folder = store.RunFolder(Path(path))
    experiment = folder.experiment(**given)
    with failures.of_earlier(folder.path):
        world, worker, engine = build(experiment, store.secrets.read(folder.path), old=folder.state.exists())
    like = loop.start(worker, engine, world.clients)
    folder.trains(None, engine.tasks)
    state = folder.restore(like, experiment.identities())
    if state is None:
        raise store.RunError(f"{folder.state} does not exist: nothing was trained yet; try `acclimate resume {path}`")
    return Fit(experiment, world, worker, engine, state)


def report(*runs: str | Path, out: str | Path, more: Mapping[str, str] | None = None, selection: str = "last") -> Path:
    """One HTML page over run folders, or folders of them; `more` are further sections of it, by their heading.

    Where `out` ends in .tex, .md or .csv, the table alone is written, of the round that `selection` names.
    """
    if not runs:
        raise ValueError("report: no run is named; write for example ac.report('runs/first', out='report.html')")
    ending = ending_of(out, selection)
    folders = [f for r in runs for f in store.find_runs(Path(r))]
    finished = [f for f in folders if f.finished]
    if not finished:
        where = ", ".join(map(str, runs))
        raise store.RunError(
            f"no finished run in {where} ({len(folders)} not finished); go on with `acclimate resume {runs[0]}`"
        )
    left = [f.path.name for f in folders if not f.finished]
    target, loaded = Path(out), [f.load() for f in finished]
    with store.reading(finished[0].path if len(finished) == 1 else Path(runs[0]), "run it again with --overwrite"):
        table = ending in ENDINGS
        text = saved(collect(loaded), ending, selection) if table else render(loaded, more=more, unfinished=left)
    store.write(target, text)
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
