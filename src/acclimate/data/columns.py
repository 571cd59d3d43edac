"""Columns of a table: from CSV and Parquet files, data frames and dicts. Numbers or words, with what is missing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from numbers import Real
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ..ops import opening
from ..ops.layout import near, some
from . import delimited, periods
from .delimited import MISSING, STROKES, number
from .formats import AGAIN, lazy

MOST = 1 << 28
"""How many cells are read at most: 2 GiB as 64-bit numbers."""
LONGEST = 1 << 20
"""How many bytes a line may have: what is longer is no line of text."""
EXACT = 1 << 53
"""From here on 64-bit floating-point numbers no longer tell whole numbers apart."""
_PARQUET = (".parquet", ".pq")
_PADDED = re.compile(r"0\d+")


class ValueColumn(NamedTuple):
    """One column: `numbers`, NaN where one is missing; or `codes`, places in `words`, -1 where one is missing."""

    name: str
    numbers: np.ndarray | None = None
    words: tuple[str, ...] = ()
    codes: np.ndarray | None = None
    unit: str = ""
    """`days` (since 1970) or `hours` (since midnight), where numbers stand for dates or times."""

    def __len__(self) -> int:
        return len(self.codes if self.numbers is None else self.numbers)  # type: ignore[arg-type]

    @property
    def missing(self) -> np.ndarray:
        """True for rows where the column says nothing."""
        if self.numbers is not None:
            return np.isnan(self.numbers)
        assert self.codes is not None
        return self.codes < 0

    def groups(self) -> tuple[np.ndarray, tuple[str, ...]]:
        """Every row's number from 0, and the names of the numbers in order."""
        if self.numbers is None:
            assert self.codes is not None
            return self.codes.astype(np.int64), self.words
        if (np.abs(self.numbers) >= EXACT).any():
            row = int(np.flatnonzero(np.abs(self.numbers) >= EXACT)[0])
            raise ValueError(
                f"the column {self.name!r} has {self.numbers[row]:.0f} in row {row + 1}; numbers from {EXACT:,} on "
                "cannot be told apart: give them as text"
            )
        found, numbers = np.unique(self.numbers, return_inverse=True)
        return numbers.astype(np.int64), tuple(str(int(v)) if v == int(v) else repr(float(v)) for v in found)


def names_in(path: Path) -> list[str]:
    """The names of a file's columns."""
    if path.suffix.lower() in _PARQUET:
        return list(_parquet(path).schema_arrow.names)
    with delimited.opened(path) as (names, rows):
        next(rows, None)  # refuses one that has not as many cells as there are names: what was read are no names
        return names


def read(path: Path, wanted: Sequence[str], marks: Sequence[str] = ()) -> dict[str, ValueColumn]:
    """These columns of a .parquet file, or else of a text file with a header (CSV; .gz is unpacked).

    `marks` are those whose values tell rows apart, such as clients: numbers that are too large for that, or begin with
    zeros, become words.
    """
    if path.suffix.lower() in _PARQUET:
        return {n: of_values(n, values, n in marks) for n, values in cells(path, wanted).items()}
    return _read_csv(path, wanted, marks)


def cells(path: Path, wanted: Sequence[str]) -> dict[str, np.ndarray]:
    """These columns as they stand in a file: cells of text, of a .parquet file values."""
    if path.suffix.lower() in _PARQUET:
        file = _parquet(path)
        _bounded(path, file.metadata.num_rows, len(wanted))
        if twice := next((n for n in wanted if file.schema_arrow.names.count(n) > 1), None):
            raise ValueError(f"{path}: has the column {twice!r} twice; rename one of them")
        if not file.metadata.num_rows:
            raise ValueError(f"{path}: has no rows; it must have at least one")
        table = file.read(columns=list(wanted))
        return {n: table.column(n).to_numpy() for n in wanted}
    places = [names_in(path).index(n) for n in wanted]
    found: list[list[str]] = [[] for _ in wanted]
    for count, row in enumerate(_rows_of(path), 1):
        _bounded(path, count, len(wanted))
        for column, place in zip(found, places, strict=True):
            column.append(row[place])
    return {n: np.array(column, dtype=object) for n, column in zip(wanted, found, strict=True)}


def of_frame(frame: Any, marks: Sequence[str] = (), roles: Iterable[str] = ()) -> dict[str, ValueColumn]:
    """The columns of a data frame (pandas, polars) or of a dict of arrays and lists; `marks` as in `read`. `roles` are
    those of label, client and the like, which are also found in the index of a frame that has one."""
    names = _frame_names(frame)
    out = {}
    for name in names:
        values = frame[name]
        array = values.to_numpy() if hasattr(values, "to_numpy") else np.asarray(values)
        out[name] = of_values(name, array, name in marks)
    index: Any = getattr(frame, "index", None)
    for name in roles:
        if name not in out and name in (getattr(index, "names", None) or ()):
            out[name] = of_values(name, index.get_level_values(name).to_numpy(), name in marks)
    rows = {name: len(column) for name, column in out.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(f"Table: columns have {', '.join(f'{n} {c}' for n, c in rows.items())} rows; all need as many")
    if not max(rows.values()):
        raise ValueError("Table: the data frame has no rows; give at least one example of two classes")
    return out


def _frame_names(frame: Any) -> list[str]:
    """The names of a frame's columns; refuses what cannot be told apart or is no frame."""
    if hasattr(frame, "collect") and hasattr(frame, "collect_schema"):
        raise ValueError("Table: the data frame is lazy and holds no rows yet; give frame.collect()")
    given = frame if isinstance(frame, Mapping) else getattr(frame, "column_names", getattr(frame, "columns", ()))
    if not (names := list(given)):
        raise ValueError(
            f"Table: a {type(frame).__name__} has no columns; give a data frame, such as pandas.DataFrame(rows), or a "
            "dict of columns"
        )
    if odd := [n for n in names if not isinstance(n, str)]:
        raise ValueError(
            f"Table: the column {odd[0]!r} has no name in text; rename it, for example by "
            "frame.columns = [str(name) for name in frame.columns]"
        )
    if twice := next((n for i, n in enumerate(names) if n in names[:i]), None):
        raise ValueError(f"Table: the data frame has the column {twice!r} twice; rename one of them")
    return names


def of_values(name: str, values: np.ndarray, mark: bool = False) -> ValueColumn:
    """A column of an array: numbers, dates and periods (as days), durations (as seconds), words, or objects of these.

    Where it is a `mark`, whole numbers that 64-bit floating-point numbers do not tell apart, and periods, become words.
    """
    if values.ndim != 1:
        raise ValueError(f"Table: the column {name} has shape {values.shape}; it must have one value per row")
    if values.dtype.kind == "O" and not mark:
        values = periods.started(values)
    if values.dtype.kind == "M":
        return ValueColumn(name, np.where(np.isnat(values), np.nan, _days(values)), unit="days")
    if values.dtype.kind == "m":
        seconds = values.astype("timedelta64[ns]").astype(np.int64) / 1e9
        return ValueColumn(name, np.where(np.isnat(values), np.nan, seconds))
    if mark and values.dtype.kind in "iuO":
        values = _told_apart(values)
    if values.dtype.kind in "iufb":
        return _of_numbers(name, values.astype(np.float64))
    if values.dtype.kind == "S":
        values = np.char.decode(values, "utf-8", "backslashreplace")
    cells = [_cell(name, i, v) for i, v in enumerate(map(known, values))]
    if all(_is_number(c) or c == "" or c in STROKES for c in cells):
        return _of_numbers(name, np.array([float(c) if _is_number(c) else np.nan for c in cells], np.float64))
    return _of_words(name, [str(c).strip() for c in cells])


def _cell(name: str, row: int, value: Any) -> Any:
    """A value of an array of objects, empty where it says nothing."""
    if isinstance(value, Mapping | list | tuple | set | np.ndarray):
        kind = type(value).__name__
        raise ValueError(
            f"Table: the column {name!r} holds a {kind} in row {row + 1}; it must have one number or word per row, so "
            f"make columns of it, or leave it out (of a file with data.drop={name})"
        )
    return "" if value is None or value != value or str(value).strip().casefold() in MISSING else value


def _is_number(value: Any) -> bool:
    return isinstance(value, Real | Decimal) and not isinstance(value, bool)


def _told_apart(values: np.ndarray) -> np.ndarray:
    """Marks as they are; where a whole number is too large for floating point, all whole numbers as text."""
    whole = [isinstance(v, int | np.integer) for v in values.tolist()]
    if not any(is_one and abs(int(v)) >= EXACT for v, is_one in zip(values.tolist(), whole, strict=True)):
        return values
    return np.array([str(v) if is_one else v for v, is_one in zip(values.tolist(), whole, strict=True)], dtype=object)


def _days(values: np.ndarray) -> np.ndarray:
    """Days since 1970 of datetime64; those that 64 bits do not count in nanoseconds (beyond 2262) in microseconds."""
    far = np.abs(values.astype("datetime64[D]").astype(np.int64)) > 106_750
    near = np.where(far, np.datetime64("1970-01-01"), values).astype("datetime64[ns]").astype(np.int64)
    days: np.ndarray = np.where(far, values.astype("datetime64[us]").astype(np.int64) / 86400e6, near / 86400e9)
    return days


def carried(column: ValueColumn, whose: str = "") -> np.ndarray:
    """Numbers whose gaps hold the last reading before them; at the beginning, the first one.

    They are those of one series; `whose` it is stands in errors.
    """
    values = column.numbers
    assert values is not None
    known = ~np.isnan(values)
    if not known.any():
        of = f" of {whose}" if whose else " at all"
        raise ValueError(f"the column {column.name!r} has no reading{of}; leave it out with data.drop={column.name}")
    last = np.maximum.accumulate(np.where(known, np.arange(len(values)), -1))
    found: np.ndarray = values[np.where(last < 0, int(np.argmax(known)), last)]
    return found


def need(names: Iterable[str], wanted: Mapping[str, Sequence[str]], where: str) -> None:
    """Refuse columns that are not there, naming the setting and the nearest names. `wanted` is columns by setting."""
    there = list(names)
    for field, columns in wanted.items():
        for column in columns:
            if column not in there:
                close = near(column, there)
                hint = f"did you mean {' or '.join(map(repr, close))}? Its" if close else "its"
                raise ValueError(
                    f"{where}: has no column {column!r} (data.{field}); {hint} columns are {some(there)}{_doubt(there)}"
                )


def _doubt(names: Sequence[str]) -> str:
    """What to say of names that are hardly names of columns."""
    if len(names) == 1:
        return " alone; cells must be separated by a comma, a semicolon, a tab or a bar (|)"
    unusual = sum(number(str(n)) is not None for n in names) > 1
    return "; the first line must name the columns, so put one above it, or remove what is above" if unusual else ""


def known(value: Any) -> Any:
    """The value, or None where it says itself that it is none (pandas' NA, whose comparisons are no answers)."""
    return None if type(value).__name__ in ("NAType", "NaTType") else value


def _parquet(path: Path) -> Any:
    parquet = lazy("pyarrow.parquet", "acclimate[tables]", f"reading {path.name}")
    try:
        return parquet.ParquetFile(opening.checked(path))
    except (ValueError, OSError) as e:
        raise ValueError(f"{path}: not a readable Parquet file ({e}); {AGAIN}") from e


def _rows_of(path: Path) -> Iterator[list[str]]:
    """The rows below the header, blank lines left out, each with a cell for every column."""
    with delimited.opened(path) as (_, rows):
        yield from rows


def _filled_rows(path: Path) -> Iterator[list[str]]:
    """The same without those whose cells are all empty, as below the tables of spreadsheets."""
    return (row for row in _rows_of(path) if any(map(str.strip, row)))


def _read_csv(path: Path, wanted: Sequence[str], marks: Sequence[str]) -> dict[str, ValueColumn]:
    """Read twice: what is a number is known only at the end, and memory is taken once its size is known."""
    names = names_in(path)
    places = [names.index(n) for n in wanted]
    numeric, count = [True] * len(wanted), 0
    for row in _filled_rows(path):
        count += 1
        for i, place in enumerate(places):
            if numeric[i] and (
                (value := number(row[place])) is None or (wanted[i] in marks and _name(row[place], value))
            ):
                numeric[i] = False
        if count * len(wanted) > MOST:
            _bounded(path, count, len(wanted))
    if not count:
        raise ValueError(f"{path}: is empty below its first line; it must have at least one row")
    numbers = {i: np.empty(count, np.float64) for i, is_one in enumerate(numeric) if is_one}
    codes = {i: np.empty(count, np.int32) for i, is_one in enumerate(numeric) if not is_one}
    words: dict[int, dict[str, int]] = {i: {} for i in codes}
    for at, row in enumerate(_filled_rows(path)):
        for i, values in numbers.items():
            values[at] = number(row[places[i]])
        for i, places_of in codes.items():
            cell = row[places[i]].strip()
            places_of[at] = -1 if cell.casefold() in MISSING else words[i].setdefault(cell, len(words[i]))
    found = [
        _of_numbers(n, numbers[i], path) if i in numbers else _sorted(n, codes[i], list(words[i]))
        for i, n in enumerate(wanted)
    ]
    return dict(zip(wanted, found, strict=True))


def _bounded(path: Path, rows: int, columns: int) -> None:
    if rows * columns > MOST:
        raise ValueError(
            f"{path}: is too large to be read at once: over {MOST // columns:,} rows of {columns} columns, and at most "
            f"{MOST:,} cells are read; name fewer columns (data.columns=), or give a part of the rows"
        )


def _name(cell: str, value: float) -> bool:
    """Whether the number of a mark is a name that is more than its value: 007, 5 %, or too large to be told apart."""
    return EXACT <= abs(value) < np.inf or _PADDED.fullmatch(cell.strip()) is not None or cell.strip().endswith("%")


def _of_numbers(name: str, values: np.ndarray, where: Any = "Table") -> ValueColumn:
    if np.isinf(values).any():
        row = int(np.flatnonzero(np.isinf(values))[0])
        raise ValueError(f"{where}: the column {name!r} is infinite in row {row + 1}; leave the cell empty instead")
    return ValueColumn(name, values)


def _of_words(name: str, cells: Sequence[str]) -> ValueColumn:
    places: dict[str, int] = {}
    codes = np.array([-1 if c == "" else places.setdefault(c, len(places)) for c in cells], np.int32)
    return _sorted(name, codes, list(places))


def _sorted(name: str, codes: np.ndarray, words: list[str]) -> ValueColumn:
    """Words in alphabetical order, so that their numbers do not depend on the order of rows."""
    order = sorted(range(len(words)), key=words.__getitem__)
    place = np.empty(len(words) + 1, np.int32)
    place[order] = np.arange(len(words))
    place[-1] = -1
    return ValueColumn(name, None, tuple(words[i] for i in order), place[codes])


def lines(path: Path) -> Iterator[str]:
    """The lines of a file in UTF-8, one after the other, whatever its size; unpacked where it is packed."""
    with delimited.unpacked(path) as f:
        wide = delimited.begin(f, path).startswith((b"\xff\xfe", b"\xfe\xff"))
        number = 0
        while raw := f.readline(LONGEST + 1):
            number += 1
            if len(raw) > LONGEST:
                raise ValueError(f"{path}: line {number} is longer than {LONGEST:,} bytes; is it a file of text?")
            try:
                yield raw.decode("utf-8-sig" if number == 1 else "utf-8")
            except UnicodeDecodeError as e:
                raise ValueError(
                    f"{path}: line {number} is not UTF-8 (byte 0x{raw[e.start]:02x} at {e.start}); save the file as "
                    f"UTF-8, for example with iconv -f {'utf-16' if wide else 'latin1'} -t utf-8"
                ) from e
