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
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import command

import acclimate as ac
from acclimate import store
from acclimate.core import Adapter, Personalizer, State
from acclimate.data.world import World
from acclimate.running import run as api
from acclimate.running.watch import Watch

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
    row: Callable[[str], Row]
    """What a name of a row stands for."""
    numbers: Callable[[api.Fit, list[Record]], Record]
    """What a row's record says of a trained experiment, given the lines of its last round: one for each stream."""
    accuracies: Callable[[Record], Mapping[str, float]]
    """The numbers of a row that are worth printing while others run."""
    told: Callable[[ac.Experiment], str]
    """Which of a label's trainings this is, in a few words."""


class Told(Watch):
    """A line every tenth of a training, for logs."""

    def training(self, label: str, seed: int, done: int, rounds: int) -> None:
        self.step, self.began = max(rounds // 10, 1), time.perf_counter()

    def round(self, state: State) -> None:
        if state.round % self.step == 0 or state.round == 1:  # the first one is recorded, which takes longer
            print(f"  round {state.round}: {time.perf_counter() - self.began:.1f} s", flush=True)


def opened(out: Path, schema: str) -> Record:
    """What the file holds, or an empty one."""
    body: Record = store.read_json(out) if out.exists() else {"schema": schema, "records": []}
    return body


def trained_on(e: ac.Experiment, world: World, device: torch.device) -> Record:
    """What a record says of any training: settings, hashes, the command and where it ran."""
    env, card = store.environment(device), world.card()
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    return {
        "seed": e.seed,
        "rounds": e.rounds,
        "fraction": e.data.fraction,
        "method": repr(e.method),
        "training_hash": e.training_hash(),
        "data_hashes": {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()},
        "command": command(),
        "environment": env,
    }


def record_of(fit: api.Fit, about: Mapping[str, Any], seconds: float) -> Record:
    """The record of a training without results: settings, hashes, times and where it ran."""
    e = fit.experiment
    return {
        **about,
        **trained_on(e, fit.world, fit.engine.device),
        "stream_hashes": {n: api.stream_hash(s) for n, (_, s) in api.streams_of(fit.world, e.streams).items()},
        "train_seconds": round(seconds, 1),
        "round_seconds_median": round(statistics.median_high(fit.seconds), 4),
        "rows": [],
    }


def tested(fits: Sequence[api.Fit], name: str, script: Script) -> list[Record]:
    """One row of trained experiments, which are tested together."""
    row, began = script.row(name), time.perf_counter()
    tables = ac.evaluate_together(fits, adapters=[row.adapter], personal=row.personal)
    about = {"row": name, "personal": repr(row.personal), "adapter": repr(row.adapter)}
    about |= {"test_seconds": round(time.perf_counter() - began, 2), "tested_together": len(fits)}
    about |= {"tested_on": store.environment(fits[0].engine.device).get("device")}
    records = []
    for fit, table in zip(fits, tables, strict=True):
        if table.refused:
            raise SystemExit(f"{name}: {table.refused[0]['reason']}")
        last = [dict(r) for r in table.rows if r["selection"] == "last"]
        records.append({**about, **script.numbers(fit, last)})
    return records


def missing(records: Iterable[Record], rows: Mapping[str, Row], e: ac.Experiment) -> list[str]:
    """The rows that no record of this training holds as they are defined now."""
    same = [r for r in records if r["training_hash"] == e.training_hash()]
    held = {(r["row"], r["personal"], r["adapter"]) for record in same for r in record["rows"]}
    return [n for n, row in rows.items() if (n, repr(row.personal), repr(row.adapter)) not in held]


def add(
    body: Record,
    out: Path,
    label: str,
    todo: Mapping[ac.Experiment, list[str]],
    script: Script,
    keep: Path | None = None,
) -> None:
    """Train what lacks rows, all of it together; test these, and write to `out` after every one.

    What is trained is kept in `keep`, and what lies there is not trained again: it may be tested on another machine.
    """
    todo = {e: names for e, names in todo.items() if names}
    if not todo:
        print(f"{label}: there already", flush=True)
        return
    trained = _trained(list(todo), label, script, keep)
    records = {e: record for e, (_, record) in trained.items()}
    body["records"] += records.values()
    for name in dict.fromkeys(n for names in sorted(todo.values(), key=len, reverse=True) for n in names):
        lacking = [fit for fit, _ in trained.values() if name in todo[fit.experiment]]
        for fit, row in zip(lacking, tested(lacking, name, script), strict=True):
            records[fit.experiment]["rows"].append(row)
            cells = "  ".join(f"{column} {a:.1%}" for column, a in script.accuracies(row).items())
            print(f"  {name:20s} {script.told(fit.experiment)}: {cells}  ({row['test_seconds']} s)", flush=True)
        store.write(out, json.dumps(body, indent=1) + "\n")
    for fit, _ in trained.values():
        fit.engine.close()


Trained = dict[ac.Experiment, tuple[api.Fit, Record]]
"""What was trained, with its record."""


def _trained(todo: list[ac.Experiment], label: str, script: Script, keep: Path | None) -> Trained:
    """All of it: out of `keep` what lies there, the others trained together."""
    found = _kept(todo, keep)
    if found:
        print(f"{label}: {len(found)} trained before", flush=True)
    if fresh := [e for e in todo if e not in found]:
        began = time.perf_counter()
        fits = ac.train_together(fresh, Told())
        seconds = time.perf_counter() - began
        print(f"{label}: {len(fits)} trained in {seconds:.1f} s", flush=True)
        for fit in fits:
            record = record_of(fit, script.about(fit, len(fits)), seconds)
            found[fit.experiment] = fit, record
            if keep is not None:
                _save(keep, fit, record)
    return {e: found[e] for e in todo}


RECORD = "record.json"
"""Beside a kept training's state: its record, as it was before any test. Written last."""


def _save(keep: Path, fit: api.Fit, record: Record) -> None:
    e = fit.experiment
    folder = store.RunFolder.create(keep / e.training_hash(), e, fit.engine.device, overwrite=True)
    folder.save(fit.state, e.training_hash())
    store.write(folder.path / RECORD, json.dumps(record, indent=1) + "\n")


def _kept(todo: list[ac.Experiment], keep: Path | None) -> Trained:
    """The trainings that lie in `keep`."""
    if keep is None:
        return {}
    places = {e: keep / e.training_hash() for e in todo}
    there = {e: place for e, place in places.items() if (place / RECORD).exists()}
    loaded = {e: (ac.load(place), store.read_json(place / RECORD)) for e, place in there.items()}
    return {e: (replace(fit, experiment=e), record) for e, (fit, record) in loaded.items()}
