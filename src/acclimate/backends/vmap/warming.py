"""What comes before recordings: kernels of new work are compiled side by side, and work is run with few steps."""

from __future__ import annotations

import logging
from collections.abc import Callable, Hashable, Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from typing import Any

import torch

from ...core.loops import Warming, driven
from ...core.nn import available, proven, rehearsal

log = logging.getLogger("acclimate")

_known: set[Hashable] = set()
"""Kinds of work that were rehearsed, or need not be."""
_compiled: dict[Hashable, int] = {}
"""How many kernels the first rehearsal of each engine, in each arithmetic, had compiled that no process had before."""


def expect(device: torch.device) -> None:
    """Prepare for work on a device. What is tried there is tried before anything is recorded, and its kernels are
    compiled with those of the first work."""
    proven.expect(device)
    if device.type == "cuda":
        _say_what_lacks()
        rehearsal.prepare()


@cache
def _say_what_lacks() -> None:
    """Warn once where there are no kernels."""
    if not available.AVAILABLE:
        log.warning("kernels for the GPU: %s", available.said())


def rehearse(works: Iterable[tuple[Hashable, Callable[[], Any]]], who: Hashable = None) -> None:
    """Compile the kernels of all this work side by side, given with its kind, unless work of that kind was rehearsed.
    Where the first rehearsal of `who` that has kernels finds all of them in Triton's cache, no other of it follows;
    another engine, or another arithmetic, has other kernels."""
    new = [(kind, work) for kind, work in works if (who, kind) not in _known]
    _known.update((who, kind) for kind, _ in new)
    if new and torch.cuda.is_available() and _compiled.get(who) != 0:
        with aside():
            found = rehearsal.rehearse(*(work for _, work in new), *proven.trials())
        if found is not None:  # work in double precision has none
            _compiled.setdefault(who, found)
            log.debug("%d kernels compiled side by side", found)
    proven.settle()


def run(work: Callable[[], Any]) -> None:
    """Run this work with few steps. Where one of its kernels turns out not to be in Triton's cache, all of them are
    compiled side by side, and it begins again: what the rehearsal of smaller work has found there says nothing of
    this one."""
    with aside():
        try:
            with rehearsal.stopping():
                work()
            return
        except rehearsal.Uncompiled:
            log.debug("kernels are missing: they are compiled side by side")
        rehearsal.rehearse(work)
        work()


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
