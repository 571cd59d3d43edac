"""What can run of a recipe with the data that is there, and what is missing for the rest."""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass

from . import needs
from .record import Cell, Derived, Recipe, Scale, Training, chosen, trainings


@dataclass(frozen=True)
class Plan:
    """What is asked for, fitted to the data that is there."""

    recipe: Recipe
    scale: Scale
    cells: tuple[Cell | Derived, ...]
    """Those that can run, and what is derived from them."""
    left_out: dict[str, list[str]]
    """Why some cannot, or run with less: reason to `row, column`."""

    @property
    def trainings(self) -> dict[Training, list[Cell]]:
        """What is trained, and for which cells."""
        return trainings(self.cells)


def plan(recipe: Recipe, scale: Scale, rows: Sequence[str] = ()) -> Plan:
    """What can run of a recipe, and what is missing for the rest."""
    cells: list[Cell | Derived] = []
    left_out: dict[str, list[str]] = {}
    for cell in chosen(recipe, recipe.cells(scale), rows):
        if isinstance(cell, Derived):
            cells.append(cell)
            continue
        fitted, lacks = (None, (cell.missing,)) if cell.missing else needs.fitted(cell)
        for reason in lacks:
            left_out.setdefault(reason, []).append(f"{cell.row}, {cell.column}")
        cells += [fitted] if fitted is not None else []
    return Plan(recipe, scale, tuple(cells), left_out)


def widened(narrow: Plan, rows: Collection[str]) -> Plan:
    """A plan with more rows: those that results have already, where the recipe still has them."""
    if not set(rows) - {c.row for c in narrow.cells}:
        return narrow
    all_rows, whole = {*rows, *(c.row for c in narrow.cells)}, plan(narrow.recipe, narrow.scale)
    left_out = {reason: list(cells) for reason, cells in narrow.left_out.items()}
    for reason, cells in whole.left_out.items():
        more = [c for c in cells if any(c.startswith(f"{row}, ") for row in rows)]
        if more:
            left_out[reason] = list(dict.fromkeys([*left_out.get(reason, ()), *more]))
    return Plan(narrow.recipe, narrow.scale, tuple(c for c in whole.cells if c.row in all_rows), left_out)
