"""Recipes in words: a list of all, and of one what it is made of, what it needs, and what the paper prints."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from ..experiment import labels
from ..ops import layout
from . import needs, published
from .pages import number
from .planning import plan
from .record import Cell, Derived, Recipe, trainings


def listing(recipes: Iterable[Recipe], omitted: Mapping[str, str]) -> str:
    """A line for every recipe: trainings, time, how many numbers the paper prints, and data, at paper scale."""
    rows: list[tuple[str, ...]] = [("name", "trainings", "time", "printed", "data", "what")]
    rows += [_about(r) for r in recipes]
    lines = layout.lined(rows, layout.room())
    left = "; ".join(f"{name} ({why})" for name, why in omitted.items())
    prose = [*LEGEND.splitlines(), f"Without a recipe: {left}."]
    return "\n".join([*lines, "", *(line for text in prose for line in layout.wrapped(text, layout.room()))])


LEGEND = (
    "trainings, time: at paper scale, roughly, for one seed on a large GPU; --scale smoke takes minutes on two cores "
    "and needs no data.\nprinted: how many of its numbers the paper prints. data: what paper scale needs; ! is not "
    "there (ACCLIMATE_DATA names the folder; see `acclimate data list`)."
)


def card(recipe: Recipe) -> dict[str, Any]:
    """What a list says of a recipe, at paper scale; `seconds` are a rough guess for one seed on a large GPU."""
    cells = recipe.cells("paper")
    trained = trainings(cells)
    files = [(c.table or recipe.published, c.key) for c in cells]
    return {
        "name": recipe.name,
        "trainings": len(trained),
        "seconds": sum(t.rounds for t in trained) * recipe.pace,
        "printed": sum(bool(file and key is not None and published.find(file, key)) for file, key in files),
        "data": dict(needs.wanted(cells)),
        "title": recipe.title,
    }


def _about(recipe: Recipe) -> tuple[str, ...]:
    c = card(recipe)
    data = [word if there else f"{word}!" for word, there in c["data"].items()]
    seconds = c["seconds"]
    time = f"~{seconds / 3600:.0f} h" if seconds >= 5400 else f"~{max(seconds / 60, 1):.0f} min"
    return c["name"], str(c["trainings"]), time, str(c["printed"] or "-"), ", ".join(data), c["title"]


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
        *(f"  missing    {reason} ({layout.counted(len(cells), 'cell')})" for reason, cells in found.left_out.items()),
        f"  runs now   {len(there)} of {layout.counted(total, 'cell')} at paper scale{columns}; all at smoke scale",
    ]


def _place(recipe: Recipe) -> str:
    if recipe.published is None:
        return f"{recipe.place}, without published numbers"
    return f"{recipe.place}; numbers of {published.table(recipe.published)['paper']}"


def _behind(cell: Cell) -> str:
    """What is trained, personalised and adapted."""
    parts = (cell.training.method, cell.personal, cell.adapter)
    return " + ".join(labels.label(p.record) for i, p in enumerate(parts) if i == 0 or p.name != "none")


def _printed(recipe: Recipe, cells: Iterable[Cell | Derived]) -> list[str]:
    if recipe.published is None:
        return ["  published  none"]
    found = [(c, published.find(c.table or recipe.published, c.key)) for c in cells if c.key is not None]
    lines, doubts = ["  published"], 0
    for row in dict.fromkeys(c.row for c, n in found if n is not None):
        numbers = [(c.column, n) for c, n in found if n is not None and c.row == row]
        doubts += sum(bool(n.doubt) for _, n in numbers)
        numbered = ", ".join(
            f"{column} {number(n.mean, abs(n.mean) <= 100)}{'?' if n.doubt else ''}" for column, n in numbers
        )
        lines.append(f"    {row}: {numbered}")
    return [*lines, f"    ({doubts} doubtful, marked ?)"] if doubts else lines
