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
from typing import TYPE_CHECKING, Any

from ..ops.places import cache_folder
from ..version import __version__
from . import index

if TYPE_CHECKING:
    from ..data import Dataset

DIGITS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
"""How many of the 1,797 handwritten digits that scikit-learn carries are a 0, a 1, ..."""
KEPT = "data-list.json"
DEPTH, MOST = 4, 20_000
"""How deep folders are looked at for changes, and how many: beyond, nothing is kept."""


def figures(record: Dataset) -> dict[str, str]:
    """What was published: examples (training + test), classes, shape, a dash for what was not; and without data root,
    whether files are there."""
    from ..data import Cells, FileDataset, Phrases
    from ..data.tables import TableRows

    want: dict[str, Any] = {"all": sum(DIGITS), "classes": len(DIGITS), "shape": (1, 8, 8)}
    if isinstance(record, Cells):
        want = {"all": 569, "classes": 2, "shape": (30,)}
    elif isinstance(record, Phrases):
        want = {"all": len(record.styles) * record.each, "classes": 8, "shape": (record.length,)}
    elif isinstance(record, TableRows):
        want = {}
    elif isinstance(record, FileDataset):
        want = record.expected()
    counts = [want["all"]] if "all" in want else [want[p] for p in ("train", "test") if p in want]
    shape = " x ".join(map(str, want.get("shape", ())))
    examples, classes = " + ".join(f"{n:,}" for n in counts) or "-", str(want.get("classes", "-"))
    return {"examples": examples, "classes": classes, "shape": shape or "-", "files": state(record, None)}


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


def state(record: Dataset, root: Path | None) -> str:
    """Whether the files of a set are there, and what is missing, in a short phrase; None: there is no data root."""
    import dataclasses

    from ..data import FileDataset
    from ..data.own import OwnFiles
    from ..data.tables import TableRows

    if isinstance(record, OwnFiles | TableRows):
        return f"your own: {record.needs}"
    if not isinstance(record, FileDataset):
        return "embedded"
    if root is None:
        return _missing(record.needs)
    try:
        base = dataclasses.replace(record, root=str(root)).sources().base
    except FileNotFoundError as e:
        lacking = str(e).partition(" lacks ")[2]  # so the message reads where a part of the set is there
        return _missing(lacking.partition(" (data.root=")[0].partition(";")[0] or record.needs)
    except (ValueError, ImportError, OSError) as e:
        return f"unreadable: {e}"
    return f"found in {base}"


def _missing(phrase: str) -> str:
    return f"missing: {phrase if len(phrase) <= 64 else f'{phrase[:61].rstrip()}...'}"
