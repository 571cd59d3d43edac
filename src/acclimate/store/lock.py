"""A folder belongs to one writer at a time: a lock that ends with the process, however that ends."""

from __future__ import annotations

import contextlib
import contextvars
import logging
import os
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from .files import RunError

NAME = "lock"
PATIENCE = 2.0
"""Seconds to wait where the owner was killed and its workers, which inherited the lock, are about to end."""
_held: contextvars.ContextVar[frozenset[Path]] = contextvars.ContextVar("held", default=frozenset())
"""The folders that this thread of work has locked: what it calls may lock them again."""
log = logging.getLogger("acclimate")


@contextlib.contextmanager
def locked(path: Path, what: str = "run") -> Iterator[None]:
    """Create a folder and lock it while this lasts; an error where another process has it.

    The file `lock` names the process. One that a dead process left is taken over, with a line that says so. A folder
    that holds nothing else at the end is removed again.
    """
    real = Path(os.path.realpath(path))
    if real in _held.get():
        yield
        return
    new = [p for p in (path, *path.parents) if not p.exists()]
    handle = _take(path, what)
    token = _held.set(_held.get() | {real})
    try:
        yield
    finally:
        _held.reset(token)
        with contextlib.suppress(OSError):
            (path / NAME).unlink()
        handle.close()
        with contextlib.suppress(OSError):
            for folder in new:
                folder.rmdir()


def busy(path: Path) -> bool:
    """Whether another process, or another thread of this one, is at work in a folder."""
    if Path(os.path.realpath(path)) in _held.get() or not (path / NAME).is_file():
        return False
    try:
        with (path / NAME).open("r+") as handle:
            return not _flock(handle)
    except OSError:
        return False


def _take(path: Path, what: str) -> IO[str]:
    """The open lock file of a folder, locked."""
    end = time.monotonic() + PATIENCE
    while True:
        handle = _open(path)
        if _flock(handle):
            if _same(path / NAME, handle):
                return _signed(path, handle)
            handle.close()  # its owner has just removed it
            continue
        owner = handle.read(20).strip()
        handle.close()
        if _alive(owner) or time.monotonic() > end:
            who = f" (process {owner})" if owner.isdecimal() else ""
            raise RunError(f"another {what} is at work in {path}{who}; wait for it, or choose another --out")
        time.sleep(0.05)


def _open(path: Path) -> IO[str]:
    try:
        path.mkdir(parents=True, exist_ok=True)
        how = os.O_RDWR | os.O_CREAT | getattr(os, "O_NOFOLLOW", 0) | getattr(os, "O_NONBLOCK", 0)
        return os.fdopen(os.open(path / NAME, how, 0o666), "r+")
    except (OSError, ValueError) as e:
        why = getattr(e, "strerror", None) or e
        raise RunError(f"--out {path} is no folder to write to ({why}); choose another --out") from e


def _flock(handle: IO[str]) -> bool:
    """Whether the file is now locked by us."""
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: there, two writers are not noticed
        return True
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def _same(path: Path, handle: IO[str]) -> bool:
    """Whether the file is still the one of this name."""
    try:
        there, here = os.stat(path), os.fstat(handle.fileno())
    except OSError:
        return False
    return (there.st_dev, there.st_ino) == (here.st_dev, here.st_ino)


def _signed(path: Path, handle: IO[str]) -> IO[str]:
    """Write who has it; say so where a process that ended did not give it back."""
    former = handle.read(20).strip()
    if former:
        log.warning("%s: process %s ended without unlocking it; taking over", path, former[:20])
    handle.seek(0)
    handle.truncate()
    handle.write(f"{os.getpid()}\n")
    handle.flush()
    return handle


def _alive(owner: str) -> bool:
    """Whether a process of this number runs here; what cannot be known counts as alive."""
    if not owner.isdecimal():
        return True
    try:
        os.kill(int(owner), 0)
    except ProcessLookupError:
        return False
    except (OSError, OverflowError):
        return True
    return True
