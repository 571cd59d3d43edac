"""Tables with a line per method and adapter: the best of a column is marked, and page.js sorts and filters them."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

from .board import BoardRow
from .style import caption, esc, scroll

MANY = 24
"""From how many lines on a table scrolls under its own head."""
SHARE = 3
"""The decimals of a share, which is shown in per cent with one."""
MARK = '<span class="vh"> best</span>'
"""What names the best of a column to those who do not see its colour; page.js writes the same."""


@dataclass(frozen=True)
class TableColumn:
    """One column after method and adapter."""

    title: str
    """The head of the column, as HTML."""
    best: Literal["max", "min", ""] = ""
    """Whether the largest or the smallest number of the column is marked."""
    digits: int = SHARE
    """Numbers that agree to so many decimals, as they are shown, are equally good."""
    stream: int | None = None
    """The stream that the column is about; the column is hidden when that stream is filtered out."""
    key: str = ""
    """A name by which page.js finds the column."""


@dataclass(frozen=True)
class TableCell:
    """What stands in a cell, and the number it is sorted by."""

    html: str
    value: float = math.nan
    hint: str = ""
    """A tooltip, in plain text."""


def board_table(
    name: str, columns: Sequence[TableColumn], rows: Sequence[tuple[BoardRow, Sequence[TableCell]]], cls: str = ""
) -> str:
    """The table; `name` is its caption, in plain text."""
    best = [_best(c, [cells[i].value for _, cells in rows]) for i, c in enumerate(columns)]
    head = '<th scope="col">Method</th><th scope="col">Adapter</th>' + "".join(map(_head, columns))
    body = []
    for row, cells in rows:
        drawn = "".join(
            _cell(cell, most is not None and _read(column, cell.value) == most)
            for cell, column, most in zip(cells, columns, best, strict=True)
        )
        body.append(
            f'<tr data-r="{row.place}"><th scope="row">{esc(row.name)}</th><td>{esc(row.adapter)}</td>{drawn}</tr>'
        )
    inner = f"{caption(name)}<thead><tr>{head}</tr></thead><tbody>{''.join(body)}</tbody>"
    return scroll(name, f'<table class="{f"board sortable {cls}".strip()}">{inner}</table>', tall=len(rows) > MANY)


def _best(column: TableColumn, values: Sequence[float]) -> float | None:
    finite = [_read(column, v) for v in values if math.isfinite(v)]
    if not finite or not column.best:
        return None
    return max(finite) if column.best == "max" else min(finite)


def _read(column: TableColumn, value: float) -> float:
    """A number as a reader sees it: rounding a share first and its per cent first differ, 0.8135 being 81.3 %."""
    return round(100 * value, SHARE - 2) if column.digits == SHARE else round(value, column.digits)


def _head(column: TableColumn) -> str:
    known = {"best": column.best, "s": column.stream, "key": column.key}
    data = "".join(f' data-{k}="{esc(v)}"' for k, v in known.items() if v not in (None, ""))
    return f'<th scope="col" class="num"{data}>{column.title}</th>'


def _cell(cell: TableCell, best: bool) -> str:
    order = f"{cell.value:.6g}" if math.isfinite(cell.value) else ""
    hint = f' title="{esc(cell.hint)}"' if cell.hint else ""
    return f'<td class="num{" best" * best}" data-v="{order}"{hint}>{cell.html}{MARK * best}</td>'
