"""Run a recipe: train what its cells share, test it as each row says, and set the results beside the published numbers.

Below the output folder, `trainings/HASH.json` is the record of one training and seed with all of its tests, and
`trainings/HASH.safetensors` its state: what is finished is not run again, also where another recipe wants it, and a
training that was cut short goes on from its last checkpoint. `PAPER/TABLE-SCALE.json` and `.md` are the results. On a
GPU, seeds of a training, and trainings that differ in how data is dealt or in what is held out, train in one vmap.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..core import State
from ..core import fit as loop
from ..data import World
from ..data.features import Features
from ..eval.fairness import parameters_sent, parameters_trained
from ..experiment import ConfigError, Experiment, encode
from ..models.frozen import Frozen
from ..running import run as api
from ..running.train import Rounds, can_join, open_lanes
from ..running.watch import Watch
from . import measures
from .planning import Plan
from .probes import Probe, Prober, finished, probe_of, seen
from .record import Cell, Training
from .records import TRAINING_SCHEMA, read, record_of, with_earlier
from .results import Found, write
from .weights import digests

CHECKPOINT = 50
"""Rounds between two checkpoints."""
Curves = dict[str, list[list[float]]]
"""By test: `[round, validation accuracy, accuracy]` at every look."""


@dataclass
class _Job:
    """One seed of a training: what is trained, which tests it needs, and where its record lies."""

    training: Training
    experiment: Experiment
    probes: list[Probe]
    entries: frozenset[str]
    """What is asked for besides tests: the names of `ENTRIES`."""
    path: Path
    record: dict[str, Any] = field(default_factory=dict)

    @property
    def complete(self) -> bool:
        """Whether its record has all that is asked for."""
        tests = self.record.get("tests", {})
        return (
            bool(self.record.get("finished"))
            and all(finished(tests.get(p.name, {}), self.training.looks) for p in self.probes)
            and self.entries <= self.record.keys()
        )


def run(plan: Plan, out: Path, seeds: Sequence[int] = (0,), device: str = "auto", watch: Watch | None = None) -> Any:
    """Run what is not there yet and write the results; they are returned as results JSON."""
    if not seeds:
        raise ConfigError("seeds=() must name at least one")
    watch = watch or Watch()
    began, found = time.perf_counter(), Found()
    jobs = [_job(training, cells, seed, device, out) for training, cells in plan.trainings.items() for seed in seeds]
    watch.suite(len(jobs))
    for _ in (job for job in jobs if job.complete):
        watch.done()
    for group in _groups([job for job in jobs if not job.complete]):
        _finish(group, watch)
    for job in jobs:
        found[job.training, job.experiment.seed] = job.record
    wide = with_earlier(plan, out, device, found)
    return write(wide, sorted({seed for _, seed in found}), found, out, time.perf_counter() - began)


def _job(training: Training, cells: Sequence[Cell], seed: int, device: str, out: Path) -> _Job:
    experiment = training.experiment(seed, device)
    path = record_of(experiment, out)
    entries = frozenset[str]().union(*(measures.entry(c.measure) for c in cells))
    return _Job(training, experiment, list(dict.fromkeys(probe_of(c) for c in cells)), entries, path, read(path))


def _groups(todo: Sequence[_Job]) -> list[list[_Job]]:
    """What trains together: on a GPU all that one vmap can take, elsewhere each by itself."""
    groups: list[list[_Job]] = []
    for job in todo:
        for group in groups:
            other = group[0]
            if other.training.looks == job.training.looks and can_join([other.experiment, job.experiment]):
                group.append(job)
                break
        else:
            groups.append([job])
    return groups


# --- training ---------------------------------------------------------------------------------------------------------


@dataclass
class _Run:
    """A job on its way: what computes and serves, and how far it has come."""

    job: _Job
    world: World
    worker: Any
    engine: Any
    prober: Prober
    state: State
    curves: Curves
    seconds: list[float] = field(default_factory=list)
    """Of every round, shared out among what trained together."""
    together: int = 1

    @classmethod
    def opened(cls, job: _Job) -> _Run:
        """Ready to train, from its last checkpoint where it has one."""
        world, worker, engine = api.build(job.experiment)
        prober = Prober(world, worker, engine, job.probes)
        state, curves = _restored(job, prober, loop.start(worker, engine, world.clients))
        return cls(job, world, worker, engine, prober, state, curves)

    def look(self) -> None:
        """Test the state as it is now, for the learning curves."""
        for name, point in self.prober.look(self.state).items():
            self.curves[name].append(point)
        torch.cuda.empty_cache()  # a look at whole sets takes far more memory than rounds

    def save(self, state: State) -> None:
        """A checkpoint; curves up to it stand in the record, which is not `finished` yet.

        The record comes first: a curve that is ahead of its state is cut, and one that is behind lacks looks for good.
        """
        path = self.job.path
        if self.curves:
            curves = {n: {"curve": [p for p in c if p[0] <= state.round]} for n, c in self.curves.items()}
            body = {"schema": TRAINING_SCHEMA, "finished": False, "tests": {**read(path).get("tests", {}), **curves}}
            store.write(path, json.dumps(body) + "\n")
        packed = store.pack(state, self.job.experiment.identity(), self.world.content)
        store.write(path.with_suffix(".safetensors"), packed)


def _restored(job: _Job, prober: Prober, start: State) -> tuple[State, Curves]:
    """The last checkpoint and the curves up to it; from the first round where a curve lacks looks up to there.

    So it is where other tests are asked for, where a run without looks went on, and where one that began anew died
    before its first state was written.
    """
    state, training = job.path.with_suffix(".safetensors"), job.training
    curves: Curves = {p.name: [] for p in prober.probes} if training.every is not None else {}
    if not state.exists():
        return start, curves
    saved = store.unpack(state, start, job.experiment.identities(), prober.world.content)
    tests, looks = read(job.path).get("tests", {}), {r for r in training.looks if r <= saved.round}
    if not all(seen(tests.get(name, {}), looks) for name in curves):
        return start, curves
    return saved, {name: [p for p in tests.get(name, {}).get("curve", ()) if p[0] <= saved.round] for name in curves}


def _finish(jobs: Sequence[_Job], watch: Watch) -> None:
    """Train from the last checkpoints, test, and write the records; in halves where memory does not suffice."""
    runs: list[_Run] = []
    try:
        for job in jobs:
            runs.append(_Run.opened(job))
        for rounds in sorted({run.state.round for run in runs}):  # lanes of one engine must be equally far
            _train([run for run in runs if run.state.round == rounds], watch)
        for run in runs:
            run.job.record = _tested(run, watch)
            watch.done()
        return
    except torch.OutOfMemoryError:
        if len(jobs) == 1:
            raise
    finally:
        for run in runs:
            run.engine.close()
    runs.clear()
    torch.cuda.empty_cache()
    left = [job for job in jobs if not job.complete]
    half = len(left) // 2
    for some in (left[:half], left[half:]):
        if some:
            _finish(some, watch)


def _train(runs: Sequence[_Run], watch: Watch) -> None:
    """Train to the last round, with looks and checkpoints."""
    e = runs[0].job.experiment
    label = e.label if len(runs) == 1 else f"{e.label}, {len(runs)} together"

    def save(states: list[State]) -> None:
        for run, state in zip(runs, states, strict=True):
            run.save(state)

    watch.training(label, e.seed, runs[0].state.round, e.rounds)
    rounds = Rounds(e.rounds, CHECKPOINT, watch, save)
    rounds.run(_looked_at(runs), [run.state for run in runs])
    for run in runs:
        run.seconds, run.together = [s / len(runs) for s in rounds.seconds], len(runs)


def _looked_at(runs: Sequence[_Run]) -> Iterator[list[State]]:
    """Every run's state after each round, looked at where its training says so."""
    for states in _rounds(runs):
        for run, state in zip(runs, states, strict=True):
            run.state = state
            if state.round in run.job.training.looks:
                run.look()
        yield states


def _rounds(runs: Sequence[_Run]) -> Iterator[list[State]]:
    """Every run's state after each round; several train as lanes of one engine, and each run's own engine serves."""
    first, e = runs[0], runs[0].job.experiment
    if first.state.round == e.rounds:
        return
    schedule = loop.RoundPlan(e.rounds, first.world.clients, e.cohort_size, e.rounds)
    parts = [(run.world, run.worker, run.engine) for run in runs]
    engine = first.engine if len(runs) == 1 else open_lanes([run.job.experiment for run in runs], parts)
    workers, vals = [run.worker for run in runs], [run.world.shards(run.world.val) for run in runs]
    yield from loop.rounds_together(workers, engine, schedule, vals, [run.state for run in runs])


# --- records ----------------------------------------------------------------------------------------------------------


def _tested(run: _Run, watch: Watch) -> dict[str, Any]:
    """Test, and write the record."""
    job, e, began = run.job, run.job.experiment, time.perf_counter()
    watch.testing(e.label, e.seed, len(job.probes))
    results = run.prober.tested(run.state, watch)
    for name, curve in run.curves.items():
        results[name]["curve"] = curve
    old = read(job.path)
    record = {
        **_about(e, run.world, run.state, run.worker.task),
        "seconds": round(statistics.median(run.seconds), 4) if run.seconds else old.get("seconds", 0.0),
        "train_seconds": round(sum(run.seconds), 2) if run.seconds else old.get("train_seconds", 0.0),
        "trained_together": run.together if run.seconds else old.get("trained_together", 1),
        "test_seconds": round(time.perf_counter() - began, 2),
        "finished": True,
        "tests": _merged(old.get("tests", {}), results),
    }
    record |= {name: ENTRIES[name](run) for name in job.entries}
    store.write(job.path, json.dumps(record, indent=1) + "\n")
    return record


def _prototypes(run: _Run) -> dict[str, Any]:
    """Every client's prototypes and how many examples they are of."""
    mine = run.state.mine.saved()
    return {"sets": mine["prototypes"].tolist(), "counts": mine["counts"].tolist()}


def _ensemble(run: _Run) -> dict[str, float]:
    """How often the mean of the clients' logits is right on the public set, whose labels nobody trains with."""
    world: Any = run.world
    y, means = world.examples.y[world.public], run.state.server["logits"]
    return {name: round(float((z.argmax(-1).cpu() == y).double().mean()), 6) for name, z in means.items()}


ENTRIES = {"prototypes": _prototypes, "ensemble": _ensemble}
"""What a record has besides tests, where a measure asks for it (`measures.ENTRIES`)."""


def _merged(old: dict[str, Any], new: dict[str, Any]) -> dict[str, Any]:
    """The tests of a record and new ones: what a stopped run left is dropped, a curve that was there stays."""
    kept = {name: test for name, test in old.items() if finished(test, frozenset())}
    return kept | {name: kept.get(name, {}) | test for name, test in new.items()}


def _about(e: Experiment, world: World, state: State, task: Any) -> dict[str, Any]:
    """What was trained, on what, where, and what it costs a client."""
    card, encoder = world.card(), e.data.encoder if isinstance(e.data, Features) else None
    hashes = {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()}
    domains, of = world.examples.domains, world.examples.domain
    return {
        "schema": TRAINING_SCHEMA,
        "label": e.label,
        "seed": e.seed,
        "rounds": e.rounds,
        "fraction": e.data.fraction,
        "training_hash": e.training_hash(),
        "experiment": encode(e),
        "data_hashes": hashes,
        "weights": digests(e),
        "client_domains": [domains[int(of[rows[0]])] for rows in world.train],
        "command": store.command_line(),
        "environment": _environment(e.device),
        "sent": parameters_sent(state.cost["message"]),
        "trained": parameters_trained(task),
        "fixed": encoder.fixed_parameters() if isinstance(encoder, Frozen) else 0,
    }


def _environment(device: str) -> dict[str, Any]:
    env = store.environment(api.device_of(device))
    env["commit"] = os.environ.get("ACCLIMATE_COMMIT") or env["commit"]
    return env
