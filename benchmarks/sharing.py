"""When does it help to share test-time statistics by similarity? One factor is changed at a time, and all else stays.

The world is that of `together.py`: clients share one FedAvg model of the embedded digits, classes are dealt evenly, and
client c meets corruption number c modulo the number of kinds. Every client follows its stream with running batch-norm
statistics (`RunningStats`). Four ways are compared in every cell: alone ("own"), the mean of all ("uniform"), mixed by
similarity, and the mean of the clients that meet the same corruption ("group known"), which no server could do: it is
what perfect weights would give.

    python benchmarks/sharing.py [--seeds 1,2,3] [--only batch,length] [--trainings folder]

Cells that are in the file already are not run again.
"""

from __future__ import annotations

import json
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
from harness import command, environment, integers, parser_of, trained, write
from together import KINDS, GroupKnown, same_kind

import acclimate as ac
from acclimate.adapters import BNStats, RunningStats, Tent, Together
from acclimate.core import Adam, Adapter, Task, Tree, rng
from acclimate.ops.mixing import as_near_as_others, cosines, rows

MORE = ("shot_noise", "motion_blur", "brightness", "elastic_transform", "jpeg_compression")
"""Kinds of corruption beside those of `together.py`, for smaller groups."""


class Cell(NamedTuple):
    """What is measured: a factor at one level, everything else as in the middle of the study."""

    factor: str
    level: float | str
    batch: int = 4
    length: int = 64
    kinds: int = 5
    clients: int = 20
    speed: float = 3.0
    temperature: float = 0.1
    itself: Literal["one", "nearest"] = "one"
    inside: str = "statistics"
    dealt: str = "evenly"

    @property
    def name(self) -> str:
        """`batch 4`"""
        return f"{self.factor} {self.level}"


CELLS = (
    *(Cell("batch", b, batch=b) for b in (2, 4, 8, 16)),
    *(Cell("length", n, length=n) for n in (8, 16, 32, 160)),
    *(Cell("group size", 20 // k, kinds=k) for k in (1, 2, 10)),
    *(Cell("speed", s, speed=s) for s in (0.5, 1.0, 6.0)),
    *(Cell("temperature", t, temperature=t) for t in (0.05, 0.2, 0.4, 0.8)),
    Cell("itself", "nearest", itself="nearest"),
    Cell("itself", "nearest, batch 2", itself="nearest", batch=2),
    Cell("itself", "nearest, batch 16", itself="nearest", batch=16),
    Cell("itself", "nearest, group size 2", itself="nearest", kinds=10),
    Cell("itself", "nearest, classes unevenly", itself="nearest", dealt="unevenly"),
    Cell("inside", "tent", inside="tent"),
    Cell("classes", "unevenly", dealt="unevenly"),
    Cell("clients", 100, clients=100),
    Cell("itself", "nearest, 100 clients", itself="nearest", clients=100),
)
"""All cells; that of batch 4 is the middle of the study, and so one level of every factor."""


WATCHED: list[tuple[float, ...]] = []
"""After each exchange of `Watching`, means over clients: see `NOTED`."""
NOTED = ("weight of itself", "weight of others of its group", "cosine inside groups", "cosine between groups")


@dataclass(frozen=True)
class Watching(Together):
    """`Together` by similarity, which also notes what its weights are. The server runs on the host here."""

    kinds: int = 5

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        each = rows(total["move"])
        alike, self_alone = cosines(each - each.mean(0)), torch.eye(len(each))
        same = same_kind(each, self.kinds)
        counted = as_near_as_others(alike) if self.itself == "nearest" else alike
        weights = (counted / self.temperature).softmax(-1)
        partners = same - self_alone
        shares = [float((weights * part).sum(-1).mean()) for part in (self_alone, partners)]
        near = [float((alike * m).sum() / m.sum().clamp_min(1.0)) for m in (partners, 1.0 - same)]
        WATCHED.append((*shares, *near))
        return super().exchange(task, server, total, key)


def ways(cell: Cell) -> dict[str, Adapter]:
    """What is compared in a cell."""
    inner: Adapter = Tent(opt=Adam(lr=0.001)) if cell.inside == "tent" else RunningStats(speed=cell.speed)
    return {
        "each batch's own statistics": BNStats(),
        "own": Together(inner, weights="own"),
        "uniform": Together(inner, weights="uniform"),
        "similarity": Watching(inner, temperature=cell.temperature, kinds=cell.kinds, itself=cell.itself),
        "group known": GroupKnown(inner, kinds=cell.kinds),
    }


def experiment(cell: Cell, seed: int) -> ac.Experiment:
    """The training that the ways of a cell share."""
    even = cell.dealt == "evenly"
    partition = ac.data.IID() if even else ac.data.Dirichlet(alpha=0.3)
    return ac.Experiment(
        data=ac.data.Digits(clients=cell.clients, partition=partition),
        model=ac.models.CNN(widths=(16, 32), norm="batch"),
        method=ac.methods.FedAvg(work=ac.Work(epochs=2, batch=8 if cell.clients > 20 else 32)),
        rounds=15,
        eval_every=15,
        seed=seed,
        device="cpu",
    )


FOUND: dict[tuple[Any, ...], dict[str, float]] = {}
"""What was measured in this run, by training, stream and adapter: cells that differ in one way share the others."""


def measured(cell: Cell, fit: ac.Fit, own: tuple[Any, ...]) -> dict[str, Any]:
    """Accuracy of every way, and what similarity's weights were; `own` names the training."""
    stream = ac.shifts.Grouped(kinds=(*KINDS, *MORE)[: cell.kinds], length=cell.length, batch=cell.batch)
    found: dict[str, Any] = {}
    for name, adapter in ways(cell).items():
        key = (own, stream, adapter)
        if key not in FOUND:
            FOUND[key] = served(fit, adapter, stream)
        found |= {name if k == "accuracy" else k: v for k, v in FOUND[key].items()}
    return found


def served(fit: ac.Fit, adapter: Adapter, stream: ac.shifts.Grouped) -> dict[str, float]:
    """The accuracy, and means over all exchanges of what was noted."""
    WATCHED.clear()
    row = next(r for r in ac.evaluate(fit, adapters=[adapter], streams=[stream]).rows if r["selection"] == "last")
    means = [sum(column) / len(WATCHED) for column in zip(*WATCHED, strict=True)]
    noted = {key: round(value, 4) for key, value in zip(NOTED, means, strict=False)}
    return {"accuracy": round(row["accuracy"], 6), **noted}


def summary(each: dict[str, dict[str, Any]]) -> dict[str, Any]:
    """Means over seeds, and by how many points similarity is above the other ways with every seed."""
    seeds = list(each)
    means = {n: round(sum(each[s][n] for s in seeds) / len(seeds), 6) for n in each[seeds[0]]}
    above = {
        other: [round(100 * (each[s]["similarity"] - each[s][other]), 2) for s in seeds]
        for other in ("own", "uniform", "group known")
    }
    return {"mean": means, "similarity_above": above}


def save(path: Path, cells: dict[str, Any]) -> None:
    """Write what was measured so far."""
    record = {"command": command(), "environment": environment(torch.device("cpu")), "severity": 5, "cells": cells}
    write(path, record)


def main() -> None:
    """Measure cell by cell, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=integers, default=[1, 2, 3])
    parser.add_argument("--only", type=lambda s: s.split(","), help="these factors alone")
    parser.add_argument("--trainings", type=Path, help="a folder that keeps trainings, for the next run")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/sharing.json"))
    given = parser.parse_args()
    cells: dict[str, Any] = json.loads(given.out.read_text())["cells"] if given.out.exists() else {}
    fits: dict[tuple[Any, ...], ac.Fit] = {}
    for seed in given.seeds:
        for cell in CELLS:
            each = cells.get(cell.name, {}).get("each", {})
            if str(seed) in each or (given.only and cell.factor not in given.only):
                continue
            began, own = time.perf_counter(), (cell.clients, cell.dealt, seed)
            fits[own] = fits.get(own) or trained(experiment(cell, seed), given.trainings)
            each = {**each, str(seed): measured(cell, fits[own], own)}
            took = cells.get(cell.name, {}).get("seconds", 0.0) + time.perf_counter() - began
            cells[cell.name] = {"settings": cell._asdict(), **summary(each), "each": each, "seconds": round(took, 1)}
            save(given.out, cells)
            means = "  ".join(f"{n} {v:.4f}" for n, v in each[str(seed)].items())
            print(f"seed {seed}: {cell.name}: {means}  {took:.0f} s", flush=True)


if __name__ == "__main__":
    main()
