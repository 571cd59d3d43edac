"""The results of a recipe: ours for every seed beside the published numbers, as JSON and as a Markdown table."""

from __future__ import annotations

import json
import statistics
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import store
from . import measures, published
from .planning import Plan
from .record import Cell, Derived, Recipe, Training
from .table import markdown
from .testing import test_of

RESULT_SCHEMA = "acclimate.reproduction/1"
Found = dict[tuple[Training, int], dict[str, Any]]
"""The record of every training and seed."""


def write(plan: Plan, seeds: Sequence[int], found: Found, out: Path, took: float) -> dict[str, Any]:
    """results JSON and a Markdown table."""
    recipe = plan.recipe
    body = {
        "schema": RESULT_SCHEMA,
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": plan.scale,
        "seeds": list(seeds),
        "command": store.command_line(),
        "environment": next(iter(found.values()), {}).get("environment", {}),
        "published": recipe.published,
        "notes": list(recipe.notes),
        "left_out": [{"reason": reason, "cells": cells} for reason, cells in plan.left_out.items()],
        "seconds": round(took, 1),
        "trainings": sorted({r["training_hash"] for r in found.values()}),
        "cells": _cells(plan, seeds, found),
    }
    place = out / f"{recipe.name}-{plan.scale}.json"
    store.write(place, json.dumps(body, indent=1) + "\n")
    store.write(place.with_suffix(".md"), markdown(body))
    return body


def _cells(plan: Plan, seeds: Sequence[int], found: Found) -> list[dict[str, Any]]:
    """Ours for every seed beside the published number, in the paper's order."""
    per_seed: list[dict[str, dict[str, float]]] = [{} for _ in seeds]
    out = []
    for cell in plan.cells:
        values = []
        for seed, rows in zip(seeds, per_seed, strict=True):
            value = _ours(cell, seed, rows.setdefault(cell.row, {}), found)
            if value is not None:
                rows[cell.row][cell.column] = value
                values.append(round(value, 4))
        if values:
            out.append(_beside(plan.recipe, cell, values))
    return out


def _ours(cell: Cell | Derived, seed: int, row: dict[str, float], found: Found) -> float | None:
    if isinstance(cell, Derived):
        return cell.value(row)
    record = found[cell.training, seed]
    other = found[cell.against, seed] if cell.against is not None else None
    return measures.value(cell.measure, record, record["tests"][test_of(cell).name], other)


def _beside(recipe: Recipe, cell: Cell | Derived, values: list[float]) -> dict[str, Any]:
    theirs = published.find(recipe.published, cell.key) if recipe.published and cell.key is not None else None
    mean = statistics.fmean(values)
    return {
        "row": cell.row,
        "column": cell.column,
        "percent": not isinstance(cell, Cell) or measures.in_percent(cell.measure),
        "ours": values,
        "mean": round(mean, 4),
        "std": round(statistics.stdev(values), 4) if len(values) > 1 else None,
        "published": None if theirs is None else {"mean": theirs.mean, "std": theirs.std, "doubt": theirs.doubt},
        "difference": None if theirs is None else round(mean - theirs.mean, 4),
    }
