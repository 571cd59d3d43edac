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
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

from .. import api, catalogue, store
from ..config import ConfigError, Experiment, encode
from ..core import fit as loop
from ..core.fit import State
from ..core.shards import Shards
from ..core.stream import Protocol
from ..data import World
from ..data.features import Features
from ..eval.analysis import flat
from ..eval.fairness import parameters_sent, parameters_trained
from ..models.frozen import Frozen
from ..shifts import Shift
from ..watch import Watch
from . import measures, needs, published
from .record import Cell, Derived, Named, Recipe, Scale, Training, chosen, trainings

TRAINING_SCHEMA = "acclimate.training/1"
RESULT_SCHEMA = "acclimate.reproduction/1"
CHECKPOINT = 50
"""Rounds between two checkpoints."""


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
        return ", ".join(catalogue.label(p) for p in parts) + (", traced" if self.traced else "")


@dataclass(frozen=True)
class Plan:
    """What is asked for, fitted to the data that is there."""

    recipe: Recipe
    scale: Scale
    cells: tuple[Cell | Derived, ...]
    """Those that can run, and what is derived from them."""
    left_out: dict[str, list[str]]
    """Why some cannot, or run with less: reason to `row, column`."""

    @property
    def trainings(self) -> dict[Training, list[Cell]]:
        """What is trained, and for which cells."""
        return trainings(self.cells)


def plan(recipe: Recipe, scale: Scale, rows: Sequence[str] = ()) -> Plan:
    """What can run of a recipe, and what is missing for the rest."""
    cells: list[Cell | Derived] = []
    left_out: dict[str, list[str]] = {}
    for cell in chosen(recipe, recipe.cells(scale), rows):
        if isinstance(cell, Derived):
            cells.append(cell)
            continue
        fitted, lacks = (None, (cell.missing,)) if cell.missing else needs.fitted(cell)
        for reason in lacks:
            left_out.setdefault(reason, []).append(f"{cell.row}, {cell.column}")
        cells += [fitted] if fitted is not None else []
    return Plan(recipe, scale, tuple(cells), left_out)


def run(plan: Plan, out: Path, seeds: Sequence[int] = (0,), device: str = "auto", watch: Watch | None = None) -> Any:
    """Run what is not there yet and write the results; they are returned as results JSON."""
    if not seeds:
        raise ConfigError("seeds=() must name at least one")
    watch = watch or Watch()
    began, found = time.perf_counter(), dict[tuple[Training, int], dict[str, Any]]()
    waiting = plan.trainings
    watch.suite(sum(t.rounds * len(seeds) for t in waiting))
    for training, cells in waiting.items():
        for seed, record in zip(seeds, _records(training, cells, seeds, device, out, watch), strict=True):
            found[training, seed] = record
        watch.done()
    return _write(plan, seeds, found, out, time.perf_counter() - began)


# --- one training ---------------------------------------------------------------------------------------------------


def _records(
    training: Training, cells: Sequence[Cell], seeds: Sequence[int], device: str, out: Path, watch: Watch
) -> list[dict[str, Any]]:
    """The records of a training for every seed, with all tests that the cells need."""
    tests = list(dict.fromkeys(_test(c) for c in cells))
    whole = any(c.measure.startswith("similarity") for c in cells)
    experiments = [training.experiment(seed, device) for seed in seeds]
    paths = [out / "trainings" / f"{e.training_hash(exact=True)}.json" for e in experiments]
    records = [_read(path) for path in paths]
    todo = [i for i, record in enumerate(records) if not _complete(record, tests, whole, training)]
    together = _together([experiments[i] for i in todo], training, [paths[i] for i in todo], watch)
    for place, i in enumerate(todo):
        records[i] = _finish(experiments[i], training, tests, whole, paths[i], watch, together.get(place))
    for i, e in enumerate(experiments):
        if i not in todo:
            watch.training(e.label, e.seed, e.rounds, e.rounds)
    return records


def _test(cell: Cell) -> Test:
    return Test(cell.personal, cell.adapter, cell.stream, cell.measure.startswith("trace:"))


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
    curves = training.every is None or all("curve" in held.get(t.name, {}) for t in tests)
    return (
        bool(record.get("finished"))
        and all(t.name in held for t in tests)
        and curves
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
        store.write(paths[i].with_suffix(".safetensors"), store.pack(fit.state, fit.experiment.training_hash()))
        fit.engine.close()
    return dict.fromkeys(fresh, seconds / len(fresh))


def _finish(
    e: Experiment, training: Training, tests: list[Test], whole: bool, path: Path, watch: Watch, given: float | None
) -> dict[str, Any]:
    """Train from the last checkpoint, test, and write the record."""
    world, worker, engine = api.build(e)
    server = _Server(world, worker, engine, tests)
    state, curves = _restored(e, training, server, path, loop.start(worker, engine, world.clients))
    schedule = loop.Schedule(e.rounds, world.clients, e.cohort_size, e.rounds)
    watch.training(e.label, e.seed, state.round, e.rounds)
    began, seconds = time.perf_counter(), []
    for state in loop.rounds(worker, engine, schedule, world.shards(world.val), state):
        seconds.append(time.perf_counter() - began)
        watch.round(state)
        if training.every is not None and (state.round % training.every == 0 or state.round == e.rounds):
            for name, point in server.look(state).items():
                curves[name].append(point)
        if state.round % CHECKPOINT == 0 or state.round == e.rounds:
            _save(path, state, e, curves)
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
        "tests": {**old.get("tests", {}), **results},
    }
    if not seconds:  # trained before, or with other seeds: its times are known from then
        record["seconds"] = old.get("seconds") or (given or 0.0) / e.rounds
    if whole:
        record["prototypes"] = {"sets": state.mine["prototypes"].tolist(), "counts": state.mine["counts"].tolist()}
    engine.close()
    store.write(path, json.dumps(record, indent=1) + "\n")
    return record


Curves = dict[str, list[list[float]]]


def _restored(e: Experiment, training: Training, server: _Server, path: Path, start: State) -> tuple[State, Curves]:
    """The last checkpoint and the curves up to it; from the first round where curves of other tests are asked for."""
    state = path.with_suffix(".safetensors")
    curves: Curves = {t.name: [] for t in server.tests} if training.every is not None else {}
    if not state.exists():
        return start, curves
    held = {name: test.get("curve") for name, test in _read(path).get("tests", {}).items()}
    if any(not held.get(name) for name in curves):
        return start, curves
    saved = store.unpack(state, start, e.training_hash())
    return saved, {name: [p for p in held[name] if p[0] <= saved.round] for name in curves}


def _save(path: Path, state: State, e: Experiment, curves: Curves) -> None:
    """A checkpoint; curves so far stand in the record, which is not `finished` yet."""
    store.write(path.with_suffix(".safetensors"), store.pack(state, e.training_hash()))
    if curves:
        tests = {**_read(path).get("tests", {}), **{name: {"curve": curve} for name, curve in curves.items()}}
        store.write(path, json.dumps({"schema": TRAINING_SCHEMA, "finished": False, "tests": tests}) + "\n")


class _Server:
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
        """By test: accuracy, spread and calibration over clients, and every client's accuracy."""
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
                reason = test.adapter.record.refusal(self.worker.task, self.engine.live(models, 0))
                if reason:
                    raise ConfigError(f"{test.name}: {reason}")
                yield test, down, models

    def _met(self, test: Test, down: Any, models: Any) -> Any:
        stream = self.streams[test.stream]
        live = self.engine.join(down, stream.shards.clients) if stream.new else models
        return self._serve(live, stream.shards, test, test.traced)

    def _serve(self, models: Any, shards: Shards, test: Test, trace: bool = False) -> Any:
        """A batch is never longer than the longest stream: a large one stands for the whole set."""
        protocol: Protocol = test.stream.protocol
        longest = max(int(shards.n.max()), 1)
        fits = replace(protocol, batch=min(protocol.batch, longest)) if protocol.batch > longest else protocol
        return self.engine.serve(models, shards, test.adapter.record, fits, trace)


def _mean(metrics: Any) -> float:
    accuracy = metrics["accuracy"][metrics["n"] > 0].double()
    return round(float(accuracy.mean()), 6) if len(accuracy) else 0.0


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
        "seconds": round(sorted(seconds)[len(seconds) // 2], 4),
    }


def _environment(device: str) -> dict[str, Any]:
    env = store.environment(api.device_of(device))
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    return env


# --- the results ----------------------------------------------------------------------------------------------------


def _write(
    plan: Plan, seeds: Sequence[int], found: dict[tuple[Training, int], dict[str, Any]], out: Path, took: float
) -> dict[str, Any]:
    """results JSON and a Markdown table."""
    from .table import markdown

    recipe = plan.recipe
    body = {
        "schema": RESULT_SCHEMA,
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": plan.scale,
        "seeds": list(seeds),
        "command": store.command_line(),
        "environment": next(iter(found.values()), {}).get("environment", {}),
        "published": recipe.published,
        "notes": list(recipe.notes),
        "left_out": [{"reason": reason, "cells": cells} for reason, cells in plan.left_out.items()],
        "seconds": round(took, 1),
        "trainings": sorted({r["training_hash"] for r in found.values()}),
        "cells": _cells(plan, seeds, found),
    }
    place = out / f"{recipe.name}-{plan.scale}.json"
    store.write(place, json.dumps(body, indent=1) + "\n")
    store.write(place.with_suffix(".md"), markdown(body))
    return body


def _cells(plan: Plan, seeds: Sequence[int], found: dict[tuple[Training, int], dict[str, Any]]) -> list[dict[str, Any]]:
    """Ours for every seed beside the published number, in the paper's order."""
    per_seed: list[dict[str, dict[str, float]]] = [{} for _ in seeds]
    out = []
    for cell in plan.cells:
        values = []
        for seed, rows in zip(seeds, per_seed, strict=True):
            value = _ours(cell, seed, rows.setdefault(cell.row, {}), found)
            if value is not None:
                rows[cell.row][cell.column] = value
                values.append(round(value, 4))
        if values:
            out.append(_beside(plan.recipe, cell, values))
    return out


def _ours(
    cell: Cell | Derived, seed: int, row: dict[str, float], found: dict[tuple[Training, int], dict[str, Any]]
) -> float | None:
    if isinstance(cell, Derived):
        return cell.value(row)
    record = found[cell.training, seed]
    other = found[cell.against, seed] if cell.against is not None else None
    return measures.value(cell.measure, record, record["tests"][_test(cell).name], other)


def _beside(recipe: Recipe, cell: Cell | Derived, values: list[float]) -> dict[str, Any]:
    theirs = published.find(recipe.published, cell.key) if recipe.published and cell.key is not None else None
    mean = statistics.fmean(values)
    return {
        "row": cell.row,
        "column": cell.column,
        "percent": not isinstance(cell, Cell) or measures.in_percent(cell.measure),
        "ours": values,
        "mean": round(mean, 4),
        "std": round(statistics.stdev(values), 4) if len(values) > 1 else None,
        "published": None if theirs is None else {"mean": theirs.mean, "std": theirs.std, "doubt": theirs.doubt},
        "difference": None if theirs is None else round(mean - theirs.mean, 4),
    }
