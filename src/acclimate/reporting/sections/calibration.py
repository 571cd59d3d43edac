"""Whether the models know how sure they may be: expected calibration error and loss of every row."""

from __future__ import annotations

import math

from ..board import Board, BoardRow
from ..board_table import TableCell, TableColumn, board_table
from ..style import deviation, esc, fixed, pct, views


def section(board: Board) -> str:
    """A table of calibration errors; nothing where no run has them."""
    keys = [(r, *key) for r in board.rows for key in r.cells]
    if not any(math.isfinite(r.score(selection, [stream], "ece")) for r, selection, stream in keys):
        return ""
    note = (
        "Expected calibration error in % (15 equal-width bins, mean over clients): how far confidence and accuracy lie"
        " apart. Less is better; the least of every column is marked. Below it, the mean cross-entropy. Clients with"
        " few test samples have a high error by chance alone, so compare rows, not data sets."
    )
    return f'<p class="muted">{note}</p>{views(board.selections, lambda s: _table(board, s))}'


def _table(board: Board, selection: str) -> str:
    columns = [TableColumn(esc(s), "min", stream=i) for i, s in enumerate(board.streams)]
    rows = board.shown(selection)
    errors = [r.score(selection, [s], "ece") for r in rows for s in board.streams]
    worst = max((e for e in errors if math.isfinite(e)), default=0.0)
    body = [(r, [_cell(r, selection, s, worst) for s in board.streams]) for r in rows]
    return board_table(f"Calibration error, {board.selections[selection]}", columns, body, "errors")


def _cell(row: BoardRow, selection: str, stream: str, worst: float) -> TableCell:
    """The error as number and bar, its spread over seeds, and the loss."""
    errors, loss = row.by_seed(selection, [stream], "ece"), row.score(selection, [stream], "loss")
    error = row.score(selection, [stream], "ece")
    if not math.isfinite(error):
        return TableCell(f"<b>{pct(error)}</b>")
    between = f' <span class="pm">&plusmn; {pct(deviation(errors))}</span>' if len(errors) > 1 else ""
    bar = f'<i class="bar" style="--w:{error / worst * 100 if worst else 0:.0f}%"></i>'
    return TableCell(f"<b>{pct(error)}</b>{between}{bar}<small>loss {fixed(loss, 2)}</small>", error)
