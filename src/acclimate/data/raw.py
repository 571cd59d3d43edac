"""Raw rows and texts as a live model meets them: brought into its inputs by what was fitted when it was trained."""

from __future__ import annotations

import difflib
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, TypeAlias, cast

import numpy as np

from ..ops import text as text_ids
from ..ops.layout import counted
from . import columns, dates
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

    def of(self, table: Any, where: str) -> np.ndarray:
        """Inputs [N, features] of a data frame, or of a dict of columns; other columns are left alone."""
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
        given = _given(table, names, list(self.columns), where)
        x = np.empty((len(next(iter(given.values()))), len(self.features)), np.float32)
        readers = {"number": _numbers, "date": _dates, "time": _times}
        words = {n: [f.word for f in self.features if f.column == n] for n, k in self.columns.items() if k == "word"}
        read = {n: readers[k](given[n], n, where) for n, k in self.columns.items() if k in readers}
        read |= {n: _words(given[n], known) for n, known in words.items()}
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

    def card(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"rows": [list(f) for f in self.features]}
        found |= {"missing": "refuse"} if self.refuses else {}
        return found if self.scale is None else {**found, "scale": [list(v) for v in self.scale]}


@dataclass(frozen=True)
class RawWindows:
    """Readings of one series, one row after the other: windows that follow each other without overlap."""

    sensors: tuple[str, ...]
    window: int
    """How many readings a window has. What is left over at the end is no window."""
    scale: Scale | None = None
    """The client's own mean and deviation of every sensor, where its readings are scaled by these."""

    @property
    def columns(self) -> dict[str, str]:
        """The columns that are read, all of numbers."""
        return dict.fromkeys(self.sensors, "number")

    def of(self, table: Any, where: str) -> np.ndarray:
        """Inputs [N, sensors, window] of a data frame, or of a dict of columns; other columns are left alone."""
        names = list(table) if isinstance(table, Mapping) else list(getattr(table, "columns", ()))
        given = _given(table, names, self.sensors, where)
        read = [columns.ValueColumn(n, _numbers(values, n, where)) for n, values in given.items()]
        count = len(read[0]) // self.window
        if not count:
            raise ValueError(f"{where}: has {len(read[0])} readings, fewer than the model's window of {self.window}")
        series = np.stack([columns.carried(c) for c in read]).astype(np.float32)[:, : count * self.window]
        x = series.reshape(len(read), count, self.window).transpose(1, 0, 2)
        return np.ascontiguousarray(_scaled(x, self.scale))

    def file(self, path: Path) -> np.ndarray:
        """Inputs of the readings in a CSV or Parquet file."""
        _check(columns.names_in(path), self.sensors, str(path))
        return self.of(columns.cells(path, self.sensors), str(path))

    def card(self) -> dict[str, Any]:
        """As JSON."""
        found: dict[str, Any] = {"windows": {"sensors": list(self.sensors), "window": self.window}}
        return found if self.scale is None else {**found, "scale": [list(v) for v in self.scale]}


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
            raise ValueError(f"{path}: has no column {self.column!r} of texts; its columns are {_some(names)}")
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
        return RawWindows(tuple(card["windows"]["sensors"]), card["windows"]["window"], scale)
    return RawRows(tuple(Feature(*f) for f in card["rows"]), scale, card.get("missing") == "refuse")


def _check(names: Sequence[Any], wanted: Sequence[str], where: str) -> None:
    """Refuse a table that lacks a column."""
    for name in wanted:
        if name not in names:
            near = difflib.get_close_matches(name, map(str, names), n=1, cutoff=0.5)
            hint = f" (is it {near[0]!r}?)" if near else ""
            raise ValueError(
                f"{where}: has no column {name!r}{hint}; the model takes {_some(wanted)}, "
                f"and given are {_some(list(map(str, names))) or 'none'}"
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


def _some(names: Sequence[str], most: int = 12) -> str:
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")
