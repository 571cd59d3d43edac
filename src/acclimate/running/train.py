"""Experiments from their first round to their last, alone or several in one vmap."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from .. import store
from ..backends import Auto, Vmap
from ..backends.vmap.lanes import Lane, Lanes
from ..core import Engine, Hetero, Shards, State, Worker
from ..core import fit as loop
from ..data import World
from ..experiment import Experiment
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
    """Train all from their first round to their last, in lanes of one engine; folders get their checkpoints."""
    e, states = experiments[0], joint.start()
    schedule = loop.Schedule(e.rounds, joint.clients, e.cohort_size, e.eval_every)
    watch.training(f"{e.label}, {len(experiments)} seeds", e.seed, 0, e.rounds)
    kept = [f for f in folders if f is not None]

    def save(states: list[State]) -> None:
        for experiment, folder, state in zip(experiments, folders, states, strict=True):
            if folder is not None:
                folder.save(state, experiment.identity())

    rounds = Rounds(e.rounds, e.checkpoint_every, watch, save if kept else None)
    try:
        return rounds.run(joint.rounds(schedule, states), states), tuple(rounds.seconds)
    except KeyboardInterrupt:
        if not kept:
            raise
        raise Interrupted(kept[0].path.parent, rounds.done) from None


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
    e, training = experiment, experiment.identity()
    schedule = loop.Schedule(e.rounds, world.clients, e.cohort_size, e.eval_every)
    watch.training(e.label, e.seed, state.round, e.rounds)
    save = None if folder is None else (lambda states: folder.save(states[0], training))
    rounds = Rounds(e.rounds, e.checkpoint_every, watch, save)
    states = _rounds(worker, engine, schedule, world.shards(world.val), state, look)
    try:
        (state,) = rounds.run(([s] for s in states), [state])
    except KeyboardInterrupt:
        if folder is None:
            raise
        raise Interrupted(folder.path, rounds.done) from None
    return Fit(e, world, worker, engine, state, tuple(rounds.seconds))


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
