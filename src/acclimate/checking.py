"""What can be known of several experiments before one of them is trained."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Iterator, Sequence
from dataclasses import replace

from . import store
from .building import check_mixed, check_sizes, device_of, worker_of
from .config import Experiment, encode
from .data import World


@contextlib.contextmanager
def naming(name: str) -> Iterator[None]:
    """Say in an error which of several experiments it is about."""
    try:
        yield
    except ValueError as e:
        raise ValueError(f"{name}: {e}") from e


def check_all(experiments: Sequence[Experiment]) -> None:
    """An error where one of several cannot be built: it should not stop them after hours of training the others.

    Data are dealt once per seed, and everything else is tried with the first seed only.
    """
    worlds: dict[str, list[tuple[str, Experiment]]] = {}
    for name, e in zip(store.folder_names(experiments), experiments, strict=True):
        with naming(name):
            check_mixed(e)
        if e.backend.conducted() is None:  # else another process builds it, perhaps from data that are not here
            worlds.setdefault(json.dumps([encode(e.data), e.seed]), []).append((name, e))
    tried: set[str] = set()
    for members in worlds.values():
        _check_members(members, tried)


def _check_members(members: Sequence[tuple[str, Experiment]], tried: set[str]) -> None:
    """Those of one data set and seed; `tried` has what was tried with another seed."""
    name, first = members[0]
    with naming(name):
        world = first.data.world(first.seed)
    for name, e in members:
        with naming(name):
            check_sizes(e, world)
            device_of(e.device)
            if (same := replace(e, seed=0).training_hash()) not in tried:
                _check_start(e, world)
            tried.add(same)


def _check_start(experiment: Experiment, world: World) -> None:
    """An error where the method cannot start with this model."""
    if not check_mixed(experiment, world):
        worker = worker_of(experiment, world)
        worker.method.init_server(worker.task, world.clients, worker.key("init"))
        worker.start(0)
