"""Tasks in child processes, for what they leave on disk: compilers hold Python's lock for much of their time.

A child is a copy of this process, and starts at once: nothing is imported or sent. It takes one task after the other
until none is left, says which went well, and ends without running anything else of this process. Children must not
use a GPU. One that hangs is ended; whoever asks does what is left. Elsewhere than on Linux, and on one core, there are
no children.
"""

from __future__ import annotations

import gc
import os
import select
import signal
import sys
import time
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from typing import Any, NoReturn

PATIENCE = 60.0
"""Seconds in which no task comes to an end, after which all children are ended."""
LONGEST = 0.5
"""Seconds after which no more children are made: a process that holds much memory takes long to copy."""
MOST = 1024
"""Tasks that are given away at most: their numbers fit into the smallest pipe that Linux makes."""
_hung: list[int] = []
"""Children that hung: this process forks no more."""


def cores() -> int:
    """Processor cores that this process may use."""
    allowed = getattr(os, "sched_getaffinity", None)
    return len(allowed(0)) if allowed else os.cpu_count() or 1


def possible() -> bool:
    """Whether child processes help, and are safe here."""
    return sys.platform == "linux" and hasattr(os, "fork") and cores() > 1 and not _hung


def spread(tasks: Sequence[Callable[[], Any]], most: int, patience: float = PATIENCE) -> int:
    """Run each task in one of at most `most` children, the first ones first; how many went well."""
    numbers = range(min(len(tasks), MOST))
    queue, put = os.pipe()
    heard, tell = os.pipe()
    os.write(put, b"".join(number.to_bytes(2, "big") for number in numbers))
    os.close(put)  # whoever reads a number has it alone, and finds the end when there are no more
    children: list[int] = []
    try:
        with quiet(), suppress(OSError, RuntimeError):  # no more processes, or the interpreter is about to end
            enough = time.monotonic() + LONGEST
            while len(children) < min(most, len(numbers)) and (not children or time.monotonic() < enough):
                child = os.fork()
                if not child:
                    alone(partial(_serve, tasks, queue, tell))
                children.append(child)
        os.close(tell)
        tell = -1
        return _listen(heard, len(numbers), patience)
    finally:
        for end in (queue, heard, tell):
            with suppress(OSError):
                os.close(end)
        for child in children:
            stop(child)


@contextmanager
def quiet() -> Iterator[None]:
    """No garbage is collected, as children would free a GPU's memory; and Python does not warn of forks beside threads:
    a child that waits for a lock which one of them held is ended as any that hangs."""
    collecting = gc.isenabled()
    gc.disable()
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", DeprecationWarning)
            yield
    finally:
        if collecting:
            gc.enable()


def alone(work: Callable[[], None]) -> NoReturn:
    """What a child does: this, and nothing that this process prepared for its own end, for signals or for output."""
    try:
        for name in (signal.SIGINT, signal.SIGTERM):
            signal.signal(name, signal.SIG_DFL)
        _kept = sys.stdout, sys.stderr  # what their buffers hold is not the child's to write
        sys.stdout = sys.stderr = nowhere = open(os.devnull, "w")  # noqa: SIM115
        for stream in (1, 2):
            os.dup2(nowhere.fileno(), stream)
        work()
    finally:
        os._exit(0)


def _serve(tasks: Sequence[Callable[[], Any]], queue: int, tell: int) -> None:
    """Do one task after the other, until none is left."""
    while number := os.read(queue, 2):
        os.write(tell, b"+" if _went_well(tasks[int.from_bytes(number, "big")]) else b"-")


def _went_well(task: Callable[[], Any]) -> bool:
    try:
        task()
    except Exception:
        return False  # whoever asked does it again, and says what is wrong
    return True


def _listen(heard: int, tasks: int, patience: float) -> int:
    """How many tasks went well, when all came to an end, all children ended, or none was heard of for too long."""
    well, done, waiting = 0, 0, select.poll()
    waiting.register(heard, select.POLLIN)
    while done < tasks:
        if not waiting.poll(1000 * patience):
            give_up(tasks - done)
            break
        if not (news := os.read(heard, MOST)):
            break
        well, done = well + news.count(b"+"), done + len(news)
    return well


def give_up(tasks: int) -> None:
    """Make no more children: those that have so many tasks left hang."""
    _hung.append(tasks)


def stop(child: int) -> None:
    """Have no such child any more, whatever it does."""
    with suppress(ChildProcessError, ProcessLookupError):  # somebody else waited for it
        if os.waitpid(child, os.WNOHANG) == (0, 0):
            os.kill(child, signal.SIGKILL)
            os.waitpid(child, 0)
