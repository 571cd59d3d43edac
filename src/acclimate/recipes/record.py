"""What a recipe is made of: cells of a table, each with its training, how it is tested, and its published number.

A table is data. A paper's module says which records stand behind every row and column; nothing is looked up in the
catalogue and no file is read until a cell is run, so a recipe whose method is not there yet can still be listed.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, fields, is_dataclass, replace
from functools import cached_property
from typing import Any, Literal, get_args

from ..core import SGD, Filter, Model, Work, check
from ..data import Dataset
from ..experiment import ConfigError, Experiment, catalogue
from ..shifts import Original, Shift
from . import measures

Scale = Literal["smoke", "paper"]
SCALES: tuple[Scale, ...] = get_args(Scale)
Key = tuple[tuple[str, Any], ...]
"""The fields that single out a published number: `(("method", "FedAvg"), ("stream", "original"))`."""
SMOKE_ROUNDS = 6
SMOKE_EPOCHS, SMOKE_ITERATIONS, SMOKE_BATCH, SMOKE_CLIP, SMOKE_VIEWS, SMOKE_RATE = 2, 6, 8, 10.0, 4, 0.05
"""At smoke scale: so much local work in batches that fit tiny clients, few views, and rates that learn in few steps
(with clipped gradients, as batches are small)."""


def key(**fields: Any) -> Key:
    """The key of a published number."""
    return tuple(fields.items())


@dataclass(frozen=True)
class Named:
    """A record of the catalogue by name, with some of its fields changed. It is looked up when `record` is read."""

    kind: str
    """`method`, `personal` or `adapter`, as in `acclimate list`."""
    name: str
    changes: tuple[tuple[str, Any], ...] = ()
    base: Any = None
    """The record that is changed, where it is not in the catalogue."""

    @property
    def record(self) -> Any:
        """The record itself; an error that names what is allowed where the catalogue has none of this name."""
        entries = next(k.entries for k in catalogue.KINDS if k.name == self.kind)
        if self.base is None and self.name not in entries:
            raise ConfigError(f"no {self.kind} '{self.name}'; {catalogue.nearest(self.name, list(entries))}")
        try:
            return replace(self.base or entries[self.name], **dict(self.changes))
        except (TypeError, ValueError) as e:
            raise ConfigError(f"{self.kind} '{self.name}': {e}") from e

    @property
    def missing(self) -> str | None:
        """Why there is no such record, or None."""
        try:
            self.record  # noqa: B018 - looked up for its error
        except ConfigError as e:
            return str(e)
        return None

    def but(self, **changes: Any) -> Named:
        """With more fields changed."""
        return replace(self, changes=tuple({**dict(self.changes), **changes}.items()))

    def at(self, scale: Scale) -> Named:
        """At smoke scale the same record with less local work, smaller batches, larger rates and fewer views."""
        if scale == "paper" or self.missing:
            return self
        record = self.record
        return self.but(**{f.name: _smaller(self.kind, f.name, getattr(record, f.name)) for f in fields(record)})


def _smaller(kind: str, name: str, value: Any) -> Any:
    """A field of a record at smoke scale."""
    if isinstance(value, Work):
        epochs = min(value.epochs, SMOKE_EPOCHS) if name == "work" and kind == "method" else value.epochs
        iterations = None if value.iterations is None else min(value.iterations, SMOKE_ITERATIONS)
        return replace(value, epochs=epochs, iterations=iterations, batch=SMOKE_BATCH, clip=value.clip or SMOKE_CLIP)
    if isinstance(value, SGD) and name in ("opt", "head_opt") and kind != "adapter":
        return replace(value, lr=max(value.lr, SMOKE_RATE))
    return min(value, SMOKE_VIEWS) if name == "views" and isinstance(value, int) else value


def method(name: str, **changes: Any) -> Named:
    """A method of the catalogue."""
    return Named("method", name, tuple(changes.items()))


def personal(name: str, **changes: Any) -> Named:
    """A personaliser of the catalogue."""
    return Named("personal", name, tuple(changes.items()))


def adapter(name: str, **changes: Any) -> Named:
    """An adapter of the catalogue."""
    return Named("adapter", name, tuple(changes.items()))


AS_IS, NONE = personal("none"), adapter("none")


@dataclass(frozen=True)
class Line:
    """A row of a table: what is trained, and how the trained model is personalised and adapted."""

    method: Named
    adapter: Named = NONE
    personal: Named = AS_IS

    def at(self, scale: Scale) -> Line:
        """At smoke scale the same with less local work."""
        return Line(self.method.at(scale), self.adapter.at(scale), self.personal.at(scale))


@dataclass(frozen=True)
class Training:
    """What is trained on what and how long. Cells with an equal one share it."""

    method: Named
    data: Dataset
    model: Model
    rounds: int
    participation: float = 1.0
    every: int | None = None
    """Rounds between two looks at every test, for learning curves and the best round; None: at the end alone."""
    filters: tuple[Filter, ...] = ()

    def __post_init__(self) -> None:
        check.at_least(self, "rounds", 1)

    @property
    def looks(self) -> frozenset[int]:
        """The rounds after which every test is looked at: every so many, and the last."""
        if self.every is None:
            return frozenset()
        return frozenset(range(self.every, self.rounds + 1, self.every)) | {self.rounds}

    def experiment(self, seed: int = 0, device: str = "auto") -> Experiment:
        """The experiment that trains it."""
        return Experiment(
            self.data,
            self.model,
            self.method.record,
            filters=self.filters,
            rounds=self.rounds,
            participation=self.participation,
            seed=seed,
            eval_every=self.rounds,
            device=device,
        )


@dataclass(frozen=True)
class Cell:
    """One number of a table or figure."""

    row: str
    column: str
    training: Training
    personal: Named = AS_IS
    adapter: Named = NONE
    stream: Shift = Original()
    measure: str = "accuracy"
    """What is read from the results; see `recipes.measures`."""
    key: Key | None = None
    """Its published number; None: the paper gives none."""
    against: Training | None = None
    """A second training that this one is compared with (`similarity:DOMAIN`)."""

    def __post_init__(self) -> None:
        measures.require(self.measure)  # before hours of training, not after them

    @property
    def missing(self) -> str | None:
        """Why it cannot run: a method, personaliser or adapter that the catalogue lacks."""
        return self.training.method.missing or self.personal.missing or self.adapter.missing


@dataclass(frozen=True)
class Derived:
    """A number made of other cells of the same row: their mean, or the second minus the first."""

    row: str
    column: str
    of: tuple[str, ...]
    """The columns it is made of."""
    how: Literal["mean", "difference"] = "mean"
    key: Key | None = None

    def value(self, found: Mapping[str, float]) -> float | None:
        """The number, or None where a column it needs is not there."""
        if not all(column in found for column in self.of):
            return None
        values = [found[column] for column in self.of]
        return sum(values) / len(values) if self.how == "mean" else values[1] - values[0]


@dataclass(frozen=True)
class Recipe:
    """A table or figure of a paper: where it stands, its cells at either scale, and where its published numbers lie."""

    name: str
    """`fedthe/table1`."""
    title: str
    make: Callable[[Scale], Iterable[Cell | Derived]] = field(repr=False)
    """Its cells at a scale."""
    published: str | None = None
    """The file of published numbers, `fedthe/table1`; None where the paper prints none."""
    notes: tuple[str, ...] = ()
    """Where it differs from the paper, and why there are no published numbers."""
    pace: float = 0.8
    """Rough seconds of a round at paper scale on a large GPU."""

    @property
    def paper(self) -> str:
        """`fedthe`."""
        return self.name.partition("/")[0]

    @property
    def place(self) -> str:
        """`Table 1`, `Figure 14`."""
        word = self.name.partition("/")[2]
        kind = "Table" if word.startswith("table") else "Figure"
        return f"{kind} {word.removeprefix(kind.lower())}"

    def cells(self, scale: Scale) -> list[Cell | Derived]:
        """All cells, in the order of the paper."""
        if scale not in SCALES:
            raise ConfigError(f"scale='{scale}' must be one of {', '.join(SCALES)}")
        return list(self.make(scale))

    @cached_property
    def rows(self) -> list[str]:
        """The rows, in order."""
        return list(dict.fromkeys(c.row for c in self.cells("smoke")))


def chosen(recipe: Recipe, cells: Iterable[Cell | Derived], rows: Iterable[str]) -> list[Cell | Derived]:
    """The cells of the rows that are asked for; all where none is named. Upper and lower case count as one."""
    asked = list(rows)
    if not asked:
        return list(cells)
    known = {row.lower(): row for row in recipe.rows}
    for row in asked:
        if row.lower() not in known:
            raise ConfigError(f"{recipe.name} has no row '{row}'; {catalogue.nearest(row, recipe.rows)}")
    wanted = {known[row.lower()] for row in asked}
    return [c for c in cells if c.row in wanted]


def trainings(cells: Iterable[Cell | Derived]) -> dict[Training, list[Cell]]:
    """What has to be trained, and the cells that are read from each."""
    out: dict[Training, list[Cell]] = {}
    for cell in cells:
        if isinstance(cell, Cell):
            out.setdefault(cell.training, []).append(cell)
            if cell.against is not None:
                out.setdefault(cell.against, []).append(cell)
    return out


def records(value: Any) -> Iterable[Any]:
    """A record and all records inside it."""
    if isinstance(value, tuple):
        for item in value:
            yield from records(item)
    elif is_dataclass(value) and not isinstance(value, type):
        yield value
        for f in fields(value):
            yield from records(getattr(value, f.name))
