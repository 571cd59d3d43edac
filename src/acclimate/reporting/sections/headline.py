"""The headline: every method and adapter on every stream, with what it takes to filter, sort and save the table."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

from ...ops.layout import counted
from ..board import Board, BoardRow, joined, label
from ..board_table import TableCell, TableColumn, board_table
from ..style import deviation, esc, fixed, num, pct, size, span, views

FORMS = {"csv": "CSV", "md": "Markdown", "tex": "LaTeX"}
"""What the table can be saved as, by file name ending."""
PER_SEED = ("seed", "accuracy", "std", "loss", "ece", "round")
"""What the page's record holds of one seed, in this order."""


def section(board: Board) -> str:
    """The tables of the last and of the selected round, with their tools, and what was refused."""
    note = "Accuracy in %, mean over clients &plusmn; standard deviation over clients."
    counts = {len(c) for r in board.rows for c in r.cells.values()}
    if max(counts, default=0) > 1:
        note += f" Both are means over seeds ({span(counts)} per cell); &lsquo;seeds &plusmn;&rsquo; is the sample"
        note += " standard deviation of the accuracy over seeds."
    note += " The best of every column is marked; upload is what one client sends in one round."
    tables = views(board.selections, lambda s: _table(board, s))
    return f'<p class="muted">{note}</p>{_tools(board)}{tables}{_refused(board)}'


def _table(board: Board, selection: str) -> str:
    columns = [TableColumn(esc(s), "max", stream=i) for i, s in enumerate(board.streams)]
    columns += [TableColumn("Mean over streams", "max", key="mean"), TableColumn("Upload per client and round")]
    timed = any(math.isfinite(r.served("ms_per_sample")) for r in board.rows)
    columns += [TableColumn("Adaptation, ms per sample", "min", 2), TableColumn("Adapter's state per client")] * timed
    rows = [(r, _line(r, selection, board.streams, timed)) for r in board.shown(selection)]
    return board_table(f"Results, {board.selections[selection]}", columns, rows, "headline")


def _line(row: BoardRow, selection: str, streams: Sequence[str], timed: bool) -> list[TableCell]:
    up = row.cost("up_bytes_per_client")
    cells = [*(_cell(row, selection, s) for s in streams), _overall(row, selection, streams), TableCell(size(up), up)]
    time, kept = row.served("ms_per_sample"), row.served("state_bytes")
    return cells + [TableCell(fixed(time, 2), time), TableCell(size(kept), kept)] * timed


def _cell(row: BoardRow, selection: str, stream: str) -> TableCell:
    """Accuracy on one stream, its spread over clients, and its spread over seeds."""
    values, score = row.by_seed(selection, [stream]), row.score(selection, [stream])
    if not math.isfinite(score):
        return TableCell(f"<b>{pct(score)}</b>")
    std, loss, ece = (row.score(selection, [stream], k) for k in ("std", "loss", "ece"))
    text = f'<b>{pct(score)}</b> <span class="pm">&plusmn; {pct(std)}</span>{_seeds(values)}'
    rounds = span(row.by_seed(selection, [stream], "round"))
    facts = [f"{name} {fixed(v, 3)}" for name, v in (("loss", loss), ("ECE", ece)) if math.isfinite(v)]
    return TableCell(text, score, ", ".join([*facts, f"round {rounds}"]))


def _overall(row: BoardRow, selection: str, streams: Sequence[str]) -> TableCell:
    """The mean over streams; page.js writes it anew, in the same form, when streams are filtered."""
    values, score = row.by_seed(selection, streams), row.score(selection, streams)
    return TableCell(f"<b>{pct(score)}</b>{_seeds(values)}", score)


def _seeds(values: Sequence[float]) -> str:
    return f"<small>seeds &plusmn; {pct(deviation(values))}</small>" if len(values) > 1 else ""


def _refused(board: Board) -> str:
    found = []
    for run, name in zip(board.runs, board.names, strict=True):
        for f in run["results"].get("refused") or ():
            what = f"{joined(f)}{name.removeprefix(label(run))} with {f.get('adapter')}"
            found.append(f"<li><b>{esc(what)}</b>: {esc(f.get('reason'))}</li>")
    if not found:
        return ""
    listed = list(dict.fromkeys(found))
    title = f"{counted(len(listed), 'combination')} refused"
    start = "<details open>" if len(listed) <= 6 else "<details>"
    return f"{start}<summary>{title} <span>which, and why</span></summary><ul>{''.join(listed)}</ul></details>"


# --- filters and downloads: hidden until page.js shows them, because they do nothing without it ----------------------


def _tools(board: Board) -> str:
    """Filters for the whole page, and buttons that save the headline table as it is shown."""
    if not board.rows:
        return ""
    text = '<label>Method <input type="search" id="filter" autocomplete="off" placeholder="part of a name"></label>'
    picks = [_choice("adapter", "Adapters", board.adapters), _choice("stream", "Streams", board.streams)]
    buttons = "".join(f'<button type="button" data-save="{k}">{name}</button>' for k, name in FORMS.items())
    save = f'<div class="save" role="group" aria-label="Save the table as shown"><span>Save as</span>{buttons}</div>'
    count = '<output id="count" aria-live="polite"></output><button type="reset">Show all</button>'
    return (
        f'<form class="tools" id="tools" aria-label="Filters and downloads" hidden>{text}{"".join(picks)}'
        f'<div class="foot">{count}{save}</div></form>'
    )


def _choice(name: str, title: str, options: Sequence[str]) -> str:
    """A check box per option, where there is a choice."""
    if len(options) < 2:
        return ""
    boxes = "".join(
        f'<label class="chip"><input type="checkbox" name="{name}" value="{i}" checked> {esc(o)}</label>'
        for i, o in enumerate(options)
    )
    return f"<fieldset><legend>{title}</legend>{boxes}</fieldset>"


def record(board: Board, title: str) -> str:
    """The table as JSON in a script element: what page.js filters by and writes files from."""
    adapters = board.adapters
    rows = [
        {
            "method": r.name,
            "adapter": adapters.index(r.adapter),
            "up": _plain(r.cost("up_bytes_per_client")),
            "cells": {k: [_numbers(r.cells.get((k, s), {})) for s in board.streams] for k in board.selections},
        }
        for r in board.rows
    ]
    body = {"title": title, "adapters": adapters, "streams": board.streams, "selections": board.selections}
    text = json.dumps({**body, "perSeed": PER_SEED, "rows": rows}, separators=(",", ":"))
    safe = "".join(f"\\u{ord(c):04x}" if c in "<>&'" else c for c in text)  # so that nothing ends the element
    return f'<script type="application/json" id="record">{safe}</script>'


def _numbers(seeds: Mapping[Any, Mapping[str, Any]]) -> list[list[Any]]:
    return [[seed, *(_plain(num(t.get(k))) for k in PER_SEED[1:])] for seed, t in seeds.items()]


def _plain(value: float) -> float | int | None:
    """A number that JSON can hold, in no more digits than anyone needs."""
    if not math.isfinite(value):
        return None
    short = float(f"{value:.6g}") if abs(value) < 1e6 else round(value)
    return int(short) if short == int(short) else short
