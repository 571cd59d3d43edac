"""Raw rows and texts as a live model meets them: brought into its inputs by what was fitted when it was trained."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from ..ops import text as text_ids
from ..ops.layout import counted, near, some
from . import columns, dates, order, remarks
from .delimited import MISSING, number
from .tokenizing import Tokenizing
from .world import Feature, Scale

FILES = (".csv", ".tsv", ".gz", ".bz2", ".xz", ".txt", ".parquet", ".pq")
"""Endings of files of raw rows or texts."""


@dataclass(frozen=True)
class RawRows:
    """Rows of a table: columns by name, as they stand in a file, a data frame or a dict."""

    features: tuple[Feature, ...]
    """What each input stands for, and what a missing number is filled with."""
    scale: Scale | None = None
    """The client's own mean and deviation, where its rows are scaled by these and not in the model."""
    refuses: bool = False
    """Whether a missing cell is refused, as the model's data had it (`data.missing=refuse`)."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are read, and of each `number`, `date`, `time` or `word`."""
        return {f.column: f.kind for f in self.features if f.kind != "missing"}

    def of(self, table: Any, where: str, unknown: dict[str, str] | None = None) -> np.ndarray:
        """Inputs [N, features] of a data frame, or of a dict of columns; other columns are left alone.

        `unknown` takes up what is to be said, by column, of words that no training row had.
        """
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
        given = _given(table, names, list(self.columns), where)
        x = np.empty((len(next(iter(given.values()))), len(self.features)), np.float32)
        readers = {"number": _numbers, "date": _dates, "time": _times}
        read = {n: readers[k](given[n], n, where) for n, k in self.columns.items() if k in readers}
        read |= {n: _words(given[n], known) for n, known in self._known.items()}
        if unknown is not None:
            unknown |= {n: said for n, known in self._known.items() if (said := remarks.of_unknown(n, read[n], known))}
        if self.refuses:
            _refuse_missing(read, where)
        with np.errstate(over="ignore"):
            for i, feature in enumerate(self.features):
                x[:, i] = _input(feature, read[feature.column])
        if not np.isfinite(x).all():
            row, i = np.argwhere(~np.isfinite(x))[0]
            raise ValueError(
                f"{where}: the column {self.features[i].column!r} is beyond 32 bits in row {row + 1}, above 3e38"
            )
        return _scaled(x, self.scale)

    def file(self, path: Path) -> np.ndarray:
        """Inputs of the rows of a CSV or Parquet file."""
        _check(columns.names_in(path), list(self.columns), str(path))
        return self.of(columns.cells(path, list(self.columns)), str(path))

    def remarks(self, path: Path) -> list[str]:
        """What to say of words in a file that no training row had."""
        cells = columns.cells(path, list(self._known)) if self._known else {}
        said = (remarks.of_unknown(n, _words(cells[n], known), known) for n, known in self._known.items())
        return list(filter(None, said))

    @property
    def _known(self) -> dict[str, list[str]]:
        """The words of training, by column."""
        words = [n for n, kind in self.columns.items() if kind == "word"]
        return {n: [f.word for f in self.features if f.column == n] for n in words}

    def card(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"rows": [list(f) for f in self.features]}
        found |= {"missing": "refuse"} if self.refuses else {}
        return found if self.scale is None else {**found, "scale": [list(v) for v in self.scale]}


@dataclass(frozen=True)
class RawWindows:
    """Readings, one row after the other: windows that follow each other without overlap, each in one series.

    Where a table has several series, their windows come series by series, in the order of the series' first rows.
    """

    sensors: tuple[str, ...]
    window: int
    """How many readings a window has. What is left over at the end of a series is no window."""
    scale: Scale | None = None
    """The client's own mean and deviation of every sensor, where its readings are scaled by these."""
    client: str = ""
    """The column that says whose a reading is. A table without it is one series."""
    time: str = ""
    """The column of time, which must not go backwards in a series where a table has it."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that a table must have, all of numbers."""
        return dict.fromkeys(self.sensors, "number")

    def of(self, table: Any, where: str) -> np.ndarray:
        """Inputs [N, sensors, window] of a data frame, or of a dict of columns; other columns are left alone."""
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
        table = order.dated(table, self.time)[0] if self.time and self.time not in names else table
        index = [n for n in getattr(getattr(table, "index", None), "names", None) or () if n and n not in names]
        if held := [n for n in index if n in (self.client, self.time)]:  # pandas keeps what tells rows apart there
            return self.of(table.reset_index(level=held), where)
        given = _given(table, names, self._used(names), where)
        read = {n: _numbers(given[n], n, where) for n in self.sensors}
        series = self._series(given, where)
        parts = [self._cut({n: v[rows] for n, v in read.items()}, whose, where) for whose, rows in series]
        return np.ascontiguousarray(_scaled(np.concatenate(parts), self.scale))

    def _used(self, names: Sequence[Any]) -> list[str]:
        """The columns that are read of a table that has these."""
        return [*self.sensors, *(n for n in (self.client, self.time) if n and n in names)]

    def _series(self, given: Mapping[str, np.ndarray], where: str) -> list[tuple[str, np.ndarray]]:
        """Whose every series is and its rows; one series of nobody where no column says it."""
        users, whose = None, tuple[str, ...]()
        if self.client in given:
            marks = columns.of_values(self.client, given[self.client], mark=True)
            users, whose = order.grouped(marks, where, "client")
        if self.time in given:
            apart = f"or add the column {self.client!r}, which tells series apart"
            apart = apart if self.client and users is None else "or give one table per series"
            remedy = f"sort the rows by time, {apart}"
            order.check_time(_column(given[self.time], self.time, where), users, whose, where, remedy)
        if users is None:
            return [("", np.arange(len(next(iter(given.values())))))]
        rows = np.split(np.argsort(users, kind="stable"), np.cumsum(np.bincount(users))[:-1])
        return sorted(zip(whose, rows, strict=True), key=lambda one: int(one[1][0]))

    def _cut(self, readings: Mapping[str, np.ndarray], whose: str, where: str) -> np.ndarray:
        """The windows of one series."""
        total = len(next(iter(readings.values())))
        count, who = total // self.window, f"{self.client} {whose!r}" if whose else ""
        if not count:
            of = f" of {who}, which are" if whose else ","
            raise ValueError(f"{where}: has {total} readings{of} fewer than the model's window of {self.window}")
        filled = [columns.carried(columns.ValueColumn(n, v), who) for n, v in readings.items()]
        series = np.stack(filled).astype(np.float32)[:, : count * self.window]
        return series.reshape(len(filled), count, self.window).transpose(1, 0, 2)

    def file(self, path: Path) -> np.ndarray:
        """Inputs of the readings in a CSV or Parquet file."""
        names = columns.names_in(path)
        _check(names, self.sensors, str(path))
        return self.of(columns.cells(path, self._used(names)), str(path))

    def names(self, path: Path) -> list[str]:
        """What the windows of a file are called: by their number, and in several series by whose they are before it."""
        if not self.client or self.client not in columns.names_in(path):
            return []
        series = self._series(columns.cells(path, [self.client]), str(path))
        several = [f"{whose}/{i}" for whose, rows in series for i in range(len(rows) // self.window)]
        return several if len(series) > 1 else []

    def card(self) -> dict[str, Any]:
        """As JSON."""
        about: dict[str, Any] = {"sensors": list(self.sensors), "window": self.window}
        about |= {k: v for k, v in (("client", self.client), ("time", self.time)) if v}
        return {"windows": about} if self.scale is None else {"windows": about, "scale": [list(v) for v in self.scale]}


@dataclass(frozen=True)
class RawTexts:
    """Texts, which become so many token ids each."""

    length: int
    column: str = "text"
    """Where a CSV file has them."""
    tokenizer: str = ""
    """The JSON of a tokenizer; empty: bytes."""

    def of(self, texts: Any, where: str) -> np.ndarray:
        """Inputs [N, length] of a list of texts."""
        found = list(texts)
        for i, text in enumerate(found):
            if not isinstance(text, str) or not text.strip():
                what = "is empty" if isinstance(text, str) else f"is a {type(text).__name__}, expected a text"
                raise ValueError(f"{where}: text {i + 1} {what}")
            if not text.isascii() and text != text.encode("utf-8", "ignore").decode():
                raise ValueError(f"{where}: text {i + 1} holds half a character, which UTF-8 has no bytes for")
        found = [text.strip() for text in found]
        if self.tokenizer:
            return Tokenizing.of(self.tokenizer, where).encode(found, self.length)
        return text_ids.encode(found, self.length)

    def file(self, path: Path) -> np.ndarray:
        """Inputs of the lines of a text file, or of a column of a CSV or Parquet file."""
        if path.suffix.lower() == ".txt":
            return self.of(list(columns.lines(path)), str(path))
        names = columns.names_in(path)
        if self.column not in names:
            hint = f" (is it {close[0]!r}?)" if (close := near(self.column, names)) else ""
            raise ValueError(f"{path}: has no column {self.column!r} of texts{hint}; its columns are {some(names)}")
        return self.of(columns.cells(path, [self.column])[self.column], str(path))

    def card(self) -> dict[str, Any]:
        """As JSON."""
        return {"texts": asdict(self)}


Raw: TypeAlias = RawRows | RawWindows | RawTexts
"""How what a user has becomes inputs."""


def of_card(card: Mapping[str, Any] | None) -> Raw | None:
    """The record that `card` was made of; None where there is none."""
    if card is None:
        return None
    if "texts" in card:
        return RawTexts(**card["texts"])
    scale = Scale(*map(tuple, card["scale"])) if "scale" in card else None
    if "windows" in card:
        w = card["windows"]
        return RawWindows(tuple(w["sensors"]), w["window"], scale, w.get("client", ""), w.get("time", ""))
    return RawRows(tuple(Feature(*f) for f in card["rows"]), scale, card.get("missing") == "refuse")


def _check(names: Sequence[Any], wanted: Sequence[str], where: str) -> None:
    """Refuse a table that lacks a column."""
    for name in wanted:
        if name not in names:
            close = near(name, map(str, names))
            hint = f" (is it {close[0]!r}?)" if close else ""
            raise ValueError(
                f"{where}: has no column {name!r}{hint}; the model takes {some(wanted)}, "
                f"and given are {some(list(map(str, names))) or 'none'}"
            )


def _given(table: Any, names: Sequence[Any], wanted: Sequence[str], where: str) -> dict[str, np.ndarray]:
    """The columns that are wanted, all of one length."""
    _check(names, wanted, where)
    given = {n: _values(table[n], n, where) for n in wanted}
    rows = {name: len(values) for name, values in given.items()}
    if len(set(rows.values())) > 1:
        raise ValueError(f"{where}: columns have {', '.join(f'{n} {c}' for n, c in rows.items())} rows")
    return given


def _scaled(x: np.ndarray, scale: Scale | None) -> np.ndarray:
    """Inputs [N, C, ...] less the mean of C and divided by its deviation."""
    if scale is None:
        return x
    mean, std = (np.array(v, np.float32).reshape(-1, *[1] * (x.ndim - 2)) for v in scale)
    scaled: np.ndarray = (x - mean) / std
    return scaled


def _values(values: Any, name: str, where: str) -> np.ndarray:
    kept = isinstance(values, np.ndarray)  # as objects, dates of nanoseconds would become whole numbers
    found = values.to_numpy() if hasattr(values, "to_numpy") else values if kept else np.asarray(values, dtype=object)
    if found.ndim != 1:
        raise ValueError(f"{where}: the column {name!r} has shape {found.shape}; it must have one value per row")
    return found


def _numbers(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Numbers, NaN where one is missing."""
    if values.dtype.kind in "OUT":
        cells = [_number(columns.known(v)) for v in values]
        bad = [i for i, c in enumerate(cells) if c is None and isinstance(values[i], str)]
        if bad:
            says = f"holds {values[bad[0]][:40]!r} in row {bad[0] + 1}, and is a column of numbers"
            raise ValueError(f"{where}: the column {name!r} {says}")
        values = np.array(cells, dtype=object)
    try:
        found = columns.of_values(name, values)
    except OverflowError:
        raise ValueError(f"{where}: the column {name!r} has a number beyond 32 bits, above 3e38") from None
    if found.numbers is None:
        raise ValueError(f"{where}: the column {name!r} holds {found.words[0]!r}, and is a column of numbers")
    return found.numbers


def _column(values: np.ndarray, name: str, where: str) -> columns.ValueColumn:
    """A column of numbers where all of its cells are some, else of words."""
    try:
        return columns.ValueColumn(name, _numbers(values, name, where))
    except ValueError:
        return columns.of_values(name, _words(values, ()))


def _number(value: Any) -> Any:
    """A cell as a number: yes and no of a data frame are 1 and 0, as True and False in text; None where it is none."""
    if isinstance(value, bool | np.bool_):
        return float(value)
    if not isinstance(value, str):
        return value
    truth = {"true": 1.0, "false": 0.0}.get(value.strip().casefold())
    return number(value) if truth is None else truth


def _dates(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Days since 1970, NaN where a date is missing."""
    return dates.numbers(columns.of_values(name, values), "days", where)


def _times(values: np.ndarray, name: str, where: str) -> np.ndarray:
    """Hours since midnight, NaN where a time is missing."""
    return dates.numbers(columns.of_values(name, values), "hours", where)


def _words(values: np.ndarray, known: Sequence[str]) -> np.ndarray:
    """Words as text, empty where one is missing; `known` are those of training."""
    cells = ("" if v is None or v != v else _word(v, known) for v in map(columns.known, values.tolist()))
    return np.array(["" if c.casefold() in MISSING else c for c in cells], dtype=object)


def _word(value: Any, known: Sequence[str]) -> str:
    """A cell as the word that training had for it: what reads a file may make numbers, true and false of words."""
    forms = [str(value).strip()]
    if isinstance(value, bool):
        forms += [forms[0].lower(), forms[0].upper()]
    elif isinstance(value, int | float) and abs(value) < 1e15 and value == int(value):
        forms += [str(int(value)), str(float(value))]
    return next((form for form in forms if form in known), forms[0])


def _refuse_missing(read: Mapping[str, np.ndarray], where: str) -> None:
    """An error that names the first column that lacks cells."""
    for name, values in read.items():
        gone = np.equal(values, "") if values.dtype == object else np.isnan(values)
        if gone.any():
            rows = f"{counted(int(gone.sum()), 'row')}, the first of them row {int(gone.argmax()) + 1}"
            why = "the model's data was read with data.missing=refuse; fill what is missing first"
            raise ValueError(f"{where}: the column {name!r} has no value in {rows}, and {why}")


def _input(feature: Feature, values: np.ndarray) -> np.ndarray:
    if feature.kind == "word":
        return np.equal(values, feature.word)
    missing = np.isnan(values)
    if feature.kind == "date":
        values = values - cast(float, dates.days(feature.word))
    return missing if feature.kind == "missing" else np.where(missing, feature.fill, values)
