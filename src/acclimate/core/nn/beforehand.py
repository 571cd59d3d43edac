"""What Triton does once in a process before it compiles or launches anything, done in threads while work is rehearsed.

It reads all of its own code to name itself; and it has the C code of its driver compiled before it knows any device.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from threading import Thread
from typing import Any

_threads: list[Thread] = []


def begin(triton: Any) -> None:
    """Begin with it, unless that was done."""
    name = getattr(getattr(getattr(triton, "runtime", None), "cache", None), "triton_key", None)
    if name is None or _threads:
        return
    works = [name]
    with suppress(Exception):
        works.append(_driver(triton))
    _threads.extend(Thread(target=_done, args=(work,), daemon=True) for work in works)
    for thread in _threads:
        thread.start()


def done() -> bool:
    """Whether all of it is done."""
    return not any(thread.is_alive() for thread in _threads)


def wait() -> None:
    """Go on when all of it is done."""
    for thread in _threads:
        thread.join()


def _done(work: Callable[[], Any]) -> None:
    with suppress(Exception):  # whoever needs it comes to the same place, and finds what is wrong
        work()


def _driver(triton: Any) -> Callable[[], None]:
    """What makes Triton's driver. Until that is done another stands in for it, which knows devices and streams: a
    rehearsal needs no more. Whoever asks it for anything else waits."""
    drivers = triton.runtime.driver
    (kind,) = [each.driver for each in triton.backends.backends.values() if each.driver.is_active()]
    if drivers._active is not None:
        raise RuntimeError("Triton has a driver")

    class Meanwhile(kind):  # type: ignore[misc, valid-type]
        def __init__(self) -> None:
            super(kind, self).__init__()  # all but the C code

        def __getattr__(self, what: str) -> Any:
            wait()
            return getattr(drivers.active, what)

    stand_in = Meanwhile()
    drivers.set_active(stand_in)

    def make() -> None:
        made = None  # then whoever asks for a driver tries again
        try:
            made = drivers.default
        finally:
            if drivers._active is stand_in:
                drivers.set_active(made)

    return make
