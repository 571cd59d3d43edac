"""What `acclimate data list` says of every data set.

Figures are in the index file. Whether files are there is looked up by the records, which need torch: what they said is
kept in the cache, for as long as no folder below the data root has changed.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
from collections.abc import Iterator
from pathlib import Path

from ..ops.places import cache_folder
from ..version import __version__
from . import index

KEPT = "data-list.json"
DEPTH, MOST = 4, 20_000
"""How deep folders are looked at for changes, and how many: beyond, nothing is kept."""


def states(root: Path | None) -> dict[str, str]:
    """Whether the files of every set are there, by name."""
    if root is None or not root.is_dir():
        return {name: own["files"] for name, own in index.read()["datasets"].items()}
    kept, mark = cache_folder() / KEPT, signature(root)
    try:
        body = json.loads(kept.read_text())
        if mark and body["mark"] == mark:
            return dict(body["states"])
    except (OSError, ValueError, KeyError, TypeError):
        pass
    return _looked_up(root, kept, mark)


def _looked_up(root: Path, kept: Path, mark: str) -> dict[str, str]:
    from .. import store
    from ..experiment.catalogue_data import DATASETS
    from .data_files import state

    found = {name: state(record, root) for name, record in DATASETS.items()}
    if mark and not any(text.startswith("unreadable") for text in found.values()):  # a package may come any time
        with contextlib.suppress(OSError):  # a cache that cannot be written is none
            store.write(kept, json.dumps({"mark": mark, "states": found}))
    return found


def signature(root: Path) -> str:
    """Names what lies below a folder: it changes where an entry of a folder comes, goes or is renamed, and where a file
    in the upper folders changes. Empty where there is too much to look at."""
    marks = [__version__, str(root)]
    for mark in _marks(root, DEPTH):
        marks.append(mark)
        if len(marks) > MOST:
            return ""
    return hashlib.sha256("\n".join(marks).encode()).hexdigest()


def _marks(folder: Path, depth: int) -> Iterator[str]:
    try:
        entries = sorted(os.scandir(folder), key=lambda e: e.name)
    except OSError:
        return
    for e in entries:
        if e.is_dir():
            yield f"{e.path} {e.stat().st_mtime_ns}"
            if depth > 1:
                yield from _marks(Path(e.path), depth - 1)
        elif depth > DEPTH - 2:
            yield f"{e.path} {e.stat().st_mtime_ns} {e.stat().st_size}"
