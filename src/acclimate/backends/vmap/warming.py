"""What comes before recordings: kernels of new work are compiled side by side, and work is run with few steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from typing import Any

import torch

from ...core.loops import Warming, driven
from ...core.nn import proven, rehearsal

log = logging.getLogger("acclimate")

_known: set[Hashable] = set()
"""Kinds of work that were rehearsed, or need not be."""
_compiled: list[int] = []
"""How many kernels each rehearsal of this process had compiled that no process had before."""


def expect(device: torch.device) -> None:
    """Prepare for work on a device. What is tried there is tried before anything is recorded, and its kernels are
    compiled with those of the first work."""
    proven.expect(device)
    if device.type == "cuda":
        rehearsal.prepare()


def rehearse(works: Iterable[tuple[Hashable, Callable[[], Any]]]) -> None:
    """Compile the kernels of all this work side by side, given with its kind, unless work of that kind was rehearsed.
    Where the first rehearsal of a process finds all its kernels in Triton's cache, no other follows."""
    new = [(kind, work) for kind, work in works if kind not in _known]
    _known.update(kind for kind, _ in new)
    if new and torch.cuda.is_available() and _compiled[:1] != [0]:
        with aside():
            _compiled.append(rehearsal.rehearse(*(work for _, work in new), *proven.trials()))
        log.debug("%d kernels compiled side by side", _compiled[-1])
    proven.settle()


def begun() -> bool:
    """Whether anything was rehearsed in this process."""
    return bool(_known)


@contextmanager
def aside() -> Iterator[None]:
    """Loops take few steps, on a stream of their own; what follows waits for it."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream), driven(Warming()):
        yield
    torch.cuda.current_stream().wait_stream(stream)
