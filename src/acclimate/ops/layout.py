"""Tables of text that fit a window. Imports nothing, so that listings need no torch."""

from __future__ import annotations

import difflib
import os
import re
import shutil
import sys
import textwrap
from collections.abc import Iterable, Sequence

INDENT = "    "
BAR = "\\|"
"""A bar within a cell of a Markdown table."""
GAP = "  "


def room() -> int:
    """How many columns output may have: COLUMNS where that is set, else the window's; 0 where nothing limits it."""
    named = os.environ.get("COLUMNS", "")
    if named.isdecimal() and int(named) > 0:
        return int(named)
    return shutil.get_terminal_size().columns if sys.stdout.isatty() else 0


def counted(number: int, one: str, several: str = "") -> str:
    """A number and what it counts: `1 run`, `2 runs`, `1,000 classes` (where an s is not enough, `several`)."""
    return f"{number:,} {one if number == 1 else several or f'{one}s'}"


def some(names: Sequence[str], most: int = 12) -> str:
    """The first names of a list, and how many more there are."""
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def near(name: str, there: Iterable[str]) -> list[str]:
    """Up to three of these that a name may have meant, capitals or not."""
    small = {n.casefold(): n for n in there}
    return [small[n] for n in difflib.get_close_matches(name.casefold(), small, n=3, cutoff=0.5)]


def lined(rows: Sequence[Sequence[str]], width: int = 0) -> list[str]:
    """Rows in columns. Where they are wider than `width`, the last cells of a row go on below it, indented."""
    widths = [max(len(row[i]) for row in rows) for i in range(len(rows[0]))]
    fits = len(widths)
    while width and fits > 1 and sum(widths[:fits]) + len(GAP) * (fits - 1) > width:
        fits -= 1
    out = []
    for row in rows:
        out.append(GAP.join(cell.ljust(w) for cell, w in zip(row[:fits], widths, strict=False)).rstrip())
        if rest := "; ".join(cell for cell in row[fits:] if cell):
            out += wrapped(rest, width, INDENT)
    return out


def markdown(cells: Sequence[str]) -> str:
    """A line of a Markdown table: a bar in a name would end its cell, and a line break the table."""
    return f"| {' | '.join(' '.join(cell.splitlines()).replace('|', BAR) for cell in cells)} |"


def table(head: Sequence[str], body: Iterable[Sequence[str]], words: int | None = None) -> list[str]:
    """A Markdown table, line by line. With `words`, the columns after so many are numbers, to the right."""
    names = len(head) if words is None else words
    rule = ["---"] * names + ["---:"] * (len(head) - names)
    return [markdown(line) for line in (head, rule, *body)]


def unmarked(line: str) -> list[str]:
    """The cells of such a line."""
    return [cell.strip().replace(BAR, "|") for cell in re.split(r"(?<!\\)\|", line.strip())[1:-1]]


def wrapped(text: str, width: int = 0, indent: str = "") -> list[str]:
    """A paragraph in lines of at most `width`; one line where that is 0."""
    if not width:
        return [indent + text]
    return textwrap.wrap(text, max(width, 20), initial_indent=indent, subsequent_indent=indent, break_on_hyphens=False)


def cut(head: Sequence[str], body: Sequence[Sequence[str]], width: int = 0) -> list[list[list[str]]]:
    """A table as several, one below the other, that each fit: the first column is in all of them."""
    rows = [head, *body]
    widths = [max(len(row[i]) for row in rows) for i in range(len(head))]
    groups: list[list[int]] = [[]]
    for i in range(1, len(head)):
        used = widths[0] + sum(len(GAP) + widths[j] for j in [*groups[-1], i])
        if width and groups[-1] and used > width:
            groups.append([])
        groups[-1].append(i)
    return [[[row[0], *(row[i] for i in group)] for row in rows] for group in groups]
