"""Run a recipe: train what its cells share, test it as each row says, and set the results beside the published numbers.

Below the output folder, `trainings/HASH.json` is the record of one training and seed with all of its tests, and
`trainings/HASH.safetensors` its state: what is finished is not run again, also where another recipe wants it, and a
training that was cut short goes on from its last checkpoint. `PAPER/TABLE-SCALE.json` and `.md` are the results.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from .. import store
from ..core import State
from ..core import fit as loop
from ..data import World
from ..data.features import Features
from ..eval.fairness import parameters_sent, parameters_trained
from ..experiment import ConfigError, Experiment, encode
from ..models.frozen import Frozen
from ..running import run as api
from ..running.watch import Watch
from .planning import Plan, widened
from .record import Cell, Training
from .results import Found, has, held, write
from .testing import Server, Test, finished, seen, test_of

TRAINING_SCHEMA = "acclimate.training/1"
CHECKPOINT = 50
"""Rounds between two checkpoints."""


def run(plan: Plan, out: Path, seeds: Sequence[int] = (0,), device: str = "auto", watch: Watch | None = None) -> Any:
    """Run what is not there yet and write the results; they are returned as results JSON."""
    if not seeds:
        raise ConfigError("seeds=() must name at least one")
    watch = watch or Watch()
    began, found = time.perf_counter(), Found()
    waiting = plan.trainings
    watch.suite(len(waiting) * len(seeds))
    for training, cells in waiting.items():
        for seed, record in zip(seeds, _records(training, cells, seeds, device, out, watch), strict=True):
            found[training, seed] = record
            watch.done()
    wide = _with_earlier(plan, out, device, found)
    return write(wide, sorted({seed for _, seed in found}), found, out, time.perf_counter() - began)


def _with_earlier(plan: Plan, out: Path, device: str, found: Found) -> Plan:
    """The plan with the rows of results that are there already; puts their records of the same settings into `found`.

    So a run of some rows, or of fewer seeds, adds to the table and takes nothing from it.
    """
    rows, seeds = held(plan, out)
    wide = widened(plan, rows)
    for training, cells in wide.trainings.items():
        for seed in (s for s in seeds if (training, s) not in found):
            devices = dict.fromkeys((device, "auto", "cpu", "cuda"))  # the rows may have run elsewhere
            records = (_read(_record_of(training.experiment(seed, name), out)) for name in devices)
            if record := next((r for r in records if any(has(r, c) for c in cells)), None):
                found[training, seed] = record
    return wide


def _record_of(experiment: Experiment, out: Path) -> Path:
    return out / "trainings" / f"{experiment.training_hash()}.json"


def _records(
    training: Training, cells: Sequence[Cell], seeds: Sequence[int], device: str, out: Path, watch: Watch
) -> list[dict[str, Any]]:
    """The records of a training for every seed, with all tests that the cells need."""
    tests = list(dict.fromkeys(test_of(c) for c in cells))
    whole = any(c.measure.startswith("similarity") for c in cells)
    experiments = [training.experiment(seed, device) for seed in seeds]
    paths = [_record_of(e, out) for e in experiments]
    records = [_read(path) for path in paths]
    todo = [i for i, record in enumerate(records) if not _complete(record, tests, whole, training)]
    together = _together([experiments[i] for i in todo], training, [paths[i] for i in todo], watch)
    for place, i in enumerate(todo):
        records[i] = _finish(experiments[i], training, tests, whole, paths[i], watch, together.get(place))
    for i, e in enumerate(experiments):
        if i not in todo:
            watch.training(e.label, e.seed, e.rounds, e.rounds)
    return records


def _read(path: Path) -> dict[str, Any]:
    record: dict[str, Any] = store.read_json(path) if path.exists() else {}
    if record and record.get("schema") != TRAINING_SCHEMA:
        raise store.RunError(
            f"{path}: schema={record.get('schema')!r} must be '{TRAINING_SCHEMA}'; choose another --out"
        )
    return record


def _complete(record: dict[str, Any], tests: Iterable[Test], whole: bool, training: Training) -> bool:
    """Whether a record has all that is asked for."""
    held = record.get("tests", {})
    return (
        bool(record.get("finished"))
        and all(finished(held.get(t.name, {}), training.looks) for t in tests)
        and (not whole or "prototypes" in record)
    )


def _together(experiments: list[Experiment], training: Training, paths: list[Path], watch: Watch) -> dict[int, float]:
    """On a GPU, train several seeds at once and leave their states as checkpoints; nothing where that is no gain."""
    fresh = [i for i, path in enumerate(paths) if not path.with_suffix(".safetensors").exists()]
    if len(fresh) < 2 or training.every is not None or api.device_of(experiments[0].device).type != "cuda":
        return {}
    began = time.perf_counter()
    fits = api.train_together([experiments[i] for i in fresh], watch)
    seconds = time.perf_counter() - began
    for i, fit in zip(fresh, fits, strict=True):
        store.write(paths[i].with_suffix(".safetensors"), _packed(fit.state, fit.experiment, fit.world))
        fit.engine.close()
    return dict.fromkeys(fresh, seconds / len(fresh))


def _finish(
    e: Experiment, training: Training, tests: list[Test], whole: bool, path: Path, watch: Watch, given: float | None
) -> dict[str, Any]:
    """Train from the last checkpoint, test, and write the record."""
    world, worker, engine = api.build(e)
    server = Server(world, worker, engine, tests)
    state, curves = _restored(e, training, server, path, loop.start(worker, engine, world.clients))
    schedule = loop.Schedule(e.rounds, world.clients, e.cohort_size, e.rounds)
    watch.training(e.label, e.seed, state.round, e.rounds)
    began, seconds = time.perf_counter(), []
    for state in loop.rounds(worker, engine, schedule, world.shards(world.val), state):
        seconds.append(time.perf_counter() - began)
        watch.round(state)
        if state.round in training.looks:
            for name, point in server.look(state).items():
                curves[name].append(point)
        if state.round % CHECKPOINT == 0 or state.round == e.rounds:
            _save(path, state, e, world, curves)
        began = time.perf_counter()
    watch.testing(e.label, e.seed, len(tests))
    tested = time.perf_counter()
    results = server.tested(state, watch)
    for name, curve in curves.items():
        results[name]["curve"] = curve
    old = _read(path)
    record = {
        **_about(e, world, state, worker.task, seconds or [0.0]),
        "train_seconds": round(sum(seconds) or given or old.get("train_seconds", 0.0), 2),
        "test_seconds": round(time.perf_counter() - tested, 2),
        "finished": True,
        "tests": _merged(old.get("tests", {}), results),
    }
    if not seconds:  # trained before, or with other seeds: its times are known from then
        record["seconds"] = old.get("seconds") or (given or 0.0) / e.rounds
    if whole:
        mine = state.mine.saved()
        record["prototypes"] = {"sets": mine["prototypes"].tolist(), "counts": mine["counts"].tolist()}
    engine.close()
    store.write(path, json.dumps(record, indent=1) + "\n")
    return record


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The tests of a record and new ones: what a stopped run left is dropped, a curve that was there stays."""
    kept = {name: test for name, test in old.items() if finished(test, frozenset())}
    return kept | {name: kept.get(name, {}) | test for name, test in new.items()}


Curves = dict[str, list[list[float]]]


def _restored(e: Experiment, training: Training, server: Server, path: Path, start: State) -> tuple[State, Curves]:
    """The last checkpoint and the curves up to it; from the first round where a curve lacks looks up to there.

    So it is where other tests are asked for, where a run without looks went on, and where one that began anew died
    before its first state was written.
    """
    state = path.with_suffix(".safetensors")
    curves: Curves = {t.name: [] for t in server.tests} if training.every is not None else {}
    if not state.exists():
        return start, curves
    saved = store.unpack(state, start, e.identities(), server.world.content)
    held, looks = _read(path).get("tests", {}), {r for r in training.looks if r <= saved.round}
    if not all(seen(held.get(name, {}), looks) for name in curves):
        return start, curves
    return saved, {name: [p for p in held.get(name, {}).get("curve", ()) if p[0] <= saved.round] for name in curves}


def _packed(state: State, e: Experiment, world: World) -> bytes:
    return store.pack(state, e.identity(), world.content)


def _save(path: Path, state: State, e: Experiment, world: World, curves: Curves) -> None:
    """A checkpoint; curves so far stand in the record, which is not `finished` yet.

    The record comes first: a curve that is ahead of its state is cut, and one that is behind lacks looks for good.
    """
    if curves:
        tests = {**_read(path).get("tests", {}), **{name: {"curve": curve} for name, curve in curves.items()}}
        store.write(path, json.dumps({"schema": TRAINING_SCHEMA, "finished": False, "tests": tests}) + "\n")
    store.write(path.with_suffix(".safetensors"), _packed(state, e, world))


def _about(e: Experiment, world: World, state: State, task: Any, seconds: list[float]) -> dict[str, Any]:
    """What was trained, on what, where, and what it costs a client."""
    card, encoder = world.card(), e.data.encoder if isinstance(e.data, Features) else None
    hashes = {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()}
    domains, of = world.examples.domains, world.examples.domain
    return {
        "schema": TRAINING_SCHEMA,
        "label": e.label,
        "seed": e.seed,
        "rounds": e.rounds,
        "training_hash": e.training_hash(),
        "experiment": encode(e),
        "data_hashes": hashes,
        "client_domains": [domains[int(of[rows[0]])] for rows in world.train],
        "command": store.command_line(),
        "environment": _environment(e.device),
        "sent": parameters_sent(state.cost["message"]),
        "trained": parameters_trained(task),
        "fixed": encoder.fixed_parameters() if isinstance(encoder, Frozen) else 0,
        "seconds": round(statistics.median(seconds), 4),
    }


def _environment(device: str) -> dict[str, Any]:
    env = store.environment(api.device_of(device))
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    return env
