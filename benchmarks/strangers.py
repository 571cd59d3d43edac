"""Would the guard do less harm if the stream had to look like home to the adapted model, too?

The guard holds adapted answers back where the un-adapted model's answers do not fit the shares of classes among its
answers to kept examples (`likely`). A model that is bad at home has shares there that say little. Here the adapted
model's answers must fit as well, by the same threshold, so that nothing is tuned: `Both`. A cell has the accuracy
without adapting, with the adapter alone, with the guard, and with both tests, and what the tests saw of each client.

    python benchmarks/strangers.py [--adapters fedtta,em] [--streams original] [--seeds 1,2] [--device auto]

Cells that are in the file already are not run again.
"""

from __future__ import annotations

import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, ClassVar

import torch
from harness import environment, integers, parser_of, write
from torch import Tensor

import acclimate as ac
from acclimate import store
from acclimate.adapters import Guarded
from acclimate.core import Predict, Task, Tree, rng, tree
from acclimate.eval.rows import summary_of
from acclimate.experiment import catalogue
from acclimate.ops import guarding
from acclimate.ops.devices import device_of
from acclimate.running.progress import Lines, beating
from live import CASES, GUARD, Case, Cell, Lab, name_of, share

ADAPTERS = "fedtta,em,fedavg+memory/knn,fedthe/the,lame,tent-all,fedavg/tent"
STREAMS = "original,corrupted,out-of-client,mixture,continual,label-sorted"
SEEN = ("likely", "level", "adapted_likely", "adapted_level", "surer")
"""What is kept of each client: means over its batches."""


@dataclass(frozen=True)
class Both(Guarded):
    """A guard that also asks whether the adapted model's answers fit its answers to kept examples."""

    traces: ClassVar[Mapping[str, str]] = {**Guarded.traces, **dict.fromkeys(SEEN, "nats per answer")}

    def init(self, task: Task, model: Tree) -> Tree:
        state = super().init(task, model)
        return {**state, "fit": dict.fromkeys(("likely", "level", "samples"), state["frozen"])}

    def _judged(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, later, seen = super()._judged(task, predict, model, state, x, key)

        def adapted(some: Tensor) -> Tensor:
            return self.adapter.step(task, predict, model, state["inner"], some, key)[0]

        kept, _, real = guarding.beside(model["reference"], x)
        home = guarding.home(guarding.in_batches(adapted, kept, len(x)), real)
        here = torch.nan_to_num(adapted(x)).argmax(-1)
        new = {"likely": home["ratio"][here].sum(), "level": len(x) * home["level"]}
        sums = tree.add({**new, "samples": torch.full_like(new["level"], len(x))}, state["fit"], self.forget)
        likely, level = (sums[name] / sums["samples"] for name in ("likely", "level"))
        used = seen["used"] & (likely > guarding.least_likely(level, self.likely))
        own = later["sums"]["level"] / later["sums"]["samples"]
        seen = {**seen, "used": used, "level": own, "adapted_likely": likely, "adapted_level": level}
        return torch.where(used, logits, predict(model, x).logits), {**later, "fit": sums}, seen


def measured(lab: Lab, case: Case, stream: str, seed: int) -> Cell:
    """One cell: the accuracy of every client in percent, four ways, and what the tests saw of it."""
    engine, models = lab.fit(case, seed).engine, lab.models(case, seed)
    shift, built = lab.streams(case, seed)[stream]
    inside = catalogue.ADAPTERS[case.adapter]
    ways = {"plain": ac.adapters.NoAdapt(), "adapted": inside, "guarded": replace(GUARD, adapter=inside)}
    cell: Cell = {"case": case.label, "stream": stream, "seed": seed}
    for name, adapter in {**ways, "both": Both(inside)}.items():
        metrics = engine.serve(models, built.shards, adapter, shift.protocol, name == "both")
        found = summary_of(metrics)
        cell[name] = round(100 * found.accuracy, 3)
        cell[f"{name}_clients"] = [round(100 * a, 2) for a in found.per_client]
    n = built.shards.n.cpu()
    real = torch.arange(metrics["trace"]["used"].shape[1]) < n[:, None]
    seen = {k: (metrics["trace"][k].cpu() * real).sum(1) / real.sum(1).clamp_min(1) for k in SEEN}
    return cell | {"seen": {k: [round(v, 3) for v in seen[k][n > 0].tolist()] for k in SEEN}}


def summary(cells: Iterable[Cell]) -> Cell:
    """What the guard and both tests do to all cells: harm, and what they keep of the gains above two points."""
    cells, out = list(cells), {}
    gains = [c for c in cells if c["adapted"] - c["plain"] > 2]
    for way in ("guarded", "both"):
        change = [c[way] - c["plain"] for c in cells]
        each = [a - b for c in cells for a, b in zip(c[f"{way}_clients"], c["plain_clients"], strict=True)]
        kept = (
            sum(c[way] - c["plain"] for c in gains) / sum(c["adapted"] - c["plain"] for c in gains) if gains else None
        )
        out[way] = {
            "cells_within_1": share(v >= -1 for v in change),
            "clients_within_1": share(v >= -1 for v in each),
            "worst_cell": round(min(change), 2),
            "worst_client": round(min(each), 2),
            "gain_kept": kept and round(kept, 4),
        }
    return {"cells": len(cells), **out}


def main() -> None:
    """Train, measure what is missing, write after each cell."""
    parser = parser_of(__doc__)
    parser.add_argument("--adapters", default=ADAPTERS, help="names, or labels such as fedavg+memory/knn")
    parser.add_argument("--streams", default=STREAMS)
    parser.add_argument("--seeds", type=integers, default=list(range(1, 9)))
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/live/strangers.json"))
    given = parser.parse_args()
    base = ac.Experiment(backend=ac.backends.Vmap(), device=given.device, rounds=given.rounds)
    streams, wanted = given.streams.split(","), given.adapters.split(",")
    cases = [c for c in CASES if c.label in wanted or (c.adapter in wanted and c.personal != "finetune")]
    lab, had = Lab(base, streams), store.read_json(given.out)["cells"] if given.out.exists() else []
    known: dict[str, Any] = {name_of(c): c for c in had}
    for case, seed, stream in ((c, s, n) for c in cases for s in given.seeds for n in streams):
        if f"{case.label} {stream} {seed}" in known:
            continue
        cell = measured(lab, case, stream, seed)
        known[name_of(cell)] = cell
        by_case = {
            label: summary(c for c in known.values() if c["case"] == label) for label in {c.label for c in cases}
        }
        record = {"environment": environment(device_of(given.device)), "by_case": by_case, "cells": [*known.values()]}
        write(given.out, record)
        print(name_of(cell), *(f"{way} {cell[way]:.1f}" for way in ("plain", "adapted", "guarded", "both")), flush=True)


if __name__ == "__main__":
    with beating(Lines(sys.stderr)):
        main()
