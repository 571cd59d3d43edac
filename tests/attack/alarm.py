"""A limit of time for what may hang, beside the one that pytest has for a whole test."""

from __future__ import annotations

import contextlib
import signal
from collections.abc import Iterator
from typing import Any, NoReturn


class Hang(BaseException):
    """An answer that took too long."""


@contextlib.contextmanager
def at_most(seconds: float) -> Iterator[None]:
    """Raise `Hang` in a block that takes longer. The timer that ran before, which is pytest's, goes on after it."""

    def late(signum: int, frame: Any) -> NoReturn:
        raise Hang

    before = signal.signal(signal.SIGALRM, late)
    left, _ = signal.setitimer(signal.ITIMER_REAL, seconds)
    try:
        yield
    finally:
        rest, _ = signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
        if left:
            signal.setitimer(signal.ITIMER_REAL, max(left - (seconds - rest), 0.001))
