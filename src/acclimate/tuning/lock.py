"""A folder belongs to one search at a time: a lock that ends with the process, however that ends."""

from __future__ import annotations

from pathlib import Path
from typing import IO

from .. import store


def lock(path: Path) -> IO[str]:
    """Create the folder of a search and lock it, until the handle is closed; an error where another search has it."""
    try:
        path.mkdir(parents=True, exist_ok=True)
        handle = (path / "lock").open("w")
    except OSError as e:
        raise store.RunError(f"--out {path} is no folder to write to ({e.strerror}); choose another --out") from e
    try:
        import fcntl
    except ImportError:  # Windows has no such lock: there, two searches in one folder are not noticed
        return handle
    try:
        fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        handle.close()
        raise store.RunError(f"another search is at work in {path}; wait for it, or choose another --out") from None
    return handle


class NoLock:
    """Stands in for optuna's own lock, which outlives a process that is killed and would stop the search for good."""

    def acquire(self) -> bool:
        """Claim to hold the lock."""
        return True

    def release(self) -> None:
        """Do nothing."""
