"""The records of finished trainings below an output folder, and the table that can be made of them."""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from .. import store
from ..experiment import Experiment
from .planning import Plan, widened
from .record import Cell, Training
from .results import Found, has, held, write

TRAINING_SCHEMA = "acclimate.training/1"


def record_of(experiment: Experiment, out: Path) -> Path:
    """Where the record of a training lies; an earlier version may have written it under another name."""
    hashes = experiment.training_hash(), experiment.former_hash(exact=True)
    today, former = (out / "trainings" / f"{name}.json" for name in hashes)
    return former if former.exists() and not today.exists() else today


def read(path: Path) -> dict[str, Any]:
    """A record; nothing where there is none."""
    record: dict[str, Any] = store.read_json(path) if path.exists() else {}
    if record and record.get("schema") != TRAINING_SCHEMA:
        raise store.RunError(
            f"{path}: schema={record.get('schema')!r} must be '{TRAINING_SCHEMA}'; choose another --out"
        )
    return record


def with_earlier(plan: Plan, out: Path, device: str, found: Found) -> Plan:
    """The plan with the cells of results that are there already; puts their records of the same settings into `found`.

    So a run of some rows, or of fewer seeds, adds to the table and takes nothing from it.
    """
    places, seeds = held(plan, out)
    wide = widened(plan, places)
    _gather(wide, out, seeds, device, found)
    return wide


def table(plan: Plan, out: Path, seeds: Sequence[int]) -> Any:
    """Write the results of what is finished, wherever it was trained, and train nothing."""
    began, found = time.perf_counter(), Found()
    _gather(plan, out, seeds, "auto", found)
    if not found:
        raise store.RunError(f"{out}: no training of {plan.recipe.name} is finished there; run it first")
    wide = with_earlier(plan, out, "auto", found)
    return write(wide, sorted({seed for _, seed in found}), found, out, time.perf_counter() - began)


def _gather(plan: Plan, out: Path, seeds: Sequence[int], device: str, found: Found) -> None:
    for training, cells in plan.trainings.items():
        for seed in (s for s in seeds if (training, s) not in found):
            if record := _of_any_device(training, cells, seed, device, out):
                found[training, seed] = record


def _of_any_device(
    training: Training, cells: Sequence[Cell], seed: int, device: str, out: Path
) -> dict[str, Any] | None:
    """A record that has some of these cells; it may have been trained elsewhere."""
    devices = dict.fromkeys((device, "auto", "cpu", "cuda"))
    records = (read(record_of(training.experiment(seed, name), out)) for name in devices)
    return next((r for r in records if any(has(r, c) for c in cells)), None)
