"""The headline table as a file of its own: LaTeX, Markdown or CSV, as the buttons of the report save it."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path

from ..ops import layout
from .board import SELECTIONS, Board, BoardRow
from .sections.headline import PER_SEED
from .style import deviation, mean, num

ENDINGS = (".csv", ".md", ".tex")
"""What the table can be written as."""
SPECIAL = {"\\": "\\textbackslash{}", "~": "\\textasciitilde{}", "^": "\\textasciicircum{}"}
SPECIAL |= {c: f"\\{c}" for c in "{}$&#%_"}


def ending_of(out: str | Path, selection: str) -> str:
    """How the file of a report ends; an error where nothing is written so, or `selection` is none that runs have."""
    ending = Path(out).suffix.lower()
    if ending not in (*ENDINGS, ".html", ".htm", ""):
        raise ValueError(f"out={str(out)!r} must end in .html, {', '.join(ENDINGS[:-1])} or {ENDINGS[-1]}")
    if selection not in SELECTIONS:
        raise ValueError(f"selection={selection!r} must be one of {', '.join(SELECTIONS)}")
    return ending


@dataclass
class PaperCell:
    """A cell: accuracy, its spread, and its rank in its column, where 0 is the best."""

    value: float
    spread: float
    rank: int = -1


@dataclass
class PaperTable:
    """The table of a paper: methods down, streams across."""

    head: list[str]
    names: list[list[str]]
    cells: list[list[PaperCell]]
    said: str


def saved(board: Board, ending: str, selection: str = "last") -> str:
    """The table of a board in the format that a file name's ending stands for."""
    if selection not in board.selections:
        raise ValueError(f"selection={selection!r} must be one of {', '.join(board.selections)}")
    forms: dict[str, Callable[[], str]] = {
        ".csv": lambda: _csv(board, selection),
        ".md": lambda: _markdown(_layout(board, selection)),
        ".tex": lambda: _latex(_layout(board, selection)),
    }
    return forms[ending]()


def _layout(board: Board, selection: str) -> PaperTable:
    rows, streams = board.shown(selection), board.streams
    columns = [[s] for s in streams] + [streams] * (len(streams) > 1)
    seeds = [len(v) for r in rows for c in columns if math.isfinite(mean(v := r.by_seed(selection, c)))]
    cells = [[_number(r, selection, c, max(seeds, default=0) > 1) for c in columns] for r in rows]
    for column in zip(*cells, strict=True):
        known = sorted({_shown(n.value) for n in column if math.isfinite(n.value)}, key=float, reverse=True)
        for n in column:
            n.rank = known.index(_shown(n.value)) if math.isfinite(n.value) else -1
    adapted = any(r.adapter != "none" for r in rows)
    names = [[r.name, *([r.adapter] if adapted else [])] for r in rows]
    head = ["Method", *(["Adapter"] if adapted else []), *streams, *(["Average"] if len(streams) > 1 else [])]
    return PaperTable(head, names, cells, _said(board.selections[selection], seeds))


def _number(row: BoardRow, selection: str, streams: Sequence[str], several: bool) -> PaperCell:
    values = row.by_seed(selection, streams)
    std = row.score(selection, streams, "std") if len(streams) == 1 else math.nan
    return PaperCell(mean(values), deviation(values) if several else std)


def _said(round: str, seeds: Sequence[int]) -> str:
    low, high = min(seeds, default=0), max(seeds, default=0)
    over = f"{high if low == high else f'{low} to {high}'} seeds" if high > 1 else "clients"
    return f"Test accuracy in %, {round.lower()}: mean over clients, with the standard deviation over {over}."


def _shown(value: float) -> str:
    return f"{100 * value:.2f}"


def _csv(board: Board, selection: str) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(["method", "adapter", "stream", "selection", *PER_SEED, "up_bytes"])
    for r in board.shown(selection):
        for stream in board.streams:
            for seed, t in r.cells.get((selection, stream), {}).items():
                numbers = [v if math.isfinite(v := num(t.get(k))) else "" for k in PER_SEED[1:-1]]
                known = [r.name, r.adapter, stream, selection, seed, *numbers, t.get("round")]
                writer.writerow([*known, r.costs[seed].get("up_bytes_per_client")])
    return out.getvalue()


def _markdown(table: PaperTable) -> str:
    def form(n: PaperCell) -> str:
        if not math.isfinite(n.value):
            return "\u2013"
        text = _shown(n.value) + (f" ± {_shown(n.spread)}" if math.isfinite(n.spread) else "")
        return f"**{text}**" if n.rank == 0 else text

    body = [[*names, *map(form, cells)] for names, cells in zip(table.names, table.cells, strict=True)]
    lines = layout.table(table.head, body, len(table.names[0]))
    return "\n".join([*lines, "", f"{table.said} Best in bold.", ""])


def _latex(table: PaperTable) -> str:
    def form(n: PaperCell) -> str:
        if not math.isfinite(n.value):
            return "--"
        strong = {0: "\\mathbf", 1: "\\underline"}.get(n.rank)
        value = f"{strong}{{{_shown(n.value)}}}" if strong else _shown(n.value)
        spread = f"_{{\\pm {_shown(n.spread)}}}" if math.isfinite(n.spread) else ""
        return f"${value}{spread}$"

    def line(items: Sequence[str]) -> str:
        return f"{' & '.join(items)} \\\\"

    left = len(table.names[0])
    body = [line([*map(_tex, names), *map(form, cells)]) for names, cells in zip(table.names, table.cells, strict=True)]
    return "\n".join(
        [
            "% needs \\usepackage{booktabs}",
            *["\\begin{table}[t]", "\\centering"],
            f"\\caption{{{_tex(table.said)} Best in bold, second best underlined.}}",
            f"\\begin{{tabular}}{{{'l' * left}{'c' * (len(table.head) - left)}}}",
            *["\\toprule", line([_tex(h) for h in table.head]), "\\midrule"],
            *[*body, "\\bottomrule", "\\end{tabular}", "\\end{table}", ""],
        ]
    )


def _tex(text: str) -> str:
    return "".join(SPECIAL.get(c, c) for c in text)
