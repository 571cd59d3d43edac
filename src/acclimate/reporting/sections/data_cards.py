"""The data of a federation: who holds how much of what, and the hashes that name it."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..board import Board
from ..bubbles import BubbleColumn, bubble_plot
from ..style import details, esc, facts, num, span, table


def section(board: Board) -> str:
    """Every federation's card; runs on the same data share one."""
    cards: dict[Any, Any] = {}
    for run in board.runs:
        card = run["results"].get("data") or {}
        cards.setdefault((card.get("name"), card.get("hash"), card.get("seed")), card)
    return "".join(data_card(card, i == 0) for i, card in enumerate(cards.values()))


def data_card(card: Mapping[str, Any], is_open: bool) -> str:
    """One federation: its clients and classes, its facts, and a table of its splits."""
    classes = [str(c) for c in card.get("classes") or ()]
    counts = [[num(n) for n in row] for row in (card.get("histograms") or {}).get("train") or ()]
    label = f"Training examples of {len(counts)} clients by class"
    columns = [BubbleColumn(str(i), row) for i, row in enumerate(counts)]
    plot = bubble_plot(columns, classes, label) if counts and classes else ""
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
