"""What the benchmarks over domains share: the options of a run, and tables with a column for every domain."""

from __future__ import annotations

import argparse
import statistics
from collections.abc import Callable, Hashable, Iterable
from pathlib import Path
from typing import TypeVar

from rows import Record

K = TypeVar("K", bound=Hashable)
Seeds = dict[int, dict[str, float]]
"""Seed -> domain -> accuracy in %."""


def add_options(parser: argparse.ArgumentParser, rounds: int) -> None:
    """How much is run, where the results lie, and where the models."""
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=rounds)
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the data that is used")
    parser.add_argument("--out", type=Path, required=True)
    parser.add_argument("--keep", type=Path, metavar="FOLDER", help="keep what is trained, and use what lies there")
    parser.add_argument("--show", action="store_true", help="print what --out holds")


def collected(records: Iterable[Record], place: Callable[[Record], K]) -> dict[K, dict[str, Seeds]]:
    """By the table that a record belongs to, then by row. Later results replace earlier ones."""
    found: dict[K, dict[str, Seeds]] = {}
    for record in records:
        by_row = found.setdefault(place(record), {})
        for row in record["rows"]:
            cells = by_row.setdefault(row["row"], {}).setdefault(record["seed"], {})
            cells |= {domain: 100 * a for domain, a in row["accuracy"].items()}
    return found


def cell(ours: list[float], theirs: float | None) -> str:
    """Our mean and standard error over seeds, and the published number in brackets; a dash where there is none."""
    if not ours:
        return "-"
    error = f" ± {statistics.stdev(ours) / len(ours) ** 0.5:.1f}" if len(ours) > 1 else ""
    return f"{statistics.fmean(ours):.1f}{error} ({'-' if theirs is None else f'{theirs:.1f}'})"


def line(name: str, seeds: Seeds, domains: Iterable[str], theirs: dict[str, float], mean: float | None) -> str:
    """A row of a Markdown table: a cell for every domain, and the mean over the seeds that have all of them."""
    columns = list(domains)
    cells = [cell([s[d] for s in seeds.values() if d in s], theirs.get(d)) for d in columns]
    whole = [statistics.fmean(s.values()) for s in seeds.values() if len(s) == len(columns)]
    return f"| {name} | {len(seeds)} | {' | '.join(cells)} | {cell(whole, mean)} |"


def head(domains: Iterable[str]) -> list[str]:
    """The first two lines of such a table."""
    columns = list(domains)
    return [f"| row | seeds | {' | '.join(columns)} | mean |", f"|---|---|{'---|' * len(columns)}---|"]
