"""Adapters that strategies chose without labels, and how far each choice is below the oracle's.

The report has this section only where a run had `select=`.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

from ...eval.selection_table import ORACLE
from ..board import Board
from ..style import details, esc, fixed, mean, num, table

Pick = Mapping[str, Any]
"""What one strategy chose on one stream, with one seed."""


def section(board: Board) -> str:
    """A table per method, all of its seeds together; nothing where no run has choices."""
    found: dict[str, list[Pick]] = {}
    seen: dict[tuple[Any, ...], Any] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        own, seed = found.setdefault(name, []), run["results"].get("seed")
        for pick in (run["results"].get("selected") or {}).get("rows") or ():
            at = (name, seed, str(pick.get("stream")), str(pick.get("strategy")))  # the first of a repeat counts
            if math.isfinite(num(pick.get("gap"))) and seen.setdefault(at, run) is run:
                own.append(pick)
    parts = [(name, picks) for name, picks in found.items() if picks]
    if not parts:
        return ""
    note = (
        "Strategies choose between adapters without labels of the stream. The oracle chooses by these labels: it is no"
        " result, but what a choice could reach at best. Gaps are in points of accuracy below it, means over"
        " seeds; the least of a column is bold, and below it stands what was chosen."
    )
    folds = [details(name, "gap to the oracle", _method(picks), i == 0) for i, (name, picks) in enumerate(parts)]
    return f'<p class="muted">{note}</p>{"".join(folds)}'


def _method(picks: Sequence[Pick]) -> str:
    strategies = list(dict.fromkeys(str(p.get("strategy")) for p in picks))
    streams = list(dict.fromkeys(str(p.get("stream")) for p in picks))
    honest = [s for s in strategies if s != "oracle"]
    lead = ""
    if honest:
        best = min(honest, key=lambda s: _gap(picks, s))
        lead = f"<p>Over all streams, <b>{esc(best)}</b> comes nearest to the oracle: "
        lead += f"{fixed(100 * _gap(picks, best))} points below it.</p>"
    head = [("strategy", ""), *((esc(s), "n") for s in streams), ("mean gap", "n"), ("mean accuracy", "n")]
    least = {s: min((_gap(picks, own, s) for own in honest), default=math.nan) for s in (*streams, None)}
    lines = []
    for own in strategies:
        cells = "".join(_cell(picks, own, s, least[s]) for s in (*streams, None))
        reached = fixed(100 * mean(num(p.get("accuracy")) for p in _of(picks, own)))
        title = ORACLE if own == "oracle" else own
        lines.append(f"<th scope='row'>{esc(title)}</th>{cells}<td class=\"n\">{reached}</td>")
    return lead + table("Points below the oracle, by strategy and stream", head, lines)


def _of(picks: Sequence[Pick], strategy: str, stream: str | None = None) -> list[Pick]:
    return [p for p in picks if str(p.get("strategy")) == strategy and stream in (None, str(p.get("stream")))]


def _gap(picks: Sequence[Pick], strategy: str, stream: str | None = None) -> float:
    """The mean over seeds, and over streams where none is named; infinite where there is none."""
    found = [num(p["gap"]) for p in _of(picks, strategy, stream)]
    return mean(found) if found else math.inf


def _cell(picks: Sequence[Pick], strategy: str, stream: str | None, least: float) -> str:
    gap = _gap(picks, strategy, stream)
    if not math.isfinite(gap):
        return '<td class="n">-</td>'
    text = fixed(100 * gap)
    shown = f"<b>{text}</b>" if strategy != "oracle" and gap == least else text
    return f'<td class="n">{shown}{_chosen(_of(picks, strategy, stream)) if stream is not None else ""}</td>'


def _chosen(picks: Sequence[Pick]) -> str:
    """The candidate that was chosen most often, and how many others were."""
    every: Counter[str] = Counter()
    for p in picks:
        every.update({str(k): int(v) for k, v in dict(p.get("chosen") or {}).items()})
    if not every:
        return ""
    first, more = every.most_common(1)[0][0], len(every) - 1
    return f"<small>{esc(first)}{f' and {more} more' if more else ''}</small>"
