"""A line every ten seconds from commands that have no display of their own. Imports nothing slow."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable, Iterator
from typing import IO

from ..ops.ticking import ticking


class Heartbeat:
    """Says that a command still works, and for how long; not while it is paused."""

    EVERY = 10.0
    """Seconds between two lines."""

    def __init__(self, out: IO[str], what: str, clock: Callable[[], float] = time.perf_counter) -> None:
        self._out, self._what, self._clock = out, what, clock
        self._began = self._said = clock()
        self._pauses = 0

    def tick(self) -> None:
        """A line, where one is due."""
        now = self._clock()
        if not self._pauses and now - self._said >= self.EVERY:
            self._said = now
            print(f"acclimate: {self._what}, about {now - self._began:.0f} s so far", file=self._out, flush=True)

    @contextlib.contextmanager
    def paused(self) -> Iterator[None]:
        """While a display shows how far the work is."""
        self._pauses += 1
        try:
            yield
        finally:
            self._pauses -= 1
            self._said = self._clock()


_current: Heartbeat | None = None


@contextlib.contextmanager
def beating(heart: Heartbeat) -> Iterator[Heartbeat]:
    """Let it beat from a thread of its own; `paused` then means this one."""
    global _current
    _current = heart
    try:
        with ticking(heart.tick, heart.EVERY / 10):
            yield heart
    finally:
        _current = None


@contextlib.contextmanager
def paused() -> Iterator[None]:
    """Pause the heartbeat of the command, where it has one."""
    with _current.paused() if _current is not None else contextlib.nullcontext():
        yield
