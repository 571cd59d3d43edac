"""What `acclimate reproduce` and `python -m acclimate.recipes` share: what they list, what they run, what they say."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import recipes, store
from ..ops.devices import device_of
from ..ops.layout import counted
from .coverage_page import covered, write
from .planning import Plan
from .record import Cell, Recipe
from .results import file_of
from .show import card, listing

OUT = Path("reproduced")
"""Where results go unless a command says otherwise."""
RESULTS = Path("results")
"""Where the coverage of the papers is read from unless a command says otherwise."""


def listed(paper: str | None) -> str:
    """All recipes, or those of a paper, and what has none."""
    return listing(*_wanted(paper))


def cards(paper: str | None) -> tuple[list[dict[str, Any]], dict[str, str]]:
    """The same as JSON."""
    wanted, omitted = _wanted(paper)
    return [card(r) for r in wanted], omitted


def _wanted(paper: str | None) -> tuple[list[Recipe], dict[str, str]]:
    papers = list(dict.fromkeys(r.paper for r in recipes.RECIPES.values()))
    if paper is not None and paper not in papers:
        raise ValueError(f"no paper '{paper}'; allowed: {', '.join(papers)}")
    wanted = [r for r in recipes.RECIPES.values() if paper in (None, r.paper)]
    omitted = {name: why for name, why in recipes.OMITTED.items() if paper in (None, name.partition("/")[0])}
    return wanted, omitted


def coverage(
    results: Path, data: str | None = None, as_json: bool = False, out: Path | None = None, page: Path | None = None
) -> str:
    """How much of the papers a folder of results covers; writes a picture and a part of a page where asked for."""
    found = covered(recipes.RECIPES, results, data)
    said = write(found, out, page)
    if as_json:
        return found.json()
    return "\n".join(said) if said else found.plain()


def seeds_of(text: str) -> list[int]:
    """`3` is three seeds from 0 on; `1,2` are these two, and `3,` is the one."""
    try:
        found = [int(word) for word in text.split(",") if word.strip()]
    except ValueError:
        found = []
    if not found or min(found) < 0:
        raise ValueError(f"--seeds {text} must be a number of seeds, or seeds with commas such as 0,2")
    if "," in text:
        return list(dict.fromkeys(found))  # each once: a seed that is named twice is one
    if found[0] < 1:
        raise ValueError(f"--seeds {text} must be at least 1")
    return list(range(found[0]))


def asked_for(words: Sequence[str]) -> list[str]:
    """The names of an option that may be repeated, or separate its names by semicolons."""
    return [part.strip() for word in words for part in word.split(";") if part.strip()]


def planned(
    name: str,
    scale: str,
    device: str,
    rows: Sequence[str] = (),
    columns: Sequence[str] = (),
    rounds: int | None = None,
    fraction: float | None = None,
    weights: str | None = None,
) -> Plan:
    """What a command asks for; errors come before any file is read."""
    device_of(device)
    found = recipes.recipe(name)
    chosen = asked_for(rows), asked_for(columns)
    return recipes.plan(found, scale, *chosen, rounds, fraction, weights)  # type: ignore[arg-type]


def lacking(plan: Plan) -> list[str]:
    """What cannot run and what runs nevertheless, a line each."""
    cells = [c for c in plan.cells if isinstance(c, Cell)]
    lines = [f"missing: {why} ({counted(len(gone), 'cell')}, such as {gone[0]})" for why, gone in plan.left_out.items()]
    if plan.left_out and cells:
        lines.append(f"running without: {counted(len(cells), 'cell')}, {counted(len(plan.trainings), 'training')}")
    return lines


def require_some(plan: Plan) -> None:
    """Refuse a plan of which nothing can run."""
    if not any(isinstance(c, Cell) for c in plan.cells):
        raise store.RunError(
            f"{plan.recipe.name}: nothing can run at {plan.scale} scale; see `acclimate data list` for what is there, "
            "or use --scale smoke"
        )


def written(plan: Plan, out: Path) -> str:
    """Where the results lie."""
    return f"results: {file_of(plan, out)} and .md"
