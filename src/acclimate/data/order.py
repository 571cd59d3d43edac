"""Whose the rows of a table are, and whether they are in the order of time."""

from __future__ import annotations

import contextlib
from typing import Any

import numpy as np

from ..core import check
from . import dates, periods
from .columns import ValueColumn

SORT = "sort the rows by time (data.time), or name the column that tells series apart (data.client)"


def check_roles(record: Any, *pairs: tuple[str, str]) -> None:
    """Refuse fields of a record that name one column, which cannot say both."""
    for one, other in pairs:
        if (column := getattr(record, one)) and column == getattr(record, other):
            raise check.FieldError(
                f"{type(record).__name__}: {one}={column!r} and {other}={column!r} are the same column; name another "
                f"for {other}" + (", or leave it out" if other in ("client", "domain", "time") else ""),
                other,
                one,
            )


def grouped(column: ValueColumn, where: str, field: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Every row's number from 0, and the names of the numbers in order; refuses rows that name none."""
    if column.missing.any():
        what = f"{column.name!r} is missing in row {first_missing(column)}"
        raise ValueError(f"{where}: {what}; fill it, or remove the row (data.{field})")
    return dates.named(column).groups()


def first_missing(column: ValueColumn) -> str:
    """The first row in which a column says nothing, and how many more there are."""
    gone = np.flatnonzero(column.missing)
    return f"{gone[0] + 1}" + (f" and {len(gone) - 1:,} more" if len(gone) > 1 else "")


def times(column: ValueColumn) -> np.ndarray | None:
    """The numbers, dates or times of day of a column as numbers; None where it has neither."""
    values = column.numbers if column.numbers is not None else dates.read(column, False, "").numbers
    if values is None:
        with contextlib.suppress(ValueError):
            values = np.array(column.words, "datetime64[us]").astype(np.int64).astype(np.float64)[column.codes]
    return values


def dated(frame: Any, name: str = "") -> tuple[Any, str]:
    """A frame whose index of dates, periods or durations is called `name` where it has no name itself, and what it is
    called; empty where the index is another, or a column is called so."""
    index: Any = getattr(frame, "index", None)
    if not periods.of_time(index):
        return frame, ""
    called = index.name if isinstance(index.name, str) else name or "time"
    return (frame, "") if called in frame.columns else (frame.rename_axis(called), called)


def check_time(
    column: ValueColumn, users: np.ndarray | None, names: tuple[str, ...], where: str, remedy: str = SORT
) -> None:
    """Refuse rows that are not in the order of time; `remedy` is what to do then."""
    values, field = times(column), "(data.time)"
    if values is None:
        raise ValueError(
            f"{where}: {column.name!r} has no numbers, no dates as 2024-05-31 and no times as 08:30 {field}; "
            f"it holds {column.words[0]!r}"
        )
    if column.missing.any():
        what = f"{column.name!r} is missing in row {first_missing(column)}"
        raise ValueError(f"{where}: {what}; fill it, or remove it {field}")
    owner = np.zeros(len(values), np.int64) if users is None else users
    rows = np.argsort(owner, kind="stable")
    back = np.flatnonzero((np.diff(values[rows]) < 0) & (np.diff(owner[rows]) == 0))
    if len(back):
        row = int(rows[back[0] + 1])
        who = "" if users is None else f" of client {names[users[row]]!r}"
        raise ValueError(f"{where}: {column.name!r} goes backwards in row {row + 1}{who}; {remedy}")
