"""What a site tells the server of an error. Its text may quote data: a cell of a table, a path, a name of a file."""

from __future__ import annotations

import traceback
from pathlib import Path

from .vault import LostState

HERE = Path(__file__).parent


def told(error: Exception) -> str:
    """What went wrong, without anything of the data.

    What the site's half itself refuses is told whole: it speaks of the request and of settings. Of any other error the
    server gets its kind and the function that raised it; the site's log has the rest.
    """
    if isinstance(error, LostState):
        return str(error)
    kind, frames = type(error).__name__, traceback.extract_tb(error.__traceback__)
    if not frames:
        return f"{kind}; the site's log has its text"
    place = Path(frames[-1].filename)
    if place.parent == HERE:
        return f"{kind}: {error}"
    return f"{kind} in {place.stem}.{frames[-1].name}; the site's log has its text"
