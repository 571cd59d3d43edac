"""optuna's journal of a search: what stands in for its lock, and how what a stopped process left is mended."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from .. import store

CREATE_TRIAL, SET_PARAMETER = 4, 5
"""The codes of a journal's lines that begin a trial, and that say one of its values."""


class NoLock:
    """Stands in for optuna's own lock, which outlives a process that is killed and would stop the search for good.

    The folder of a search is locked by `store.locked`.
    """

    def acquire(self) -> bool:
        """Claim to hold the lock."""
        return True

    def release(self) -> None:
        """Do nothing."""


def mend(path: Path, values: int) -> None:
    """Cut off what a process left that was stopped while it wrote: half a line, and a trial without all its `values`.

    The trial is then proposed again, with the same values. optuna would write on behind half a line, and read neither.
    """
    if not path.exists():
        return
    lines = path.read_bytes().splitlines(keepends=True)
    whole = [line for line in lines if line.endswith(b"\n")]
    codes = [_code(path, number, line) for number, line in enumerate(whole, 1)]
    begun = max((i for i, code in enumerate(codes) if code == CREATE_TRIAL), default=len(codes))
    keep = begun if codes[begun:].count(SET_PARAMETER) < values else len(codes)
    if keep < len(lines):
        store.write(path, b"".join(whole[:keep]))


def _code(path: Path, number: int, line: bytes) -> Any:
    try:
        return json.loads(line)["op_code"]
    except (ValueError, KeyError, TypeError) as e:
        raise store.RunError(
            f"{path}: line {number} is damaged, so that trials cannot be read; search on with another --out"
        ) from e
