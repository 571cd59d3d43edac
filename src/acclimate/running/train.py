"""Experiments from their first round to their last, alone or several in one vmap."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from .. import store
from ..backends import Auto, Vmap
from ..backends.vmap.engine import VmapEngine
from ..backends.vmap.lanes import Lane, one_task
from ..core import Engine, State, Worker
from ..core import fit as loop
from ..core.lanes import varied
from ..core.vectorised import CannotVectorise
from ..data import World
from ..experiment import Experiment
from ..ops.devices import device_of
from .build import Fit, Interrupted, build
from .evaluate import Look, look_of, streams_of
from .watch import Watch

log = logging.getLogger("acclimate")


def train(experiment: Experiment, watch: Watch | None = None) -> Fit:
    """Train, in memory. See `run` for checkpoints and a run folder."""
    world, worker, engine = build(experiment)
    start = loop.start(worker, engine, world.clients)
    look = look_of(experiment, worker, engine, streams_of(world, experiment.streams)) if experiment.analysis else None
    return train_from(experiment, world, worker, engine, start, watch or Watch(), None, look)


def train_together(experiments: Sequence[Experiment], watch: Watch | None = None) -> list[Fit]:
    """Train experiments that differ in seed, in how data is dealt, in the domains held out or in numbers of the method,
    such as its learning rate. On a GPU they are vectorised; the numbers are those of `train`."""
    watch = watch or Watch()
    parts = [build(e) for e in experiments] if can_join(experiments, numbers=True) else []
    if not vectorised(parts):
        return [train(e, watch) for e in experiments]
    try:
        return train_lanes(experiments, parts, [None] * len(experiments), watch)
    except CannotVectorise as reason:
        log.info("trained one by one: %s", reason)
        return [train(e, watch) for e in experiments]


def vectorised(parts: Sequence[tuple[World, Worker, Engine]]) -> bool:
    """Whether what `build` made runs as one vmap: a model from elsewhere may not, nor do numbers that each seed scales
    by its own training rows."""
    if not parts or not all(isinstance(engine, VmapEngine) for _, _, engine in parts):
        return False
    return one_task([worker.task for _, worker, _ in parts])


def can_join(experiments: Sequence[Experiment], numbers: bool = False) -> bool:
    """Whether these differ in no more than their seed, partition and held-out domains, or in `numbers` of the method
    too, and a GPU would run them vectorised."""
    first = experiments[0]
    if numbers and varied([e.method for e in experiments]) is not None:
        experiments = [replace(e, method=first.method) for e in experiments]
    alike = all(replace(e, seed=first.seed, data=_dealt_as(e.data, first.data)) == first for e in experiments)
    vectorised = isinstance(first.backend, Auto | Vmap) and device_of(first.device).type == "cuda"
    backend = first.backend
    far = isinstance(backend, Vmap) and (backend.private == "mapped" or backend.examples == "host")
    one_model = not first.method.several_models
    # a key is of one run, and secret cohorts have any number of clients
    alone = first.analysis or any(f.wants_secret or f.cohort_key(bytes(32), 0) is not None for f in first.filters)
    return len(experiments) > 1 and alike and vectorised and not far and one_model and not alone


def _dealt_as(data: Any, other: Any) -> Any:
    """`data` with the partition of `other`, where both are of one kind, and with its held-out domains: which examples
    clients have may differ, how many clients there are may not."""
    own, theirs = getattr(data, "partition", None), getattr(other, "partition", None)
    if own is None or type(own) is not type(theirs):
        return data
    return replace(data, partition=theirs, held_out=other.held_out)


def train_lanes(
    experiments: Sequence[Experiment],
    parts: Sequence[tuple[World, Worker, Engine]],
    folders: Sequence[store.RunFolder | None],
    watch: Watch,
) -> list[Fit]:
    """Train what `build` made of experiments from their first round to their last, in lanes of one engine."""
    engine = open_lanes(experiments, parts)
    states = loop.start_together([worker for _, worker, _ in parts], engine, parts[0][0].clients)
    fits = [
        Fit(e, *part, state, lane=(engine, i))
        for i, (e, part, state) in enumerate(zip(experiments, parts, states, strict=True))
    ]
    return _train(fits, engine, folders, watch)


def train_seeds(paths: Sequence[Path], experiments: Sequence[Experiment], watch: Watch) -> None:
    """Where a GPU can, train the seeds of each experiment together; their folders then hold a finished training.

    Where the numbers of one seed break down, all of its group are left at their last checkpoints, and the error is
    raised when the other groups have trained.
    """
    groups: dict[str, list[tuple[Path, Experiment]]] = {}
    broken: list[ArithmeticError] = []
    seen: set[str] = set()  # a training that several runs share is of the first of them
    for path, e in zip(paths, experiments, strict=True):
        folder, training = store.RunFolder(path), e.history_hash()
        if not (training in seen or folder.finished or folder.state.exists() or folder.failed.exists()):
            groups.setdefault(replace(e, seed=0).history_hash(), []).append((path, e))
        seen.add(training)
    for members in groups.values():
        same = [e for _, e in members]
        parts = [build(e) for e in same] if can_join(same) else []
        if vectorised(parts):
            device = device_of(same[0].device)
            folders = [store.RunFolder.create(p, e, device, overwrite=True) for p, e in members]
            for folder, (world, _, engine) in zip(folders, parts, strict=True):
                folder.trains(world.content, engine.tasks)
            try:
                train_lanes(same, parts, folders, watch)
            except ArithmeticError as e:
                broken.append(e)
    for error in broken:
        raise error


def open_lanes(experiments: Sequence[Experiment], parts: Sequence[tuple[World, Worker, Engine]]) -> Engine:
    """One engine for the clients of all these experiments, each of which is a lane of it."""
    e = experiments[0]
    backend = e.backend if isinstance(e.backend, Vmap) else Vmap()
    lanes = [Lane(worker, world.shards(world.train)) for world, worker, _ in parts]
    return backend.open_lanes(lanes, device_of(e.device))


def train_from(
    experiment: Experiment,
    world: World,
    worker: Worker,
    engine: Engine,
    state: State,
    watch: Watch,
    folder: store.RunFolder | None,
    look: Look | None = None,
) -> Fit:
    """Train on from a state."""
    return _train([Fit(experiment, world, worker, engine, state)], engine, [folder], watch, look)[0]


def _train(
    fits: Sequence[Fit],
    engine: Engine,
    folders: Sequence[store.RunFolder | None],
    watch: Watch,
    look: Look | None = None,
) -> list[Fit]:
    """Train one or more lanes of an engine on to the last round.

    Folders get checkpoints, and one more where Ctrl-C ends it, as `Interrupted`.
    """
    e, states = fits[0].experiment, [f.state for f in fits]
    schedule = loop.RoundPlan(e.rounds, fits[0].world.clients, e.cohort_size, e.eval_every)
    label = e.label if len(fits) == 1 else f"{e.label}, {len(fits)} seeds"
    watch.training(label, e.seed, states[0].round, e.rounds)
    kept = [folder for folder in folders if folder is not None]

    before = [folder.pace_so_far()["train_seconds"] for folder in kept]

    def save(states: list[State]) -> None:
        median = sorted(rounds.seconds)[len(rounds.seconds) // 2]
        for own, earlier in zip(kept, before, strict=True):  # first: a checkpoint of the last round is not followed
            own.keep_pace(round(earlier + sum(rounds.seconds), 4), round(median, 4), len(fits))
        for folder, fit, state in zip(folders, fits, states, strict=True):
            if folder is not None:
                folder.save(state, fit.experiment.identity(), last=state.round == fit.experiment.rounds)

    rounds = Rounds(e.rounds, e.checkpoint_every, watch, save if kept else None)
    try:
        states = rounds.run(_rounds(fits, engine, schedule, states, look), states)
    except KeyboardInterrupt:
        if not kept:
            raise
        raise Interrupted(kept[0].path if len(fits) == 1 else kept[0].path.parent, rounds.done) from None
    return [replace(f, state=s, seconds=tuple(rounds.seconds)) for f, s in zip(fits, states, strict=True)]


class Rounds:
    """Follows training from round to round: times it, shows it, and saves it every `every` rounds and at its end.

    It follows the states of one training, or of several that go on together. Where Ctrl-C ends them, the last whole
    round is saved before `KeyboardInterrupt` goes on.
    """

    def __init__(self, last: int, every: int, watch: Watch, save: Callable[[list[State]], None] | None) -> None:
        self.last, self.every, self.watch, self.save = last, every, watch, save
        self.seconds: list[float] = []
        """Wall-clock seconds of every round."""
        self.done = 0
        """The round that was finished last."""

    def run(self, rounds: Iterable[list[State]], start: list[State]) -> list[State]:
        """Go through what `rounds` yields, from `start` on; the states after the last round."""
        states, saved, began = start, start[0].round, time.perf_counter()
        self.done = saved
        try:
            for states in rounds:
                self.seconds.append(time.perf_counter() - began)
                self.done = states[0].round
                self.watch.round(states[0])
                if self.save is not None and (self.done % self.every == 0 or self.done == self.last):
                    self.save(states)
                    saved = self.done
                began = time.perf_counter()
        except KeyboardInterrupt:
            if self.save is not None and self.done > saved:
                self.save(states)
            raise
        return states


def _rounds(
    fits: Sequence[Fit], engine: Engine, schedule: loop.RoundPlan, states: list[State], look: Look | None
) -> Iterator[list[State]]:
    """The round loop. What `look` sees goes into the history, so that it is checkpointed and resumed with the rest."""
    workers, vals = [f.worker for f in fits], [f.world.shards(f.world.val) for f in fits]
    while states[0].round < schedule.rounds:
        for states in loop.rounds_together(workers, engine, schedule, vals, states):
            if look is not None and schedule.evaluates(states[0].round - 1):
                states = [_widened(s, look(s)) for s in states]
                yield states
                break  # and let the loop go on from the states with the wider rows
            yield states


def _widened(state: State, more: dict[str, Any]) -> State:
    """The state with more columns in the last row of its history."""
    return replace(state, history=(*state.history[:-1], {**state.history[-1], **more}))
