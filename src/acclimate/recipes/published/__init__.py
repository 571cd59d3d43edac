"""The numbers that the papers print, one JSON file per table, with their place and what is doubtful about them.

Transcribed from the papers' text and cross-checked: printed averages against their columns, cells that recur in
several tables, and a second reading. A row is one number (`mean`, with the printed spread as `std`) and the fields that
single it out. `doubt` says why a number or its label may be wrong; `doubtful` also lists what could not be read at all.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from importlib import resources
from math import sqrt
from typing import Any

FOLDER = resources.files(__package__)


@dataclass(frozen=True)
class Number:
    """A published number."""

    mean: float
    std: float | None = None
    doubt: str = ""
    """Why it may be wrong; empty: nothing speaks against it."""


@cache
def table(name: str) -> dict[str, Any]:
    """A file of published numbers, such as `fedthe/table1`: paper, place, what, setting, notes, doubtful and rows."""
    paper, _, file = name.partition("/")
    body: dict[str, Any] = json.loads((FOLDER / paper / f"{file}.json").read_text(encoding="utf-8"))
    return body


def tables() -> list[str]:
    """The names of all files."""
    papers = sorted(p.name for p in FOLDER.iterdir() if p.is_dir() and not p.name.startswith("_"))
    return [f"{p}/{f.name.removesuffix('.json')}" for p in papers for f in sorted((FOLDER / p).iterdir(), key=str)]


def find(name: str, key: tuple[tuple[str, Any], ...]) -> Number | None:
    """The number whose fields have these values; None where the paper's copy does not hold it."""
    at = place(name, key)
    return None if at is None else number(table(name)["rows"][at])


def place(name: str, key: tuple[tuple[str, Any], ...]) -> int | None:
    """Where among the rows of a file that number stands."""
    rows = [i for i, r in enumerate(table(name)["rows"]) if all(f in r and r[f] == v for f, v in key)]
    if len(rows) > 1:
        raise LookupError(f"{name}: {len(rows)} published numbers for {dict(key)}")
    return rows[0] if rows and _printed(table(name)["rows"][rows[0]]) else None


RUNS = 3
"""So many runs the papers' means are of, where they say it."""


def error_of_spread(name: str) -> float:
    """By what a printed spread of a table is multiplied to be its mean's standard error; 0: it does not say."""
    setting = table(name).get("setting", {})
    said = setting.get("std_is", "")
    if said.startswith("standard error"):
        return 1.0
    over_seeds = setting.get("seeds") == RUNS and setting.get("spread", "").startswith("std over seeds")
    return sqrt(1 / RUNS) if said == "spread over three runs" or over_seeds else 0.0


def number(row: dict[str, Any]) -> Number:
    """A row of a file as a number."""
    return Number(row["mean"], row.get("std"), row.get("doubt", ""))


def accuracies(name: str) -> list[tuple[int, dict[str, Any]]]:
    """The rows of a file that are accuracies, with their places: no counts, times, differences or settings."""
    if "accuracy (%)" not in table(name)["metric"]:
        return []
    return [(i, r) for i, r in enumerate(table(name)["rows"]) if _printed(r) and _accuracy(r)]


def _printed(row: dict[str, Any]) -> bool:
    return isinstance(row.get("mean"), int | float)


def _accuracy(row: dict[str, Any]) -> bool:
    quantity = row.get("quantity", "test accuracy")
    counts = quantity == "test accuracy" or quantity.partition(" ")[0] in ("Average", "Worst", "Best")
    return counts and row.get("test_set") != "difference"
