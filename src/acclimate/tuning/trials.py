"""One trial: trainings in run folders, and their score on validation data. Test streams are neither built nor read.

A trial's folder is an ordinary run folder (or, for several seeds, a folder of them) that was trained and not tested:
`acclimate resume` tests it.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch

from .. import store
from ..core import Adapter, NonFinite, State, exchange
from ..core import fit as loop
from ..data import World
from ..eval import Test, stream_accuracy
from ..experiment import ConfigError, Experiment, labels
from ..running import run as api
from ..running.train import can_join
from ..running.watch import Watch
from ..shifts import Natural, NewClients, Shift, UnseenDomain

log = logging.getLogger("acclimate")
AT_ONCE = 16
"""Trainings that share a GPU at most."""


@dataclass(frozen=True)
class Score:
    """The score of one seed."""

    seed: int
    accuracy: float
    """The mean over clients, then over the streams that consist of validation data."""
    round: int
    """The round that validation selected."""
    seconds: float


OTHERS: dict[type[Shift], str] = {
    Natural: "natural streams are a test set of their own",
    UnseenDomain: "a domain that is held out is there for the test alone",
    NewClients: "clients that join later are there for the test alone",
}
"""Streams that bring examples of their own, so that validation examples cannot replace them, and why."""


def check(experiment: Experiment, on: Sequence[Shift]) -> None:
    """Refuse what cannot be searched, before anything is trained."""
    if experiment.backend.conducted() is not None:
        name = labels.name(experiment.backend)
        raise ConfigError(f"backend={name} cannot be searched over, because its clients hold the data; use another")
    for shift in on:
        for part in (shift, *getattr(shift, "parts", ())):
            if why := next((why for kind, why in OTHERS.items() if isinstance(part, kind)), None):
                raise ConfigError(f"--on {labels.name(shift)}: {why}; a search must not look at it")


def check_start(experiment: Experiment, on: Sequence[Shift]) -> None:
    """Refuse streams that validation data cannot make, and an adapter that cannot serve the model; an untrained model
    is enough to find out."""
    world, worker, engine = api.build(experiment)
    try:
        api.streams_of(validation_world(world), on)
        _served(experiment, worker, engine, loop.start(worker, engine, world.clients), _scored_clients(world))
    finally:
        engine.close()


def run(experiments: Sequence[Experiment], path: Path, on: Sequence[Shift], watch: Watch) -> list[Score]:
    """Train every seed from its last checkpoint and score it; nothing is trained twice."""
    folders = _folders(experiments, path)
    _together(experiments, folders, watch)
    return [_score(e, folder, on, watch) for e, folder in zip(experiments, folders, strict=True)]


def _folders(experiments: Sequence[Experiment], path: Path) -> list[store.RunFolder]:
    """The run folders of a trial, as `acclimate run` would lay them out; those that are there stay."""
    if len(experiments) == 1:
        folders = [store.RunFolder(path)]
    else:
        index = store.IndexFolder(path)
        index.plan(list(experiments))
        folders = [store.RunFolder(p) for p in index.runs()]
    for e, folder in zip(experiments, folders, strict=True):
        if not folder.config.exists():
            store.RunFolder.create(folder.path, e, api.device_of(e.device), overwrite=True)
    return folders


def ahead(points: Mapping[Path, Sequence[Experiment]], watch: Watch) -> None:
    """On a GPU, train all trials of a grid that differ in numbers of one method at once, and leave their states as
    checkpoints. Trials that are not among them, or fail, are trained when it is their turn."""
    if not all(_on_gpu(e) for experiments in points.values() for e in experiments):
        return
    groups: list[list[tuple[Experiment, store.RunFolder]]] = []
    for path, experiments in points.items():
        mine = list(zip(experiments, _folders(experiments, path), strict=True))
        fits = (g for g in groups if can_join([g[0][0], *experiments], numbers=True))
        if (group := next(fits, None)) is None:
            groups.append(mine)
        else:
            group += mine
    for group in groups:
        for some in (group[i : i + AT_ONCE] for i in range(0, len(group), AT_ONCE)):
            try:
                _together([e for e, _ in some], [folder for _, folder in some], watch)
            except (NonFinite, ArithmeticError) as e:  # one of them; which one is found out one by one
                log.info("trials are trained one by one: %s", e)


def _together(experiments: Sequence[Experiment], folders: Sequence[store.RunFolder], watch: Watch) -> None:
    """On a GPU, train several at once and leave their states as checkpoints."""
    fresh = [i for i, folder in enumerate(folders) if not folder.state.exists()]
    if len(fresh) < 2 or not _on_gpu(experiments[0]) or not can_join([experiments[i] for i in fresh], numbers=True):
        return
    for i, fit in zip(fresh, api.train_together([experiments[i] for i in fresh], watch), strict=True):
        folders[i].trains(fit.world.content, fit.engine.tasks)
        folders[i].save(fit.state, fit.experiment.identity())
        fit.engine.close()


def _on_gpu(experiment: Experiment) -> bool:
    return api.device_of(experiment.device).type == "cuda"


def _score(e: Experiment, folder: store.RunFolder, on: Sequence[Shift], watch: Watch) -> Score:
    began = time.perf_counter()
    world, worker, engine = api.build(e)
    state = loop.start(worker, engine, world.clients)
    folder.trains(world.content, engine.tasks)
    state = folder.restore(state, e.identities()) or state
    try:
        state = api.train_from(e, world, worker, engine, state, watch, folder).state
    except api.Interrupted:  # the checkpoint is written; the search stops, and does not count this as a failed trial
        raise KeyboardInterrupt from None
    chosen = state.best
    assert chosen is not None  # the last round is always looked at
    accuracy = _validated(e, world, worker, engine, replace(state, server=chosen.server, mine=chosen.mine), on)
    engine.close()
    watch.done()
    return Score(e.seed, round(accuracy, 6), chosen.round, round(time.perf_counter() - began, 2))


def _validated(e: Experiment, world: World, worker: Any, engine: Any, state: State, on: Sequence[Shift]) -> float:
    """Accuracy with the experiment's personaliser and first adapter on streams that are made of validation data."""
    built = api.streams_of(validation_world(world), on)
    tests = {name: Test(stream.shards, shift.protocol) for name, (shift, stream) in built.items()}
    adapter = _served(e, worker, engine, state, _scored_clients(world))
    found = stream_accuracy(worker, engine, state, tests, {labels.name(adapter): adapter}, e.personal)
    if not found:
        raise ConfigError(f"adapter {labels.name(adapter)} cannot serve {', '.join(tests)}; a larger batch may help")
    seen = found["streams"]
    if gone := [name for name in tests if name not in seen]:
        raise ArithmeticError(
            f"adapter {labels.name(adapter)} produced values that are not finite on {', '.join(gone)}"
        )
    return float(torch.tensor(list(seen.values()), dtype=torch.float64).mean())


def _served(e: Experiment, worker: Any, engine: Any, state: State, clients: int) -> Adapter:
    """The adapter that is scored; an error where it cannot serve the model."""
    adapter = e.adapters[0]
    down = worker.method.download(worker.task, state.server)
    reason = adapter.refusal(worker.task, engine.model_of(engine.deploy(down, state.mine, e.personal), 0))
    reason = reason or exchange.refusal(worker, adapter, clients)
    if not reason and adapter.calibrates:
        reason = "it judges by the validation examples that a search scores on; search for the adapter inside"
    if reason:
        raise ConfigError(f"adapter {labels.name(adapter)} (the first of adapters=, which is scored): {reason}")
    return adapter


def _scored_clients(world: World) -> int:
    """How many clients have validation examples."""
    return sum(len(rows) > 0 for rows in world.val)


def validation_world(world: World) -> World:
    """A world whose test examples are the clients' validation examples; it has no other examples to test on."""
    nothing = world.held[:0]
    if not any(len(rows) for rows in world.val):
        raise ConfigError(f"{world.name} has no validation examples to score on; set its validation share above 0")
    return replace(world, test=world.val, val=tuple(nothing for _ in world.val), new=(), held=nothing)
