"""A recipe in words: what it is made of, what it needs, and what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable

from ..experiment import labels
from . import needs, published
from .planning import plan
from .record import Cell, Derived, Recipe, trainings
from .table import number


def details(recipe: Recipe) -> str:
    """Rows with what stands behind them, columns, data, notes and the published numbers."""
    cells = recipe.cells("paper")
    lines = [f"{recipe.name}: {recipe.title}", f"  place      {_place(recipe)}"]
    lines.append(
        f"  trainings  {len(trainings(cells))} at paper scale, {len(trainings(recipe.cells('smoke')))} at smoke scale"
    )
    lines += [f"  data       {name}{'' if there else ': not there'}" for name, there in needs.wanted(cells).items()]
    lines += _runnable(recipe)
    lines += [f"  note       {note}" for note in recipe.notes]
    lines.append("  rows")
    for row in dict.fromkeys(c.row for c in cells):
        first = next((c for c in cells if c.row == row and isinstance(c, Cell)), None)
        lines.append(f"    {row}" + (f": {_behind(first)}" if first is not None else ""))
    lines.append("  columns    " + ", ".join(dict.fromkeys(c.column for c in cells)))
    return "\n".join([*lines, *_printed(recipe, cells)])


def _runnable(recipe: Recipe) -> list[str]:
    """What is missing at paper scale, and which columns run without it."""
    found = plan(recipe, "paper")
    if not found.left_out:
        return []
    there = [c for c in found.cells if isinstance(c, Cell)]
    total = sum(isinstance(c, Cell) for c in recipe.cells("paper"))
    columns = ": " + ", ".join(dict.fromkeys(c.column for c in there)) if there else ""
    return [
        *(f"  missing    {reason} ({len(cells)} cells)" for reason, cells in found.left_out.items()),
        f"  runs now   {len(there)} of {total} cells at paper scale{columns}; all at smoke scale",
    ]


def _place(recipe: Recipe) -> str:
    if recipe.published is None:
        return f"{recipe.place}, without published numbers"
    return f"{recipe.place}; numbers of {published.table(recipe.published)['paper']}"


def _behind(cell: Cell) -> str:
    """What is trained, personalised and adapted, or what is missing for it."""
    if cell.missing:
        return cell.missing
    parts = (cell.training.method, cell.personal, cell.adapter)
    return " + ".join(labels.label(p.record) for i, p in enumerate(parts) if i == 0 or p.name != "none")


def _printed(recipe: Recipe, cells: Iterable[Cell | Derived]) -> list[str]:
    if recipe.published is None:
        return ["  published  none"]
    found = [(c, published.find(recipe.published, c.key)) for c in cells if c.key is not None]
    lines, doubts = ["  published"], 0
    for row in dict.fromkeys(c.row for c, n in found if n is not None):
        numbers = [(c.column, n) for c, n in found if n is not None and c.row == row]
        doubts += sum(bool(n.doubt) for _, n in numbers)
        told = ", ".join(
            f"{column} {number(n.mean, abs(n.mean) <= 100)}{'?' if n.doubt else ''}" for column, n in numbers
        )
        lines.append(f"    {row}: {told}")
    return [*lines, f"    ({doubts} doubtful, marked ?)"] if doubts else lines
