"""Tables of a paper row by row: what the scripts that run them share.

A row is one training and one way to test it. Trainings become records, with what was trained, on what and where; a
record has the rows that were tested on it. Everything is one JSON file, which is written after every row, so that what
was stopped goes on and several short calls add up.
"""

from __future__ import annotations

import json
import os
import statistics
import time
from collections.abc import Callable, Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import acclimate as ac
from acclimate import api, store
from acclimate.core.adapter import Adapter
from acclimate.core.personal import Personalizer

Record = dict[str, Any]
"""A part of the JSON file: all of it, a training, or a row."""


class Row(NamedTuple):
    """One line of a table: what is trained, and how the trained model is personalised and adapted."""

    training: str
    personal: Personalizer
    adapter: Adapter


class Script(NamedTuple):
    """What is a script's own: the names of its settings and of its numbers."""

    about: Callable[[api.Fit, int], Record]
    """Settings that its records have besides the common ones, given how many were trained together."""
    test: Callable[[api.Fit, str], Record]
    """One row of a trained experiment (see `tested`)."""
    accuracies: Callable[[Record], Mapping[str, float]]
    """The numbers of a row that are worth printing while others run."""
    told: Callable[[ac.Experiment], str]
    """Which of a label's trainings this is, in a few words."""


def opened(out: Path, schema: str) -> Record:
    """What the file holds, or an empty one."""
    body: Record = store.read_json(out) if out.exists() else {"schema": schema, "records": []}
    return body


def record_of(fit: api.Fit, about: Mapping[str, Any], seconds: float) -> Record:
    """The record of a training without results: settings, hashes, times and where it ran."""
    e = fit.experiment
    env, card = store.environment(fit.engine.device), fit.world.card()
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    return {
        **about,
        "seed": e.seed,
        "rounds": e.rounds,
        "fraction": e.data.fraction,
        "method": repr(e.method),
        "training_hash": e.training_hash(),
        "data_hashes": {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()},
        "stream_hashes": {n: api.stream_hash(s) for n, (_, s) in api.streams_of(fit.world, e.streams).items()},
        "environment": env,
        "train_seconds": round(seconds, 1),
        "round_seconds_median": round(statistics.median_high(fit.seconds), 4),
        "rows": [],
    }


def tested(fit: api.Fit, name: str, row: Row) -> tuple[Record, list[Record]]:
    """One row of a trained experiment without its numbers, and the lines of the last round, which have them."""
    began = time.perf_counter()
    table = ac.evaluate(fit, adapters=[row.adapter], personal=row.personal)
    if table.refused:
        raise SystemExit(f"{name}: {table.refused[0]['reason']}")
    seconds = round(time.perf_counter() - began, 2)
    about = {"row": name, "personal": repr(row.personal), "adapter": repr(row.adapter), "test_seconds": seconds}
    return about, [dict(r) for r in table.rows if r["selection"] == "last"]


def missing(records: Iterable[Record], rows: Mapping[str, Row], e: ac.Experiment) -> list[str]:
    """The rows that no record of this training holds as they are defined now."""
    same = [r for r in records if r["training_hash"] == e.training_hash()]
    held = {(r["row"], r["personal"], r["adapter"]) for record in same for r in record["rows"]}
    return [n for n, row in rows.items() if (n, repr(row.personal), repr(row.adapter)) not in held]


def add(body: Record, out: Path, label: str, todo: Mapping[ac.Experiment, list[str]], script: Script) -> None:
    """Train what lacks rows, all of it together; test these, and write to `out` after every one."""
    todo = {e: names for e, names in todo.items() if names}
    if not todo:
        print(f"{label}: there already", flush=True)
        return
    began = time.perf_counter()
    fits = ac.train_together(list(todo))
    seconds = time.perf_counter() - began
    print(f"{label}: {len(fits)} trained in {seconds:.1f} s", flush=True)
    for fit in fits:
        print(f" {script.told(fit.experiment)}", flush=True)
        record = record_of(fit, script.about(fit, len(fits)), seconds)
        body["records"].append(record)
        for name in todo[fit.experiment]:
            row = script.test(fit, name)
            record["rows"].append(row)
            store.write(out, json.dumps(body, indent=1) + "\n")
            cells = "  ".join(f"{column} {a:.1%}" for column, a in script.accuracies(row).items())
            print(f"  {name:20s} {cells}  ({row['test_seconds']} s)", flush=True)
        fit.engine.close()
