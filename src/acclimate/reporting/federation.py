"""The data of a federation: who holds how much of what, and what its streams look like."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

from .board import Board
from .style import details, esc, facts, num, scroll, span, table
from .svg import drawing

MOST_BUBBLES = 2000
MOST_TITLES = 400


def section(board: Board) -> str:
    """Every federation's card; runs on the same data share one."""
    cards: dict[Any, Any] = {}
    for run in board.runs:
        card = run["results"].get("data") or {}
        cards.setdefault((card.get("name"), card.get("hash"), card.get("seed")), card)
    return "".join(data_card(card, i == 0) for i, card in enumerate(cards.values()))


def bubbles(counts: Sequence[Sequence[float]], classes: Sequence[str], label: str) -> str:
    """Clients across, classes down, the area of a bubble for how many examples. Wide federations are cut short."""
    shown = counts[: max(MOST_BUBBLES // max(len(classes), 1), 1)]
    cell, left, top = 24, 24 + 7 * min(max(map(len, classes), default=0), 15), 34
    most = max((n for row in shown for n in row), default=0) or 1
    titled = len(shown) * len(classes) <= MOST_TITLES
    parts = [f'<text x="{left}" y="12">Client</text>']
    every = math.ceil(len(shown) / 30)
    for i in range(0, len(shown), every):
        parts.append(f'<text x="{left + (i + 0.5) * cell:.0f}" y="{top - 6}" text-anchor="middle">{i}</text>')
    for k, name in enumerate(classes):
        short = name if len(name) <= 15 else name[:14] + "\u2026"
        parts.append(
            f'<text x="{left - 10}" y="{top + (k + 0.5) * cell + 4:.0f}" text-anchor="end">{esc(short)}</text>'
        )
    for i, row in enumerate(shown):
        for k, n in enumerate(row[: len(classes)]):
            if n > 0:
                title = f"<title>client {i}, {esc(classes[k])}: {n:g}</title>" if titled else ""
                r = max(math.sqrt(n / most) * (cell / 2 - 1), 0.8)
                at = f'cx="{left + (i + 0.5) * cell:.0f}" cy="{top + (k + 0.5) * cell:.0f}" r="{r:.1f}"'
                parts.append(f'<circle class="bubble" {at}>{title}</circle>')
    width, height = left + len(shown) * cell + 6, top + len(classes) * cell + 6
    svg = drawing("plot", width, height, label, "".join(parts)).replace(
        "<svg", f'<svg width="{width}" height="{height}"', 1
    )
    note = f"Area is the number of training examples; the largest is {most:g}."
    note += f" The first {len(shown)} of {len(counts)} clients." * (len(shown) < len(counts))
    return f'{scroll(label, svg)}<p class="muted">{note}</p>'


def data_card(card: Mapping[str, Any], is_open: bool) -> str:
    """One federation: who holds how much of what, and the hashes that name it."""
    classes = [str(c) for c in card.get("classes") or ()]
    counts = [[num(n) for n in row] for row in (card.get("histograms") or {}).get("train") or ()]
    said = f"Training examples of {len(counts)} clients by class"
    plot = bubbles(counts, classes, said) if counts and classes else ""
    rows = []
    for name, part in (card.get("splits") or {}).items():
        sizes = [num(n) for n in part.get("sizes") or ()]
        cells = f'<td class="num">{span([sum(sizes)])}</td><td class="num">{span(sizes)}</td>'
        rows.append(f'<th scope="row">{esc(name)}</th>{cells}<td><code>{esc(part.get("hash"))}</code></td>')
    head = [("Split", ""), ("Examples", "num"), ("Per client", "num"), ("Hash", "")]
    known = {k: card[k] for k in ("examples", "clients", "shape", "domains", "hash") if k in card}
    known |= {f"stream {k}": v for k, v in (card.get("streams") or {}).items()}
    body = f"{plot}{facts(known.items())}{table('Splits', head, rows)}"
    return details(f"{card.get('name')}, seed {card.get('seed')}", "clients by class, splits and hashes", body, is_open)
