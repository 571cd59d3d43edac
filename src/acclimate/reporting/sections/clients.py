"""What the mean hides: a dot per client, and how evenly the clients are served."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...eval.fairness import fairness
from ..board import Board, BoardRow
from ..board_table import TableCell, TableColumn, board_table
from ..style import DASH, TONES, details, esc, fixed, mean, pct, views
from ..svg import drawing, linear, percent, shares

STRIP = 168
"""The width of a strip of dots, in pixels."""
MOST_DOTS = 60_000
"""How many dots a page may hold: more would make it heavy, and nobody could tell them apart."""
SHARES = {"worst10": "Worst 10 %", "worst20": "Worst 20 %", "worst40": "Worst 40 %", "mean": "Mean"}
SHARES |= {"best10": "Best 10 %"}


def dots(board: Board) -> str:
    """A strip of dots per method, adapter and stream, all on one scale."""
    groups = [v for r in board.rows for key in r.cells for v in r.per_client(*key)]
    strips = sum(len(r.cells) for r in board.rows)
    most = max(MOST_DOTS // max(strips, 1), 30)
    note = "One dot per client and seed; the upright line is their mean."
    if max((len(v) for r in board.rows for v in _pooled(r)), default=0) > most:
        note += f" Where there are more than {most}, every so many of them, from the lowest to the highest."
    values = [v for group in groups for v in group if math.isfinite(v)]
    marks = shares(values) if values else [0.0, 1.0]
    return f'<p class="muted">{note}</p>{views(board.selections, lambda s: _strips(board, s, marks, most))}'


def _pooled(row: BoardRow) -> list[list[float]]:
    return [[v for seed in row.per_client(*key) for v in seed] for key in row.cells]


def _strips(board: Board, selection: str, marks: Sequence[float], most: int) -> str:
    ends = f'<span class="axis"><span>{percent(marks[0])} %</span><span>{percent(marks[-1])} %</span></span>'
    columns = [TableColumn(esc(s) + ends, stream=i) for i, s in enumerate(board.streams)]
    rows = []
    for r in board.shown(selection):
        found = {s: [v for seed in r.per_client(selection, s) for v in seed] for s in board.streams}
        rows.append((r, [_strip(v, marks, r.tone, f"{r.title} on {s}", most) for s, v in found.items()]))
    return board_table(f"Accuracy of every client, {board.selections[selection]}", columns, rows, "strips")


def _strip(values: Sequence[float], marks: Sequence[float], tone: int, name: str, most: int) -> TableCell:
    """Dots on three levels, so that near ones do not hide each other; an upright line is their mean."""
    finite = sorted(v for v in values if math.isfinite(v))
    if not finite:
        return TableCell(DASH)
    at, middle = linear(marks[0], marks[-1], 6, STRIP - 6), mean(finite)
    path = "".join(f"M{at(v):.0f} {(10, 5, 15)[i % 3]}h0" for i, v in enumerate(_spaced(finite, most)))
    body = f'<path class="dots c{tone % TONES}" d="{path}"/><path class="mean" d="M{at(middle):.1f} 2v16"/>'
    ends = f"{pct(finite[0])} to {pct(finite[-1])}"
    label = f"{name}: {len(finite)} values, {ends} %"
    return TableCell(f"{drawing('strip', STRIP, 20, label, body, titled=False)}<small>{ends}</small>", middle)


def _spaced(values: Sequence[float], most: int) -> Sequence[float]:
    """At most `most` of sorted values, evenly spaced by rank, the ends among them."""
    if len(values) <= most:
        return values
    return [values[round(i * (len(values) - 1) / (most - 1))] for i in range(most)]


def evenness(board: Board) -> str:
    """How the worst- and the best-served clients do, a table per stream; nothing where clients are not listed."""
    if not any(values for r in board.rows for values in _pooled(r)):
        return ""
    note = "Accuracy in % of the worst- and best-served shares of the clients, each share at least one client."
    note += " Numbers are means over seeds." * any(len(c) > 1 for r in board.rows for c in r.cells.values())
    note += " Of two methods with the same mean, that with the smaller deviation is the more even one. Variance is in"
    note += " squared points."

    def folded(selection: str) -> str:
        tables = [_evenness(board, selection, i) for i in range(len(board.streams))]
        return "".join(f'<div data-s="{i}">{t}</div>' for i, t in enumerate(tables) if t)

    return f'<p class="muted">{note}</p>{views(board.selections, folded)}'


def _evenness(board: Board, selection: str, stream: int) -> str:
    columns = [TableColumn(name, "max") for name in SHARES.values()]
    columns += [TableColumn("Standard deviation", "min"), TableColumn("Variance", "min", digits=1)]
    rows = [(r, cells) for r in board.shown(selection) if (cells := _shares(r, selection, board.streams[stream]))]
    if not rows:
        return ""
    name = f"Fairness on {board.streams[stream]}, {board.selections[selection]}"
    return details(board.streams[stream], "worst and best clients", board_table(name, columns, rows), stream == 0)


def _shares(row: BoardRow, selection: str, stream: str) -> list[TableCell]:
    """The fairness of every seed, averaged; nothing unless every client has a number."""
    seeds = row.per_client(selection, stream)
    if not seeds or not all(math.isfinite(v) for seed in seeds for v in seed):
        return []
    found = [dict(fairness(seed)) for seed in seeds]
    averaged = {k: mean(float(f[k]) for f in found) for k in found[0]}  # type: ignore[arg-type]
    cells = [TableCell(f"<b>{pct(averaged[k])}</b>", averaged[k]) for k in [*SHARES, "std"]]
    squared = averaged["variance"] * 100**2
    return [*cells, TableCell(f"<b>{fixed(squared)}</b>", squared)]
