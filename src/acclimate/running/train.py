"""Experiments from their first round to their last, alone or several in one vmap."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from dataclasses import replace
from typing import Any

from .. import store
from ..backends import Auto, Vmap
from ..backends.vmap.lanes import Lane, Lanes
from ..core import fit as loop
from ..core.backend import Engine
from ..core.fit import State
from ..core.hetero import Hetero
from ..core.shards import Shards
from ..core.worker import Worker
from ..data import World
from ..experiment.record import Experiment
from .build import Fit, Interrupted, build, device_of
from .evaluate import Look, look_of, streams_of
from .watch import Watch


def train(experiment: Experiment, watch: Watch | None = None) -> Fit:
    """Train, in memory. See `run` for checkpoints and a run folder."""
    world, worker, engine = build(experiment)
    start = loop.start(worker, engine, world.clients)
    look = look_of(experiment, worker, engine, streams_of(world, experiment.streams)) if experiment.analysis else None
    return train_from(experiment, world, worker, engine, start, watch or Watch(), None, look)


def train_together(experiments: Sequence[Experiment], watch: Watch | None = None) -> list[Fit]:
    """Train experiments that differ in seed, in how data is dealt or in the domains held out. On a GPU they are
    vectorised; the numbers are those of `train`."""
    watch = watch or Watch()
    if not can_join(experiments):
        return [train(e, watch) for e in experiments]
    parts = [build(e) for e in experiments]
    joint = lanes_of(experiments, parts)
    states, seconds = train_lanes(experiments, joint, [None] * len(parts), watch)
    made = enumerate(zip(experiments, parts, states, strict=True))
    return [Fit(e, *part, state, seconds, (joint, i)) for i, (e, part, state) in made]


def can_join(experiments: Sequence[Experiment]) -> bool:
    """Whether these differ in no more than their seed, partition and held-out domains, and a GPU would run them
    vectorised."""
    first = experiments[0]
    alike = all(replace(e, seed=first.seed, data=_dealt_as(e.data, first.data)) == first for e in experiments)
    vectorised = isinstance(first.backend, Auto | Vmap) and device_of(first.device).type == "cuda"
    backend = first.backend
    far = isinstance(backend, Vmap) and (backend.private == "mapped" or backend.examples == "host")
    one_model = not isinstance(first.method, Hetero)
    return len(experiments) > 1 and alike and vectorised and not far and one_model and not first.analysis


def _dealt_as(data: Any, other: Any) -> Any:
    """`data` with the partition of `other`, where both are of one kind, and with its held-out domains: which examples
    clients have may differ, how many clients there are may not."""
    own, theirs = getattr(data, "partition", None), getattr(other, "partition", None)
    if own is None or type(own) is not type(theirs):
        return data
    return replace(data, partition=theirs, held_out=other.held_out)


def lanes_of(experiments: Sequence[Experiment], parts: Sequence[tuple[World, Worker, Engine]]) -> Lanes:
    """One engine for the clients of all."""
    e = experiments[0]
    lanes = [Lane(worker, w.shards(w.train), w.shards(w.val)) for w, worker, _ in parts]
    return Lanes(lanes, device_of(e.device), e.backend if isinstance(e.backend, Vmap) else Vmap())


def train_lanes(
    experiments: Sequence[Experiment], joint: Lanes, folders: Sequence[store.RunFolder | None], watch: Watch
) -> tuple[list[State], tuple[float, ...]]:
    """Train all from their first round to their last, in lanes of one engine; folders get their checkpoints, and one
    more where Ctrl-C ends it, as `Interrupted`."""
    e, states, seconds = experiments[0], joint.start(), []
    schedule = loop.Schedule(e.rounds, joint.clients, e.cohort_size, e.eval_every)
    watch.training(f"{e.label}, {len(experiments)} seeds", e.seed, 0, e.rounds)

    def save() -> int:
        for experiment, folder, state in zip(experiments, folders, states, strict=True):
            if folder is not None:
                folder.save(state, experiment.training_hash())
        return states[0].round

    saved, began = 0, time.perf_counter()
    try:
        for states in joint.rounds(schedule, states):
            seconds.append(time.perf_counter() - began)
            watch.round(states[0])
            if states[0].round % e.checkpoint_every == 0 or states[0].round == e.rounds:
                saved = save()
            began = time.perf_counter()
    except KeyboardInterrupt:
        if not (kept := [f for f in folders if f is not None]):
            raise
        if states[0].round > saved:
            save()
        raise Interrupted(kept[0].path.parent, states[0].round) from None
    return states, tuple(seconds)


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
    """Train on from a state. A folder gets checkpoints, and one more where Ctrl-C ends it, as `Interrupted`."""
    schedule = loop.Schedule(experiment.rounds, world.clients, experiment.cohort_size, experiment.eval_every)
    training, seconds = experiment.training_hash(), []
    watch.training(experiment.label, experiment.seed, state.round, experiment.rounds)
    saved = state.round
    began = time.perf_counter()
    try:
        for state in _rounds(worker, engine, schedule, world.shards(world.val), state, look):
            seconds.append(time.perf_counter() - began)
            watch.round(state)
            if folder is not None and (
                state.round % experiment.checkpoint_every == 0 or state.round == experiment.rounds
            ):
                folder.save(state, training)
                saved = state.round
            began = time.perf_counter()
    except KeyboardInterrupt:
        if folder is None:
            raise
        if state.round > saved:
            folder.save(state, training)
        raise Interrupted(folder.path, state.round) from None
    return Fit(experiment, world, worker, engine, state, tuple(seconds))


def _rounds(
    worker: Worker, engine: Engine, schedule: loop.Schedule, val: Shards, state: State, look: Look | None
) -> Iterator[State]:
    """The round loop. What `look` sees goes into the history, so that it is checkpointed and resumed with the rest."""
    while state.round < schedule.rounds:
        for state in loop.rounds(worker, engine, schedule, val, state):
            if look is not None and schedule.evaluates(state.round - 1):
                row = {**state.history[-1], **look(state)}
                state = replace(state, history=(*state.history[:-1], row))
                yield state
                break  # and let the loop go on from the state with the wider row
            yield state
