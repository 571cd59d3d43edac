"""What a recipe is made of: cells of a table, each with its training, how it is tested, and its published number.

A table is data. A paper's module says which records stand behind every row and column; no file of data is read until a
cell is run.
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
    """A method, personaliser or adapter, with the name that tables and smoke scale know it by."""

    kind: str
    """`method`, `personal` or `adapter`, as in `acclimate list`."""
    name: str
    record: Any

    def but(self, **changes: Any) -> Named:
        """With some fields of its record changed."""
        return replace(self, record=replace(self.record, **changes))

    def at(self, scale: Scale) -> Named:
        """At smoke scale the same record with less local work, smaller batches, larger rates and fewer views."""
        if scale == "paper":
            return self
        record = self.record
        return self.but(**{f.name: _smaller(self.kind, f.name, getattr(record, f.name)) for f in fields(record)})

    def lasting(self, rounds: int) -> Named:
        """With the settings that depend on how long training is."""
        settings = {"fedatp": {"pretrain": rounds * 4 // 5}, "ga": {"rounds": rounds}}
        return self.but(**settings[self.name]) if self.name in settings else self


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
    """A method of the catalogue, with some of its fields changed."""
    return _named("method", name, changes)


def personal(name: str, **changes: Any) -> Named:
    """A personaliser of the catalogue, with some of its fields changed."""
    return _named("personal", name, changes)


def adapter(name: str, **changes: Any) -> Named:
    """An adapter of the catalogue, with some of its fields changed."""
    return _named("adapter", name, changes)


def _named(kind: str, name: str, changes: dict[str, Any]) -> Named:
    entries = next(k.entries for k in catalogue.KINDS if k.name == kind)
    if name not in entries:
        raise ConfigError(f"no {kind} '{name}'; {catalogue.nearest(name, list(entries))}")
    return Named(kind, name, entries[name]).but(**changes)


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
    table: str | None = None
    """The file of its published number, where it is not the recipe's."""
    against: Training | None = None
    """A second training that this one is compared with (`similarity:DOMAIN`)."""
    examples: Literal["test", "validation"] = "test"
    """Which examples of a client the stream is made of; `validation` is for settings that are chosen."""
    own: bool = True
    """Whether it has the rounds and the data of its recipe, and not those that a run asked for instead."""

    def __post_init__(self) -> None:
        measures.require(self.measure)  # before hours of training, not after them


@dataclass(frozen=True)
class Derived:
    """A number made of other cells of the same row: their mean, or the second minus the first."""

    row: str
    column: str
    of: tuple[str, ...]
    """The columns it is made of."""
    how: Literal["mean", "difference"] = "mean"
    key: Key | None = None
    table: str | None = None
    """The file of its published number, where it is not the recipe's."""
    own: bool = True
    """Whether what it is made of has the rounds and the data of the recipe."""

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
    make: Callable[..., Iterable[Cell | Derived]] = field(repr=False)
    """Its cells at a scale; where it `starts` from weights, and a user gives some, with the name of their backbone."""
    published: str | None = None
    """The file of published numbers, `fedthe/table1`; None where the paper prints none."""
    notes: tuple[str, ...] = ()
    """Where it differs from the paper, and why there are no published numbers."""
    pace: float = 0.8
    """Rough seconds of a round at paper scale on a large GPU."""
    starts: bool = False
    """Whether its models start from pre-trained weights, so that a user may give others (`weights=FILE`)."""
    takes: tuple[str, ...] = ()
    """Where these are several: their names, each of which is a file NAME.safetensors (`weights=FOLDER`)."""

    @property
    def paper(self) -> str:
        """`fedthe`."""
        return self.name.partition("/")[0]

    @property
    def place(self) -> str:
        """`Table 1`, `Figure 14`; `not in the paper` for what only we measure."""
        word = self.name.partition("/")[2]
        kind = next((k for k in ("Table", "Figure") if word.startswith(k.lower())), None)
        return f"{kind} {word.removeprefix(kind.lower())}" if kind else "not in the paper"

    def cells(self, scale: Scale, backbone: str | tuple[str, ...] | None = None) -> list[Cell | Derived]:
        """All cells, in the order of the paper; `backbone` names weights that they start from instead of their own."""
        if scale not in SCALES:
            raise ConfigError(f"scale='{scale}' must be one of {', '.join(SCALES)}")
        return list(self.make(scale) if backbone is None else self.make(scale, backbone))

    @cached_property
    def rows(self) -> list[str]:
        """The rows, in order."""
        return list(dict.fromkeys(c.row for c in self.cells("smoke")))


def chosen(
    recipe: Recipe, cells: Iterable[Cell | Derived], rows: Iterable[str] = (), columns: Iterable[str] = ()
) -> list[Cell | Derived]:
    """The cells of the rows and columns that are asked for; all where none is named. Letter case does not count.

    A column is asked for by any words of its name. What is derived comes along with all that it is made of.
    """
    every = list(cells)
    named = [c for c in every if not rows or c.row in _rows(recipe, rows)]
    if not columns:
        return named
    for words in columns:
        if not any(_says(c.column, words) for c in every):
            near = catalogue.nearest(words, list(dict.fromkeys(c.column for c in every)))
            raise ConfigError(f"{recipe.name} has no column '{words}'; {near}")
    asked = {(c.row, c.column) for c in named if any(_says(c.column, words) for words in columns)}
    derived = [c for c in named if isinstance(c, Derived)]
    asked |= {(c.row, column) for c in derived if (c.row, c.column) in asked for column in c.of}
    asked |= {(c.row, c.column) for c in derived if all((c.row, column) in asked for column in c.of)}
    return [c for c in named if (c.row, c.column) in asked]


def _says(column: str, words: str) -> bool:
    """Whether a name has these words, as whole ones: `MNIST` is not in `Fashion-MNIST`."""
    plain = [f" {' '.join(text.lower().replace(',', ' ').split())} " for text in (column, words)]
    return plain[1] in plain[0]


def _rows(recipe: Recipe, asked: Iterable[str]) -> set[str]:
    known = {row.lower(): row for row in recipe.rows}
    for row in asked:
        if row.lower() not in known:
            raise ConfigError(f"{recipe.name} has no row '{row}'; {catalogue.nearest(row, recipe.rows)}")
    return {known[row.lower()] for row in asked}


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
