"""What is known of a data set: its published figures, and whether its files are there."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from ..data import Dataset

DIGITS = (178, 182, 177, 183, 181, 182, 181, 179, 174, 180)
"""How many of the 1,797 handwritten digits that scikit-learn carries are a 0, a 1, ..."""


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
