"""How training went: validation accuracy per round and, where a run kept them, the test streams' curves."""

from __future__ import annotations

import math
from typing import Any

from . import analysis, svg
from .board import Board
from .style import num


def section(board: Board) -> str:
    """Curves of all runs; trainings that are equal to the last digit are one curve."""
    lines: dict[str, list[tuple[tuple[float, float], ...]]] = {}
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
    more = " Lines of one colour are seeds." * any(len(c.lines) > 1 for c in curves)
    caption = f"<figcaption>Mean over clients, on validation data.{more}</figcaption>"
    rows = [
        (name, board.tone(name), run.get("metrics") or ()) for name, run in zip(board.names, board.runs, strict=True)
    ]
    return f"<figure>{svg.learning(curves)}{caption}</figure>{analysis.stream_curves(rows, board.streams)}"
