"""What a method costs its clients: accuracy against upload, and what left them by name, shape and bytes."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from ...ops.layout import counted
from .. import svg
from ..board import Board
from ..style import DASH, details, esc, fixed, num, size, span, table, views


def against_upload(board: Board) -> str:
    """The scatter of accuracy against all that was uploaded."""
    return views(board.selections, lambda s: _scatter(board, s))


def _scatter(board: Board, selection: str) -> str:
    kinds = board.adapters
    dots = [
        svg.Dot(r.name, r.adapter, r.tone, kinds.index(r.adapter), r.cost("up_bytes_total"), y)
        for r in board.shown(selection)
        if math.isfinite((y := r.score(selection, board.streams)) + r.cost("up_bytes_total"))
    ]
    label = "Mean accuracy over streams, %"
    return svg.scatter(dots, "Uploaded in training, all clients", label) if dots else "<p>There is nothing to draw.</p>"


def messages(board: Board) -> str:
    """Every method's message, folded."""
    costs: dict[str, Any] = {}
    for name, run in zip(board.names, board.runs, strict=True):
        costs.setdefault(name, run["results"].get("cost") or {})
    return "".join(message(name, cost) for name, cost in costs.items())


def message(name: str, cost: Mapping[str, Any], most: int = 200) -> str:
    """What one client sends in one round: a folded table of names, shapes and bytes."""
    sent = cost.get("message") or []
    up, down = (size(num(cost.get(f"{way}_bytes_per_client"))).replace(DASH, "?") for way in ("up", "down"))
    rows = []
    for m in sent[:most]:
        shape = " &times; ".join(esc(n) for n in m.get("shape") or ()) or "one number"
        cells = f'<th scope="row">{esc(m.get("group"))}</th><td><code>{esc(m.get("name"))}</code></td>'
        cells += f"<td>{shape}</td><td>{esc(m.get('dtype'))}</td>"
        rows.append(f'{cells}<td class="num">{span([m.get("bytes")], ",.0f")}</td>')
    head = [("Group", ""), ("Name", ""), ("Shape", ""), ("Type", ""), ("Bytes", "num")]
    body = table(f"What left the client: {name}", head, rows) if rows else "<p>Nothing left the client.</p>"
    body += f"<p>{len(sent) - most} more are not shown.</p>" * (len(sent) > most)
    body += "".join(f"<p>{promise(card)}</p>" for card in cost.get("filters") or ())
    return details(name, f"{up} up, {down} down per client and round, {counted(len(sent), 'tensor')} sent", body)


def promise(card: Mapping[str, Any]) -> str:
    """What a message filter says of the run, in one paragraph: its epsilon, against whom, and what that assumes."""
    text = f"<b>{esc(card.get('filter'))}</b>"
    if "mechanism" in card:
        text += f": {esc(card['mechanism'])}."
    if "epsilon" in card:
        text += f" Epsilon {fixed(num(card['epsilon']), 2)} at delta {esc(card.get('delta'))}."
    if "protects" in card:
        text += f" Protects {esc(card['protects'])}."
    return f"{text} {esc(card.get('assumes', ''))}".rstrip()
