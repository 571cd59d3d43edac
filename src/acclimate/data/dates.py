"""Dates and times in the cells of a table, as numbers: days since 1970, and hours since midnight."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from datetime import UTC, date, datetime, time, timedelta
from typing import TypeAlias

import numpy as np

from .columns import ValueColumn

_MINUTES = r":\d{2}(?::\d{2}(?:\.\d+)?)?"
_ISO = re.compile(rf"(\d{{4}}-\d{{2}}-\d{{2}})(?:[T ](\d{{1,2}})({_MINUTES})( ?UTC|Z|[+-]\d{{2}}(?::?\d{{2}})?)?)?")
_PLAIN = re.compile(r"(\d{4})(/?)(\d{2})\2(\d{2})(?:\.0)?")
_TIME = re.compile(rf"\d{{2}}{_MINUTES}")
Reader: TypeAlias = Callable[[str], float | None]
_START = datetime(1970, 1, 1, tzinfo=UTC)
FORMS = "2024-05-31, 2024-05-31T08:30, 2024/05/31 and 20240531, for times 08:30"


def days(cell: str) -> float | None:
    """Days since 1970 of a date as ISO 8601 writes it, with or without a time; None where the cell is no date.

    A time without an offset counts as UTC. As databases and spreadsheets write them, an offset may have hours alone
    (+02) and the hour one digit.
    """
    if not (parts := _ISO.fullmatch(cell)):
        return None
    day, hour, minutes, offset = parts.groups("")
    offset = "Z" if offset.endswith("UTC") else offset
    try:
        found = datetime.fromisoformat(f"{day}T{hour.zfill(2)}{minutes}{offset}" if hour else day)
        return ((found if found.tzinfo else found.replace(tzinfo=UTC)) - _START) / timedelta(days=1)
    except (ValueError, OverflowError):
        return None


def plain_days(cell: str) -> float | None:
    """The same, also of 2024/05/31 and 20240531, which might be other numbers."""
    if found := _PLAIN.fullmatch(cell):
        cell = f"{found[1]}-{found[3]}-{found[4]}"
    return days(cell)


def hours(cell: str) -> float | None:
    """Hours since midnight of a time such as 08:30 or 08:30:15; None where the cell is no time."""
    if not _TIME.fullmatch(cell):
        return None
    try:
        found = time.fromisoformat(cell)
    except ValueError:
        return None
    return found.hour + found.minute / 60 + (found.second + found.microsecond / 1e6) / 3600


def iso(day: float) -> str:
    """A whole number of days since 1970 as a date."""
    return (date(1970, 1, 1) + timedelta(days=int(day))).isoformat()


def moment(day: float) -> str:
    """Days since 1970 as a date, with the time in UTC where there is one: to the microsecond, or to the millisecond far
    from 1970, where microseconds are not told apart."""
    near = abs(day) < 1 << 15
    at = np.datetime64(round(day * 86400e6), "us") if near else np.datetime64(round(day * 86400e3), "ms")
    return str(at).rstrip("0").removesuffix(".").removesuffix("T00:00:00").removesuffix(":00")


def named(column: ValueColumn) -> ValueColumn:
    """The column with its dates as words, which name classes, clients and domains. A date has one name, however a table
    writes it."""
    found = read(column, False, "")
    if found.unit != "days" or found.numbers is None:
        return column
    different, places = np.unique(found.numbers[~found.missing], return_inverse=True)
    words, codes = np.unique(list(map(moment, different)), return_inverse=True)
    spread = np.full(len(column), -1, np.int32)
    spread[~found.missing] = codes[places]
    return ValueColumn(column.name, None, tuple(words.tolist()), spread)


def read(column: ValueColumn, asked: bool, where: str) -> ValueColumn:
    """The column with its dates or times as numbers; as it is where it has none, unless they were asked for."""
    cells = _cells(column, asked)
    if column.unit or not (cells or asked):
        return column
    for unit, value in (("days", plain_days if asked else days), ("hours", hours)):
        if cells and (found := _each(cells, value)) is not None:
            return ValueColumn(column.name, _spread(column, found), unit=unit)
    if asked:
        raise _refusal(column, cells, plain_days, where)
    return column


def numbers(column: ValueColumn, unit: str, where: str) -> np.ndarray:
    """The numbers of a column that must hold dates (`days`) or times (`hours`), NaN where one is missing."""
    if column.numbers is not None and column.unit == unit:
        return column.numbers
    if bool(column.missing.all()):
        return np.full(len(column), np.nan)
    cells, value = _cells(column, True), plain_days if unit == "days" else hours
    if column.unit or (found := _each(cells, value)) is None:
        raise _refusal(column, cells, value, where)
    return _spread(column, found)


def _refusal(column: ValueColumn, cells: Sequence[str], value: Reader, where: str) -> ValueError:
    what = "times" if value is hours else "dates"
    odd = next((c for c in cells if value(c) is None), "")
    return ValueError(f"{where}: the column {column.name!r} holds {odd!r}, and is one of {what}; allowed are {FORMS}")


def _each(cells: Sequence[str], value: Reader) -> list[float] | None:
    found = list[float]()
    for cell in cells:
        if (one := value(cell)) is None:
            return None
        found.append(one)
    return found


def _cells(column: ValueColumn, asked: bool) -> tuple[str, ...]:
    """The different words of a column; where dates were asked for, its different numbers as text."""
    if column.numbers is None:
        return column.words
    return tuple(f"{v:.15g}" for v in np.unique(column.numbers[~column.missing])) if asked else ()


def _spread(column: ValueColumn, found: list[float]) -> np.ndarray:
    """A value per row, of one for each of the cells above."""
    values, places = np.array([*found, np.nan]), column.codes
    if column.numbers is not None:
        places = np.searchsorted(np.unique(column.numbers[~column.missing]), column.numbers)
    assert places is not None
    spread: np.ndarray = values[np.where(column.missing, len(found), places)]
    return spread
