"""A thread that calls a function again and again. Imports nothing of torch: it runs while torch is imported."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator


@contextlib.contextmanager
def ticking(tick: Callable[[], object], seconds: float) -> Iterator[None]:
    """Call `tick` every so many seconds, until the block ends."""
    stop = threading.Event()

    def beat() -> None:
        while not stop.wait(seconds):
            tick()

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        stop.set()
        thread.join()
