"""The results of a recipe: ours for every seed beside the published numbers, as JSON and as a Markdown table.

A results file has the schema `acclimate.reproduction/1`. `cells` are the numbers of the table. `records` say what was
trained for them: seed, rounds, share of the data, hashes, command and environment; settings and tests lie in
`trainings/HASH.json`. `written` is the time (UTC), so that the latest of several files is known. What is not of the
recipe's own rounds and data lies in a file of its own, says so in each of its cells, and is not compared with the
published numbers.

Results that were made from the records of benchmarks before there were recipes have one more key, `converted`: from
which file and schema, measured with which commits. Their trainings were not kept, so their `records` hold the tests
(`tests`: by row, with what was measured) and whatever else the old records said (`more`).
"""

from __future__ import annotations

import datetime
import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from .. import store
from . import measures, published
from .pages import markdown
from .planning import Plan
from .probes import finished, probe_of
from .record import Cell, Derived, Training

RESULT_SCHEMA = "acclimate.reproduction/1"
Found = dict[tuple[Training, int], dict[str, Any]]
"""The record of every training and seed."""
BEHIND: tuple[str, ...] = (
    "label",
    "seed",
    "rounds",
    "fraction",
    "training_hash",
    "data_hashes",
    "command",
    "environment",
)
BEHIND += ("seconds", "train_seconds", "trained_together")
"""What a results file says of each training; `trainings/HASH.json` has the rest. Where models start from a file of
weights, `weights` has the digest of its content besides."""


def file_of(plan: Plan, out: Path) -> Path:
    """Where the results of a recipe at a scale lie; apart where weights, rounds or data are not the recipe's own."""
    start = f"-{plan.weights.network}" if plan.weights is not None else ""
    rounds = f"-{plan.rounds}-rounds" if plan.rounds is not None else ""
    part = f"-{plan.fraction:g}-of-data" if plan.fraction is not None else ""
    return out / f"{plan.recipe.name}-{plan.scale}{start}{rounds}{part}.json"


def held(plan: Plan, out: Path) -> tuple[set[tuple[str, str]], list[int]]:
    """The rows with their columns, and the seeds, of the results that are there already."""
    file = file_of(plan, out)
    body = store.read_json(file) if file.exists() else {}
    if body.get("schema") != RESULT_SCHEMA:
        return set(), []
    return {(c["row"], c["column"]) for c in body["cells"]}, list(body["seeds"])


def write(plan: Plan, seeds: Sequence[int], found: Found, out: Path, took: float) -> dict[str, Any]:
    """results JSON and a Markdown table."""
    recipe = plan.recipe
    body = {
        "schema": RESULT_SCHEMA,
        "recipe": recipe.name,
        "title": recipe.title,
        "scale": plan.scale,
        "rounds": plan.rounds,
        "fraction": plan.fraction,
        "seeds": list(seeds),
        "command": store.command_line(),
        "environment": environments([r["environment"] for r in found.values()]),
        "published": recipe.published,
        "notes": list(recipe.notes),
        "left_out": [{"reason": reason, "cells": cells} for reason, cells in plan.left_out.items()],
        "seconds": round(took, 1),
        "written": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
        "trainings": sorted({r["training_hash"] for r in found.values()}),
        "records": [_behind(r) for r in found.values()],
        "cells": _cells(plan, seeds, found),
    }
    place = file_of(plan, out)
    store.write(place, json.dumps(body, indent=1) + "\n")
    store.write(place.with_suffix(".md"), markdown(body))
    return body


def _behind(record: Mapping[str, Any]) -> dict[str, Any]:
    start = {"weights": record["weights"]} if record.get("weights") else {}
    return {name: record.get(name) for name in BEHIND} | start


def environments(envs: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Where the trainings ran, as one environment; what differs among them is listed with commas."""
    out = {}
    for name in dict.fromkeys(name for env in envs for name in env):
        values = list(dict.fromkeys(env.get(name) for env in envs))
        out[name] = values[0] if len(values) == 1 else ", ".join("unknown" if v is None else str(v) for v in values)
    return out


def _cells(plan: Plan, seeds: Sequence[int], found: Found) -> list[dict[str, Any]]:
    """Ours for every seed beside the published number, in the paper's order; `seeds` where it has not all of them."""
    per_seed: dict[int, dict[str, dict[str, float]]] = {seed: {} for seed in seeds}
    out = []
    for cell in plan.cells:
        values = {}
        for seed, rows in per_seed.items():
            value = _ours(cell, seed, rows.setdefault(cell.row, {}), found)
            if value is not None:
                rows[cell.row][cell.column] = value
                values[seed] = round(value, 4)
        if values:
            out.append(beside(plan, cell, values, seeds))
    return out


def _ours(cell: Cell | Derived, seed: int, row: dict[str, float], found: Found) -> float | None:
    """Our number, or None where what it is read from was not run with this seed."""
    if isinstance(cell, Derived):
        return cell.value(row)
    record = found.get((cell.training, seed), {})
    other = found.get((cell.against, seed), {}) if cell.against is not None else None
    if not has(record, cell) or (other is not None and not has(other, cell)):
        return None
    return measures.value(cell.measure, record, record["tests"][probe_of(cell).name], other)


def has(record: dict[str, Any], cell: Cell) -> bool:
    """Whether the record of a training has what a cell reads."""
    whole = measures.entry(cell.measure) <= record.keys()
    looks = cell.training.looks if measures.curved(cell.measure) else frozenset()
    test = record.get("tests", {}).get(probe_of(cell).name, {})
    return bool(record.get("finished")) and finished(test, looks) and whole


def beside(plan: Plan, cell: Cell | Derived, values: Mapping[int, float], seeds: Sequence[int]) -> dict[str, Any]:
    """A cell of the results: ours by seed, and the published number where the paper prints one.

    `rounds` and `fraction` say what is not the recipe's own; then there is no `difference`.
    """
    file, mean = cell.table or plan.recipe.published, statistics.fmean(values.values())
    theirs = published.find(file, cell.key) if file and cell.key is not None else None
    out = {
        "row": cell.row,
        "column": cell.column,
        "percent": not isinstance(cell, Cell) or measures.in_percent(cell.measure),
        "ours": list(values.values()),
        "mean": round(mean, 4),
        "std": round(statistics.stdev(values.values()), 4) if len(values) > 1 else None,
        "published": None if theirs is None else {"mean": theirs.mean, "std": theirs.std, "doubt": theirs.doubt},
        "difference": None if theirs is None or not cell.own else round(mean - theirs.mean, 4),
    }
    sizes = {"rounds": plan.rounds, "fraction": plan.fraction} if not cell.own else {}
    out |= {name: size for name, size in sizes.items() if size is not None}
    return out | ({"seeds": list(values)} if len(values) < len(seeds) else {})
