"""Lines that are added to the end of a file: what a crash left half-written is cut off before the next ones come."""

from __future__ import annotations

import os
from collections.abc import Sequence
from pathlib import Path

from ..ops import opening
from .files import RunError, write


def cut(path: Path, wanted: Sequence[str]) -> int:
    """Cut a file after the last of its lines that stand there as they should; how many these are."""
    if not path.exists():
        write(path, "")
    try:
        found = opening.content(path, opening.TEXT_LIMIT)
        same, at = 0, 0
        for line in (text.encode() for text in wanted):
            if found[at : at + len(line)] != line:
                break
            same, at = same + 1, at + len(line)
        if at < len(found):
            os.truncate(path, at)
    except (opening.FileProblem, OSError) as e:
        raise RunError(f"cannot go on with {path}: {e}; remove it") from e
    return same


def lines(path: Path, new: Sequence[str]) -> None:
    """Append lines and see them to the disk."""
    if not new:
        return
    try:
        with path.open("ab") as file:
            file.write("".join(new).encode())
            file.flush()
            os.fsync(file.fileno())
    except OSError as e:
        raise RunError(f"cannot write {path}: {e.strerror or e}") from e
