"""Why RoTTA stays below plain batch statistics on shuffled streams: its parts, one taken away after the other.

Each of the fifteen corruptions by itself, in shuffled order, as `episodic` of `adapters.py`. Accuracy in percent by
fifths of the stream, mean over corruptions. `statistics only` never learns: the norm layers' parameters are the
source's. The memory then holds, in its place of 64, recent and sure samples of all classes (as published), recent ones
of all classes (uncertainty=0), or simply the last 64 of the stream. Halves of batches tell whether sure samples have
statistics of their own.

    python benchmarks/rotta.py --weights cifar10_resnet20.th [--samples 10000] [--kinds fog,snow] [--batch 200]
        [--device cuda] [--out results/adapters/rotta.json]

Rows that are in the file already are not run again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar

import torch
from harness import environment, kept, parser_of, write
from torch import Tensor

import acclimate as ac
from acclimate.adapters import BNStats, RoTTA
from acclimate.core import Adapter, Predict, Protocol, Shards, Task, Tree, rng, tree
from acclimate.core.adapter import Wrapping
from acclimate.ops.devices import device_of
from acclimate.ops.losses import entropy
from acclimate.ops.memories import pixels
from acclimate.ops.memory_norms import CountedNorm, RobustNorm
from acclimate.ops.params import with_vars
from acclimate.shifts.base import frost
from acclimate.shifts.corruptions import COMMON
from adapters import Source, corrupted

FIFTHS = 5


@dataclass(frozen=True)
class Statistics(RoTTA):
    """RoTTA without learning: the teacher's statistics follow the memory, and that is all."""

    def learnt(self, predict: Predict, model: Tree, state: Tree, memory: Tree, key: rng.Key) -> Tree:
        way = RobustNorm(self.rate, memory["held"])
        seen = predict(with_vars(model, **state["teacher"]), memory["x"], way).buffers
        return {**tree.pick(state, ("params", "opt", "buffers")), "teacher": {**state["teacher"], "buffers": seen}}


@dataclass(frozen=True)
class Last(Statistics):
    """The same, with the last samples of the stream in the memory's place."""

    def remembered(self, memory: Tree, x: Tensor, label: Tensor, uncertain: Tensor, share: Tensor) -> Tree:
        last = {"x": pixels(x), "held": torch.ones_like(uncertain)}
        return {**memory, **{k: torch.cat((memory[k], v))[-self.capacity :] for k, v in last.items()}}


@dataclass(frozen=True)
class HalfBatch(Adapter):
    """Every batch is normalised with the statistics of its half of lower entropy, or of any half of it."""

    sure: bool = True

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        value = entropy(predict(model, x, "still").logits) if self.sure else rng.uniform(key, len(x))
        counts = (value <= value.median()).to(torch.float32)
        return predict(model, x, CountedNorm(counts)).logits, state


FORMS: dict[str, Adapter] = {
    "bn": BNStats(),
    "half of the batch": HalfBatch(sure=False),
    "the surer half of the batch": HalfBatch(),
    "statistics only, the last 64": Last(),
    "statistics only, recent": Statistics(uncertainty=0.0),
    "statistics only": Statistics(),
    "rotta, recent": RoTTA(uncertainty=0.0),
    "rotta": RoTTA(),
}


@dataclass(frozen=True)
class Told(Wrapping):
    """An adapter that also tells which class it answered."""

    traces: ClassVar[Mapping[str, str]] = {"answer": "the class"}  # type: ignore[misc]

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        return logits, new, {"answer": logits.argmax(-1)}


def shuffled(x: Tensor, y: Tensor, kinds: list[str], seed: int = 0) -> Shards:
    """A client for each corruption, severity 5, in an order of its own."""
    orders = [rng.permutation(rng.fold(rng.key(seed), "order", COMMON.index(kind)), len(x)) for kind in kinds]
    rows = [i * len(x) + order for i, order in enumerate(orders)]
    return Shards.of(torch.cat([corrupted(x, kind, seed) for kind in kinds]), y.repeat(len(kinds)), rows)


def measured(source: Source, test: Shards, adapter: Adapter, batch: int) -> dict[str, Any]:
    """Accuracy of every client in percent, and of all by fifths of their streams."""
    engine, models = source.deployed(test.clients, "none")
    found = engine.serve(models, test, Told(adapter), Protocol(batch), trace=True)["trace"]["answer"].cpu()
    hit = 100.0 * (found == torch.stack([test.y[test.own(c)].cpu() for c in range(test.clients)])).double()
    parts = [round(float(part.mean()), 2) for part in hit.tensor_split(FIFTHS, 1)]
    return {
        "mean": round(float(hit.mean()), 2),
        "by_fifth": parts,
        "accuracy": [round(float(a), 2) for a in hit.mean(1)],
    }


def main() -> None:
    """Measure what is missing, write after each row, print a table."""
    parser = parser_of(__doc__)
    parser.add_argument("--weights", required=True, help="the checkpoint of adapters.py")
    parser.add_argument("--samples", type=int, default=10_000, help="test images of each corruption")
    parser.add_argument("--kinds", default=",".join(COMMON))
    parser.add_argument("--batch", type=int, default=200)
    parser.add_argument("--device", default="auto")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/rotta.json"))
    given = parser.parse_args()
    images, device = ac.data.CIFAR10(part="test").load(), device_of(given.device)
    x, y, kinds = images.x[: given.samples], images.y[: given.samples], given.kinds.split(",")
    study = {"samples": len(x), "batch": given.batch, "severity": 5, "kinds": kinds, "frost": frost().source}
    rows: dict[str, dict[str, Any]] = kept(given.out, study)
    source = Source(ac.models.ResNet20(norm="batch", weights=given.weights), (x[:200], y[:200]), device)
    test = shuffled(x, y, kinds)
    for name, adapter in FORMS.items():
        if name not in rows:
            rows[name] = measured(source, test, adapter, given.batch)
            record = {"environment": environment(device), "study": study, "rows": rows}
            write(given.out, record)
        print(f"{name:30s} {rows[name]['mean']:6.2f}   {rows[name]['by_fifth']}", flush=True)


if __name__ == "__main__":
    main()
