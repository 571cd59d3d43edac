"""A user's own tables: rows of a CSV or Parquet file or of a data frame, with a label and perhaps a client."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import torch
from torch import Tensor

from ..core import check, rng
from ..ops.places import data_root
from . import cache, columns, dates, order, remarks
from .cache import Parsed
from .columns import ValueColumn
from .dataset import Dataset, Inputs
from .fitting import Filled, Measured, in_order, refuse_split
from .held import Held
from .order import check_time, first_missing, grouped
from .remarks import FEW
from .world import Examples, Feature

ROLES = ("label", "client", "domain", "time")
"""The fields that name a column that is no input."""
WORDS = 100
"""How many different words a column of features may have."""
_CLASSES = 1000
_NAMELESS = re.compile(r"|Unnamed: 0|__index_level_\d+__")  # as pandas writes an index without a name


@dataclass(frozen=True)
class TableRows(Measured):
    """The base of data in the rows of a table."""

    file: str = ""
    """The file, absolute or in the data root: CSV with a first line of names, or Parquet."""
    label: str = ""
    """The column that says the class."""
    client: str = ""
    """The column that says who a row comes from: a person, a device, a site. Without it rows are dealt to clients."""
    domain: str = ""
    """A column of domains, for `held_out`."""
    time: str = ""
    """The column of time, which must not go backwards in the rows of a client."""
    columns: tuple[str, ...] = ()
    """The columns of inputs; none named: all that are nothing else."""
    drop: tuple[str, ...] = ()
    """Columns that are not used, such as names and numbers of rows."""
    root: str = ""
    """Folder that holds the data sets; where it is empty, the environment variable ACCLIMATE_DATA names the folder."""
    data: Held | None = None
    """Columns in memory in place of a file; `of` puts a data frame here."""

    needs: ClassVar[str] = "CSV or Parquet file with a column of labels"

    @classmethod
    def of(cls, frame: Any, **settings: Any) -> Any:
        """The same for a data frame (pandas, polars), a dict of columns or an array with named fields:
        `Table.of(frame, label="activity")`.

        Label, client, domain and time may be in the frame's index; the rest of an index is left out.
        """
        if fields_of := getattr(getattr(frame, "dtype", None), "names", None):
            frame = {name: frame[name] for name in fields_of}
        roles = {f: v for f in ROLES if isinstance(v := settings.get(f), str)}
        marks = [v for f, v in roles.items() if f != "time"]
        return cls(data=Held("a data frame", columns.of_frame(frame, marks, roles.values())), **settings)

    def __post_init__(self) -> None:
        if not isinstance(self.label, str):
            raise check.FieldError(
                f"{type(self).__name__}: label={self.label!r} names several columns; one class per row is supported, "
                "several labels per row are not",
                "label",
            )
        order.check_roles(self, ("label", "client"), ("label", "domain"), ("label", "time"), ("client", "time"))
        if self.file and self.data is not None:
            raise check.FieldError(f"{type(self).__name__}: file={self.file!r} and a data frame; give one", "file")
        super().__post_init__()

    def _pool(self) -> Examples | None:
        return self.load() if self.data is not None or (self.file and self.label and self.place(False)) else None

    # --- reading -----------------------------------------------------------------------------------------------------

    def load(self) -> Examples:
        p = self.fetch()
        users = None if p.users is None else torch.from_numpy(np.array(p.users))
        x, y, domain = (torch.from_numpy(np.array(v)) for v in (p.x, p.y, p.domain))
        features = tuple(Feature(*f) for f in p.features)
        return Examples(
            x, y, p.classes, domain, p.domains, users, None, features, notes=p.notes, user_names=p.user_names
        )

    def fetch(self) -> Parsed:
        """The arrays from the cache, where they are put on the first call; those of a data frame as they are."""
        if self.data is not None:
            table = self.data.values
            return self._parsed({c: table[c] for c in self._wanted(list(table), "the data frame")}, "the data frame")
        path = self.place()
        assert path is not None
        name = f"{type(self).__module__}:{type(self).__qualname__}"
        return cache.fetch(name, {**self._options(), "reader": 8}, path.parent, [path], lambda: self._read(path))

    def _options(self) -> dict[str, Any]:
        """What decides what is read of a file."""
        federation = {f.name for f in fields(Dataset)} | {"root", "file", "data", "scale"}
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name not in federation}

    def place(self, must: bool = True) -> Path | None:
        """Where the file is: in the data root, or as it stands. None where it is not there and need not be."""
        name, root = type(self).__name__, data_root(self.root)
        if not self.file and must:
            raise ValueError(f"{name}: file='' must name your {self.needs}; set data.file=")
        tried = [*([root / self.file] if root else []), Path(self.file).expanduser()]
        found = next((p for p in tried if p.is_file()), None)
        if found is None and must:
            raise FileNotFoundError(
                f"{name}: file={self.file!r} is not there (looked for {' and '.join(str(p.absolute()) for p in tried)})"
                f"; it must name your {self.needs}, absolute or in the folder that data.root= or ACCLIMATE_DATA names"
            )
        return found

    def _read(self, path: Path) -> Parsed:
        wanted = self._wanted(columns.names_in(path), str(path))
        return self._parsed(columns.read(path, wanted, (self.label, self.client, self.domain)), str(path))

    def _wanted(self, names: list[str], where: str) -> list[str]:
        """All columns that are used, those of inputs last; refuses what is not there."""
        single = {f: (v,) for f in ROLES if (v := getattr(self, f))}
        if not self.label:
            raise ValueError(f"{where}: which column says the class? Set data.label=, one of {', '.join(names[:12])}")
        columns.need(names, {**single, "columns": self.columns, "drop": self.drop}, where)
        roles = [c for (c,) in single.values()]
        if twice := next((c for c in roles if c in self.columns), None):
            raise ValueError(f"{where}: data.columns has {twice!r}, which is no input: it has another role already")
        inputs = [c for c in self.columns or names if c not in (*roles, *self.drop)]
        if not inputs:
            raise ValueError(f"{where}: has no column of inputs left beside {', '.join(roles)}; see data.columns")
        return list(dict.fromkeys([*roles, *inputs]))

    def _parsed(self, table: Mapping[str, ValueColumn], where: str) -> Parsed:
        roles = {c for c in (self.label, self.client, self.domain, self.time) if c}
        y, classes = labelled(table[self.label], where)
        users, names = grouped(table[self.client], where, "client") if self.client else (None, ())
        one: tuple[np.ndarray, tuple[str, ...]] = (np.zeros(len(y), np.int64), ("all",))
        domain, domains = grouped(table[self.domain], where, "domain") if self.domain else one
        if self.time:
            check_time(table[self.time], users, names, where)
        inputs, notes = self._useful([column for name, column in table.items() if name not in roles], where)
        x, features = self._inputs(inputs, where)
        notes = (*remarks.of_classes(y, classes), *remarks.of_names(names, "clients"), *notes)
        about = (users, names, tuple(f[:3] for f in features), notes)
        return Parsed(x, y, classes, domain, domains, np.zeros(len(y), bool), *about)

    def _useful(self, inputs: list[ValueColumn], where: str) -> tuple[list[ValueColumn], tuple[str, ...]]:
        """The columns that become inputs, and sentences about the others."""
        return inputs, ()

    def _inputs(self, inputs: list[ValueColumn], where: str) -> tuple[np.ndarray, tuple[Feature, ...]]:
        raise TypeError(f"{type(self).__name__} must define _inputs(inputs, where)")


@dataclass(frozen=True)
class Table(Filled, TableRows):
    """A table whose rows are examples: numbers as they are, words one-hot, and what is missing filled (`missing`).

    Medians, scales and the words that are known come from training rows alone. Where `time` names a column, every
    client trains on its earlier rows and is tested on its later ones. Dates as ISO 8601 writes them become days since
    the first training row, times such as 08:30 hours. A column with a word of its own in every row, or with more than
    100 words, is left out unless `columns` names it.
    """

    dates: tuple[str, ...] = ()
    """Columns to read as dates that would be numbers or words otherwise, such as 20240531 or 2024/05/31."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.time:
            refuse_split(self)

    def inputs(self) -> Inputs:
        return "vectors"

    def _wanted(self, names: list[str], where: str) -> list[str]:
        found = super()._wanted(names, where)
        columns.need(names, {"dates": self.dates}, where)
        if unused := [
            c for c in self.dates if c not in found or c in (self.label, self.client, self.domain, self.time)
        ]:
            raise ValueError(f"{where}: data.dates has {unused[0]!r}, which is no column of inputs")
        return found

    def _useful(self, inputs: list[ValueColumn], where: str) -> tuple[list[ValueColumn], tuple[str, ...]]:
        read = [dates.read(c, c.name in self.dates, where) for c in inputs]
        bare = [c.name for c in read if _NAMELESS.fullmatch(c.name) and c.name not in self.columns]
        read = [c for c in read if c.name not in bare]
        kept = [c for c in read if c.name in self.columns or not wordy(c)]
        names = [c.name for c in kept]
        left = [f"{c.name} ({len(c.words):,} in {len(c):,} rows)" for c in read if c.name not in names]
        if not kept:
            texts = f"; texts are read by data=text data.text={read[0].name}, and other columns named by data.columns"
            why = f": {'; '.join(said[:2])}" if (said := remarks.of_inputs(read)) else texts
            raise ValueError(
                f"{where}: all columns of inputs have a word of their own per row, or over {WORDS} words{why}"
            )
        notes = [f"left out, as they have too many different words: {', '.join(left)} (data.columns)"] * bool(left)
        notes += ["the column without a name, as of a data frame's row numbers, is left out"] * bool(bare)
        return kept, (*notes, *remarks.of_inputs(read))

    def _inputs(self, inputs: list[ValueColumn], where: str) -> tuple[np.ndarray, tuple[Feature, ...]]:
        for column in inputs:
            self._refuse_missing(column.name, column.missing, where)
        return encoded(inputs, where)

    def _options(self) -> dict[str, Any]:
        """Training rows say what is filled, after reading; what is refused is refused while a file is read."""
        return {k: v for k, v in super()._options().items() if k != "missing" or v == "refuse"}

    def _cut(self, examples: Examples, rows: Tensor, key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
        return in_order(rows, self.split) if self.time else super()._cut(examples, rows, key)


def wordy(column: ValueColumn) -> bool:
    """Whether its words tell rows apart, as names and texts do, and not groups of them."""
    count, rows = len(column.words), int((~column.missing).sum())
    return column.numbers is None and (count > WORDS or (count == rows and rows > FEW))


def encoded(inputs: list[ValueColumn], where: str) -> tuple[np.ndarray, tuple[Feature, ...]]:
    """Columns as numbers, and what each stands for. A missing number is 0 until it is filled by training rows."""
    parts, features = list[np.ndarray](), list[Feature]()
    for column in inputs:
        gone = column.missing
        if column.numbers is not None:
            kind = {"days": "date", "hours": "time"}.get(column.unit, "number")
            first = np.floor(np.nanmin(column.numbers)) if kind == "date" and not gone.all() else 0.0
            parts.append(np.where(gone, 0.0, column.numbers - first))
            features.append(Feature(column.name, kind, dates.iso(first) if kind == "date" else ""))
            if gone.any():
                parts.append(gone)
                features.append(Feature(column.name, "missing"))
            continue
        if len(column.words) > WORDS:
            raise ValueError(
                f"{where}: the column {column.name!r} has {len(column.words):,} different words, and at most {WORDS} "
                f"are encoded; leave it out with data.drop={column.name}"
            )
        assert column.codes is not None
        for i, word in enumerate(column.words):
            parts.append(np.equal(column.codes, i))
            features.append(Feature(column.name, "word", word))
    x = np.empty((len(inputs[0]), len(parts)), np.float32)
    with np.errstate(over="ignore"):  # said below
        for i, part in enumerate(parts):
            x[:, i] = part
    if not np.isfinite(x).all():
        name = features[int(np.flatnonzero(~np.isfinite(x).all(0))[0])].column
        raise ValueError(f"{where}: the column {name!r} has numbers beyond 32 bits, above 3e38; divide them first")
    return x, tuple(features)


def labelled(column: ValueColumn, where: str) -> tuple[np.ndarray, tuple[str, ...]]:
    """Class numbers from 0 and the names of classes; refuses what is no class."""
    column = dates.named(column)
    name = f"the label {column.name!r}"
    if column.missing.any():
        raise ValueError(
            f"{where}: {name} is missing in row {first_missing(column)}; fill it, or remove the row (data.label). An "
            "empty cell, NA, none and the like count as missing: rename a class that is called so"
        )
    y, classes = column.groups()
    if len(classes) < 2:
        raise ValueError(f"{where}: {name} has one class, {classes[0]!r}; give a column with two or more (data.label)")
    whole = column.numbers is None or bool((column.numbers == np.round(column.numbers)).all())
    if (
        (not whole and len(classes) > remarks.MANY)
        or len(classes) > _CLASSES
        or (len(classes) > 50 and len(classes) > len(y) / 2)
    ):
        raise ValueError(
            f"{where}: {name} has {len(classes):,} different values in {len(y):,} rows, as a regression target has; "
            f"classes are supported, so {remarks.BINS}"
        )
    if odd := next((c for c in classes if any(s in c for s in ";|")), None):
        raise ValueError(
            f"{where}: {name} has {odd!r}, several labels in one row; one class per row is supported, so give a column "
            "per question and choose one (data.label)"
        )
    return y, classes
