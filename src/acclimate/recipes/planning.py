"""What can run of a recipe with the data that is there, and what is missing for the rest."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass, replace

from ..data import Dataset
from ..experiment import ConfigError
from . import needs
from .record import Cell, Derived, Recipe, Scale, Training, chosen, trainings
from .weights import Weights, weights_of


@dataclass(frozen=True)
class Plan:
    """What is asked for, fitted to the data that is there."""

    recipe: Recipe
    scale: Scale
    cells: tuple[Cell | Derived, ...]
    """Those that can run, and what is derived from them."""
    left_out: dict[str, list[str]]
    """Why some cannot, or run with less: reason to `row, column`."""
    rounds: int | None = None
    """How long everything is trained, where that is not as the recipe has it."""
    fraction: float | None = None
    """Which share of the recipe's data is used, where it is not all."""
    weights: Weights | None = None
    """What its models start from, where that is not as the recipe has it."""

    @property
    def trainings(self) -> dict[Training, list[Cell]]:
        """What is trained, and for which cells."""
        return trainings(self.cells)


def plan(
    recipe: Recipe,
    scale: Scale,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    rounds: int | None = None,
    fraction: float | None = None,
    weights: str | None = None,
    kept: Collection[tuple[str, str]] = (),
) -> Plan:
    """What can run of a recipe, and what is missing for the rest.

    `rounds` and `fraction` make other trainings of it: how long they last, and on which share of the recipe's data; so
    does `weights`, a file that its models start from. `kept` are rows and columns that stay without their data.
    """
    if rounds is not None and rounds < 1:
        raise ConfigError(f"rounds={rounds} must be at least 1")
    if fraction is not None and not 0 < fraction <= 1:
        raise ConfigError(f"fraction={fraction} must be above 0 and at most 1")
    cells: list[Cell | Derived] = []
    left_out: dict[str, list[str]] = {}
    given = weights_of(weights, recipe, scale) if weights is not None else None
    every = recipe.cells(scale, given.backbone if given else None)
    for cell in chosen(recipe, sized(every, rounds, fraction), rows, columns):
        if isinstance(cell, Derived):
            cells.append(cell)
            continue
        fitted, lacks = needs.fitted(cell)
        if fitted is None and (cell.row, cell.column) in kept:
            fitted, lacks = cell, ()
        for reason in lacks:
            left_out.setdefault(reason, []).append(f"{cell.row}, {cell.column}")
        cells += [fitted] if fitted is not None else []
    if all(c.own for c in cells):
        rounds = fraction = None
    return Plan(recipe, scale, tuple(cells), left_out, rounds, fraction, given)


def widened(narrow: Plan, places: Collection[tuple[str, str]]) -> Plan:
    """A plan with more rows and columns: those that results have already, where the recipe still has them."""
    own = {(c.row, c.column) for c in narrow.cells}
    if not set(places) - own:
        return narrow
    given = narrow.weights.file if narrow.weights is not None else None
    whole = plan(narrow.recipe, narrow.scale, (), (), narrow.rounds, narrow.fraction, given, places)
    there = {f"{row}, {column}" for row, column in places}
    left_out = {reason: [c for c in cells if c not in there] for reason, cells in narrow.left_out.items()}
    left_out = {reason: cells for reason, cells in left_out.items() if cells}
    rows = {row for row, _ in places}
    for reason, cells in whole.left_out.items():
        more = [c for c in cells if any(c.startswith(f"{row}, ") for row in rows)]
        if more:
            left_out[reason] = list(dict.fromkeys([*left_out.get(reason, ()), *more]))
    wide = tuple(c for c in whole.cells if (c.row, c.column) in own | set(places))
    return replace(narrow, cells=wide, left_out=left_out)


def sized(cells: Iterable[Cell | Derived], rounds: int | None, fraction: float | None) -> list[Cell | Derived]:
    """The cells of trainings that last so many rounds, on such a share of the data; None: as the recipe has it."""
    out = [_sized(c, rounds, fraction) if isinstance(c, Cell) else c for c in cells]
    changed = {(c.row, c.column) for c in out if not c.own}
    return [
        replace(c, own=False) if isinstance(c, Derived) and any((c.row, part) in changed for part in c.of) else c
        for c in out
    ]


def _sized(cell: Cell, rounds: int | None, fraction: float | None) -> Cell:
    """A point of a learning curve moves with the length of the training, and so does the name of its column."""
    before, word, point = cell.training.rounds, *cell.measure.partition(":")[::2]
    curve = bool(point) and word in ("round", "validation")
    trained = _longer(cell.training, rounds or before, curve)
    against = cell.against and _longer(cell.against, rounds or before, curve)
    if fraction is not None:
        trained = replace(trained, data=_part(trained.data, fraction))
        against = against and replace(against, data=_part(against.data, fraction))
    if trained == cell.training:
        return cell
    moved = replace(cell, training=trained, against=against, own=False)
    if not curve:
        return moved
    there = max(int(point) * trained.rounds // before, 1)
    return replace(moved, measure=f"{word}:{there}", column=cell.column.replace(f"round {point}", f"round {there}"))


def _longer(training: Training, rounds: int, curve: bool) -> Training:
    every = training.every
    if rounds == training.rounds:
        return training
    if every is not None:
        every = max(every * rounds // training.rounds, 1) if curve else min(every, rounds)
    return replace(training, method=training.method.lasting(rounds), rounds=rounds, every=every)


def _part(data: Dataset, fraction: float) -> Dataset:
    """A share of what a data set uses. A wrapper's inner set has the same fraction or none of its own."""
    share, inner = data.fraction * fraction, getattr(data, "data", None)
    if isinstance(inner, Dataset) and inner.fraction == data.fraction != 1:
        return replace(data, fraction=share, data=replace(inner, fraction=share))  # type: ignore[call-arg]
    return replace(data, fraction=share)
