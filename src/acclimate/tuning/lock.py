"""What optuna needs in the place of its own lock: the folder of a search is locked by `store.locked`."""

from __future__ import annotations


class NoLock:
    """Stands in for optuna's own lock, which outlives a process that is killed and would stop the search for good."""

    def acquire(self) -> bool:
        """Claim to hold the lock."""
        return True

    def release(self) -> None:
        """Do nothing."""
