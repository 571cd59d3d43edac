"""Recordings outlive their engine: a run that goes on, or comes again in the same process, finds those of the last.

A recording depends on what it was made of: the client half, and the examples that it reads where they lie. An engine
for the same of both gets the recorder of the one before it.
"""

from __future__ import annotations

import hashlib
from dataclasses import dataclass, replace
from types import SimpleNamespace
from typing import Any

import torch

from ...core import Holdings, Worker
from ...ops.hashing import fingerprint
from .capture import Recorder

MOST_SHELVED = 4
"""Engines whose recordings are kept; those of the one that was opened longest ago go first."""


@dataclass(frozen=True)
class Kept:
    """The recorder of an engine, and what its recordings read in place: it must live as long as they do."""

    recorder: Recorder
    worker: Worker
    shards: Holdings


_shelf: dict[Any, Kept] = {}


def shelved(worker: Worker, shards: Holdings, about: tuple[Any, ...], fresh: Recorder) -> tuple[Recorder, Holdings]:
    """The recorder for this client half and these examples, and the examples where its recordings read them.

    `about` is all else that the recordings depend on; `fresh` is the recorder where there is none yet.
    """
    key = (_identity(worker), about, type(shards))
    kept = _shelf.pop(key, None)
    if kept is None or not _same(kept.shards, shards):
        kept = Kept(fresh, worker, shards)
    _shelf[key] = kept
    while len(_shelf) > MOST_SHELVED:
        del _shelf[next(iter(_shelf))]
    return kept.recorder, replace(shards, x=kept.shards.x, y=kept.shards.y)


def forget() -> None:
    """Drop all recordings of the process: memory is short."""
    for kept in _shelf.values():
        kept.recorder.forget()
    _shelf.clear()


def _identity(worker: Worker) -> str:
    # objects that cannot be looked into count by their place in memory, which is theirs as long as the worker is kept
    seeds = getattr(worker, "seeds", worker.seed)
    seeds = seeds.tolist() if isinstance(seeds, torch.Tensor) else seeds
    task, settings = worker.task.__reduce__()[1], getattr(worker, "settings", {})
    secret = hashlib.sha256(worker.secret).hexdigest() if worker.secret else None  # its noise is in the recordings
    numbers = getattr(worker, "numbers", torch.zeros(0)).tolist()  # of clients, where an engine has some of them
    parts = {"task": task, "method": worker.method, "filters": list(worker.filters), "seeds": seeds}
    more = {"kind": type(worker).__name__, "settings": settings, "secret": secret, "numbers": numbers}
    return fingerprint(SimpleNamespace(**parts, **more))


def _same(a: Holdings, b: Holdings) -> bool:
    """Whether two hold the same examples, on the same device, in the same order."""
    return all(
        x is y or (x.shape == y.shape and x.dtype == y.dtype and x.device == y.device and torch.equal(x, y))
        for x, y in ((a.x, b.x), (a.y, b.y))
    )
