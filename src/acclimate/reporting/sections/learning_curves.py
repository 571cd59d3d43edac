"""How training went: validation accuracy per round and, where a run kept them, the test streams' curves."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .. import svg
from ..board import Board, ordered
from ..style import esc, num

Line = tuple[tuple[float, float], ...]
"""(round, share) of one seed."""
Metrics = tuple[str, int, Sequence[Mapping[str, Any]]]
"""A run: its name, its colour and the rows of its metrics.jsonl."""


def section(board: Board) -> str:
    """Curves of all runs; trainings that are equal to the last digit are one curve."""
    lines: dict[str, list[Line]] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        points = ((num(m.get("round")), num(m.get("val_accuracy"))) for m in run.get("metrics") or ())
        if kept := tuple(p for p in points if math.isfinite(p[0] + p[1])):
            lines.setdefault(name, []).append(kept)
    same: dict[Any, list[str]] = {}
    for name, of_seeds in lines.items():
        same.setdefault(tuple(of_seeds), []).append(name)
    curves = [svg.Curve(" = ".join(names), board.tone(names[0]), of_seeds) for of_seeds, names in same.items()]
    if not curves:
        return "<p>No validation accuracy was recorded.</p>"
    more = " The band goes from the lowest to the highest seed; point at a round to read its numbers." * any(
        len(c.lines) > 1 for c in curves
    )
    caption = f"<figcaption>Mean over clients, on validation data.{more}</figcaption>"
    rows = [
        (name, board.tone(name), run.get("metrics") or ()) for name, run in zip(board.names, board.runs, strict=True)
    ]
    return f"<figure>{svg.learning(curves)}{caption}</figure>{_on_streams(rows, board.streams)}"


def _on_streams(runs: Sequence[Metrics], order: Sequence[str]) -> str:
    """Learning curves on the test streams, of runs by (name, tone, rows of metrics.jsonl).

    One method: a chart with a line per stream. Several: a chart per stream with a line per method.
    """
    lines = _lines(runs)
    who = list(dict.fromkeys(w for of in lines.values() for w in of))
    if not lines:
        return ""
    if len(who) == 1:
        items = [svg.Curve(s, tone, tuple(lines[s][who[0]])) for s, tone in ordered(list(lines), order).items()]
        charts = _chart(items, "stream", f"{esc(who[0][0])}, mean over clients.")
    else:
        by_stream = {
            s: [svg.Curve(name, tone, tuple(each)) for (name, tone), each in lines[s].items()]
            for s in ordered(list(lines), order)
        }
        charts = "".join(_chart(items, "method", f"On {esc(s)}, mean over clients.") for s, items in by_stream.items())
    note = "What the results table would say if training ended at that round. Nothing is selected by it."
    return f'<h3>On the test streams</h3><p class="muted">{note}</p>{charts}'


def _lines(
    runs: Sequence[Metrics],
) -> dict[str, dict[tuple[str, int], list[Line]]]:
    """By stream, and by method (with its adapter) and tone: a line per seed."""
    out: dict[str, dict[tuple[str, int], list[Line]]] = {}
    for name, tone, rows in runs:
        seen = [r for r in rows if r.get("streams")]
        for stream in dict.fromkeys(s for r in seen for s in r["streams"]):
            points = ((num(r.get("round")), num(r["streams"].get(stream))) for r in seen)
            if line := tuple(p for p in points if math.isfinite(p[0] + p[1])):
                adapter = seen[0].get("adapter")
                who = f"{name} " + ("without adaptation" if adapter == "none" else f"with {adapter}")
                out.setdefault(stream, {}).setdefault((who, tone), []).append(line)
    return out


def _chart(items: Sequence[svg.Curve], of: str, caption: str) -> str:
    return f"<figure>{svg.learning(items, 'Test accuracy', of)}<figcaption>{caption}</figcaption></figure>"
