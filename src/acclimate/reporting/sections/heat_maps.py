"""Which adapter suits which method: a heat map per stream, with the numbers in its cells."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from ..board import Board
from ..style import SHADES, esc, scroll, short, views
from ..svg import drawing

CELL, LINE, HEAD = 47, 26, 30
"""A cell's width and height and the head's height, in pixels."""
LONGEST = 22
"""Letters of a method's name; longer ones are cut, and whole in the tooltip."""

Scores = Mapping[tuple[str, str], float]
"""Accuracy by method and adapter."""


def section(board: Board) -> str:
    """A map per stream; nothing unless there are methods and adapters to choose from."""
    if len(board.methods) < 2 or len(board.adapters) < 2:
        return ""
    note = (
        "Accuracy in %, mean over clients and seeds. Every stream has its own shades, from its lowest to its highest"
        " number; the best cell has a frame. An empty cell was refused or not run."
    )
    return f'<p class="muted">{note}</p>{views(board.selections, lambda s: _panels(board, s))}'


def _panels(board: Board, selection: str) -> str:
    panels = []
    for i, stream in enumerate(board.streams):
        scores = {(r.name, r.adapter): r.score(selection, [stream]) for r in board.rows}
        finite = {k: v for k, v in scores.items() if math.isfinite(v)}
        if finite:
            drawn = heat_map(finite, board.methods, board.adapters, stream)
            panels.append(f'<div data-s="{i}"><h4>{esc(stream)}</h4>{scroll(f"Heat map of {stream}", drawn)}</div>')
    return f'<div class="panels heats">{"".join(panels)}</div>'


def heat_map(scores: Scores, methods: Sequence[str], adapters: Sequence[str], stream: str) -> str:
    """Methods down, adapters across; `scores` holds finite numbers, and nothing for a cell without one."""
    low, high = min(scores.values()), max(scores.values())
    left = 18 + 8 * min(max(map(len, methods)), LONGEST)
    parts = [
        f'<text x="{left + (k + 0.5) * CELL:.0f}" y="{HEAD - 10}" text-anchor="middle">{esc(short(a, 7))}</text>'
        for k, a in enumerate(adapters)
    ]
    frames = []
    for i, method in enumerate(methods):
        top = HEAD + i * LINE
        parts.append(f'<text x="{left - 8}" y="{top + 17}" text-anchor="end">{esc(short(method, LONGEST))}</text>')
        for k, adapter in enumerate(adapters):
            if (score := scores.get((method, adapter))) is None:
                continue
            box = f'x="{left + k * CELL}" y="{top}" width="{CELL - 2}" height="{LINE - 2}"'
            shade = _shade(score, low, high)
            at = f'x="{left + (k + 0.5) * CELL - 1:.0f}" y="{top + 17}"'
            title = f"<title>{esc(method)}, {esc(adapter)}: {score * 100:.1f} %</title>"
            text = f'<text {at} text-anchor="middle">{score * 100:.1f}</text>'
            best = round(100 * score, 1) == round(100 * high, 1)  # as they read
            parts.append(f'<g class="h{shade}{" top" * best}">{title}<rect {box} rx="2"/>{text}</g>')
            if best:
                frames.append(f'<rect class="frame" {box} rx="2"/>')
    width, height = left + len(adapters) * CELL + 4, HEAD + len(methods) * LINE + 4
    first = max(scores, key=scores.__getitem__)
    label = f"Heat map of accuracy on {stream}: {len(methods)} methods by {len(adapters)} adapters, "
    label += f"{low * 100:.1f} to {high * 100:.1f} %, best {first[0]} with {first[1]}"
    return drawing("plot heat", width, height, label, "".join(parts + frames), titled=False, fixed=True)


def _shade(score: float, low: float, high: float) -> int:
    return min(int((score - low) / (high - low) * SHADES), SHADES - 1) if high > low else SHADES // 2
