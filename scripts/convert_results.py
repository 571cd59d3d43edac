"""Convert results of earlier versions, once, into the one schema that `acclimate reproduce` writes.

    python scripts/convert_results.py results
    acclimate reproduce index results --out results/index.md

Every old file (scripts/old_results.py reads them) becomes one file per recipe that its numbers belong to, as JSON and
as a page, and is removed. Cells are the numbers of the table, in percent; where a row was measured twice with one seed,
the later one counts. `records` hold all that was measured: what is not one of the schema's own fields stands under
`more`, and every row of an old record under `tests`, as it was. Where a record serves several recipes it is kept with
the first, which `converted.records_in` of the others names. Files that have the one schema already are left as they
are, but for names of classes that have moved.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from old_results import Record, Source, source_of

from acclimate import recipes, store
from acclimate.experiment import encoding
from acclimate.recipes.pages import markdown
from acclimate.recipes.planning import Plan, sized
from acclimate.recipes.record import Derived
from acclimate.recipes.results import RESULT_SCHEMA, beside, environments
from acclimate.recipes.runner import TRAINING_SCHEMA

renamed: Callable[[Any], Any] = getattr(encoding, "renamed", lambda value: value)
"""THE ONE PLACE where encoded records get the names that their classes have now."""
KEPT = ("seed", "rounds", "fraction", "training_hash", "data_hashes", "command", "environment")
"""Fields of a record that the one schema has as well; all others go under `more`, and rows under `tests`."""


def converted(source: Source, file: str, schema: str | None) -> dict[str, Record]:
    """The results that an old file becomes, by the name of their file."""
    homes: dict[str, list[Record]] = {}
    found: dict[str, dict[tuple[str, str], dict[int, float]]] = {}
    for record in source.records:
        numbers = list(source.read(record))
        homes.setdefault(numbers[0][0], []).append(record)
        for recipe, row, column, value in numbers:
            found.setdefault(recipe, {}).setdefault((row, column), {})[record["seed"]] = round(value, 4)
    first = next(iter(homes))
    out = {}
    for recipe, cells in found.items():
        own = homes.get(recipe, [])
        body = _body(recipe, cells, source, own or source.records)
        body["converted"] = {"file": file, "schema": schema, "note": _note(source.records), **source.more}
        body["records"] = [_record(r) for r in own]
        if not own:
            body["converted"]["records_in"] = name_of(first, file)
        out[name_of(recipe, file)] = body
    return out


def name_of(recipe: str, file: str) -> str:
    """`fedicon/table1-digit5.json`; `fedthe/table1-converted.json` where the old name says no more than the recipe."""
    word, stem = recipe.partition("/")[2], Path(file).stem
    more = "converted" if set(word.split("-")) <= set(stem.split("-")) else stem
    return f"{recipe}-{more}.json"


def _body(name: str, found: dict[tuple[str, str], dict[int, float]], source: Source, records: list[Record]) -> Record:
    recipe = recipes.recipe(name)
    known = {(c.row, c.column): c for c in sized(recipe.cells("paper"), source.rounds, source.fraction)}
    plan = Plan(recipe, "paper", (), {}, source.rounds, source.fraction)
    seeds = sorted({seed for values in found.values() for seed in values})
    values = dict(found)
    for place, cell in known.items():  # means over columns, where all of them are there
        if isinstance(cell, Derived) and place not in values:
            rows = {s: {c: v[s] for (r, c), v in found.items() if r == cell.row and s in v} for s in seeds}
            made = {s: cell.value(row) for s, row in rows.items()}
            if whole := {s: round(v, 4) for s, v in made.items() if v is not None}:
                values[place] = whole
    order = [p for p in known if p in values] + [p for p in values if p not in known]
    commands = list(dict.fromkeys(r["command"] for r in records))
    return {
        "schema": RESULT_SCHEMA,
        "recipe": name,
        "title": recipe.title,
        "scale": "paper",
        "rounds": source.rounds,
        "fraction": source.fraction,
        "seeds": seeds,
        "command": "; ".join(commands) if len(commands) < 4 else f"{commands[0]}; and {len(commands) - 1} more",
        "environment": environments([r["environment"] for r in records]),
        "published": recipe.published,
        "notes": [*recipe.notes, *source.notes],
        "left_out": [],
        "seconds": None,
        "trainings": sorted({r["training_hash"] for r in records if "training_hash" in r}),
        "records": [],
        "cells": [beside(plan, known.get(p, Derived(*p, ())), dict(sorted(values[p].items())), seeds) for p in order],
    }


def _note(records: list[Record]) -> str:
    commits = dict.fromkeys(str(r["environment"].get("commit") or "unknown") for r in records)
    return f"Converted from benchmark records; measured with commit {', '.join(commits)}."


def _record(record: Record) -> Record:
    """A record in the one schema; nothing of it is lost."""
    rows = record.get("rows")
    tests = {r["row"]: {k: v for k, v in r.items() if k != "row"} for r in rows} if isinstance(rows, list) else rows
    more = {k: v for k, v in record.items() if k not in (*KEPT, "rows")}
    return {k: record.get(k) for k in KEPT} | ({"tests": tests} if tests else {}) | {"more": more}


def dumped(body: Mapping[str, Any]) -> str:
    """JSON with a line for every record and cell: what is read by machines may be long."""
    lines = {k: ",\n".join("  " + json.dumps(item) for item in body[k]) for k in ("records", "cells")}
    head = json.dumps({k: v for k, v in body.items() if k not in lines}, indent=1)[:-2]
    parts = [f' "{k}": [\n{text}\n ]' if text else f' "{k}": []' for k, text in lines.items()]
    return head + ",\n" + ",\n".join(parts) + "\n}\n"


def main() -> None:
    """Convert a folder."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("results", type=Path)
    folder: Path = parser.parse_args().results
    for path in sorted(folder.rglob("*.json")):
        file, body = path.relative_to(folder).as_posix(), json.loads(path.read_text())
        if isinstance(body, dict) and body.get("schema") in (RESULT_SCHEMA, TRAINING_SCHEMA):
            if (named := renamed(body)) != body:
                store.write(path, json.dumps(named, indent=1) + "\n")
            continue
        source = source_of(body, path.stem)
        if source is None:
            continue
        for name, made in converted(source, file, body.get("schema")).items():
            store.write(folder / name, dumped(renamed(made)))
            store.write((folder / name).with_suffix(".md"), markdown(made))
            print(f"{file} -> {name}: {len(made['cells'])} cells, {len(made['records'])} records")
        path.unlink()


if __name__ == "__main__":
    main()
