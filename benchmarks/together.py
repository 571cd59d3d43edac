"""Clients that adapt together, where shifts come in groups: accuracy against the bytes that a client exchanges.

Clients share one FedAvg model and have examples of all classes alike, so that what differs between them is the
corruption of their stream: five kinds, client c has number c modulo 5. The temperature and the centring of `Together`,
those of `BNTogether` and the speed of the running statistics were looked at with seed 0 on the digits; the default
seeds are others.

    python benchmarks/together.py [--data digits] [--clients 20] [--seeds 1,2,3] [--rate 0.001] [--device cpu]
    python benchmarks/together.py --data cifar10 --clients 100 --rounds 100 --device cuda

The file holds one entry per data set, number of clients and batch size. What an entry of the same settings has of a
seed is not run again; an entry of other settings is replaced. `--merge part.json` takes over the entries of other
files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import command, environment, integers, parser_of, trained, write

import acclimate as ac
from acclimate.adapters import BNStats, BNTogether, FedCTTA, FedTSA, Latte, NoAdapt, RunningStats, Tent, Together
from acclimate.core import Adam, Adapter, Task, Tree, rng
from acclimate.ops import layout
from acclimate.ops.devices import device_of
from acclimate.ops.mixing import mixed, rows

KINDS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate")


def same_kind(each: torch.Tensor, kinds: int) -> torch.Tensor:
    """1 where two of the clients, whose rows these are, meet the same corruption, [clients, clients]."""
    kind = torch.arange(len(each), device=each.device) % kinds
    return (kind[:, None] == kind).to(torch.float32)


def group_mean(each: torch.Tensor, kinds: int) -> torch.Tensor:
    """Weights of the mean of a client's group, [clients, clients]."""
    same = same_kind(each, kinds)
    return same / same.sum(-1, keepdim=True)


@dataclass(frozen=True)
class GroupKnown(Together):
    """Each client gets the mean of the clients that meet the same corruption. A yardstick: nobody is told of it."""

    kinds: int = 5

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"own": {"move": mixed(group_mean(rows(total["move"]), self.kinds), total["move"])}}


@dataclass(frozen=True)
class StatisticsGroupKnown(BNTogether):
    """The same yardstick for statistics of batches that have arrived, in the place of similarity."""

    kinds: int = 5

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        mix = mixed(group_mean(rows(total["statistics"]), self.kinds), total["statistics"])
        return {"own": {"statistics": mix}}


def around(adapter: Adapter) -> dict[str, Adapter]:
    """What is compared around one adapter."""
    return {
        "own": Together(adapter, weights="own"),
        "uniform": Together(adapter, weights="uniform"),
        "similarity": Together(adapter),
        "similarity, every 5 batches": Together(adapter, every=5),
        "similarity, not centred": Together(adapter, centred=False),
        "FedCTTA": FedCTTA(adapter),
        "FedCTTA, temperature 0.01": FedCTTA(adapter, temperature=0.01),
        "group known": GroupKnown(adapter, kinds=len(KINDS)),
    }


def variants(rate: float) -> dict[str, Adapter]:
    """Everything that is compared, by name."""
    inside = {"Tent": Tent(opt=Adam(lr=rate)), "running statistics": RunningStats(speed=3.0)}
    return {
        "not adapted": NoAdapt(),
        "statistics of each batch": BNStats(),
        **{f"{name}: {how}": a for name, inner in inside.items() for how, a in around(inner).items()},
        "prototypes: own": Latte(neighbours=0, batch_statistics=True),
        "prototypes: exchanged": Latte(batch_statistics=True),
        "statistics of each batch: uniform": BNTogether(weights="uniform"),
        "statistics of each batch: similarity": BNTogether(),
        "statistics of each batch: similarity, every 5 batches": BNTogether(every=5),
        "statistics of each batch: FedTSA": FedTSA(),
        "statistics of each batch: group known": StatisticsGroupKnown(kinds=len(KINDS)),
    }


def experiment(given: argparse.Namespace, seed: int) -> ac.Experiment:
    """The training that all variants share."""
    even, digits = ac.data.IID(), given.data == "digits"
    data: Any = ac.data.Digits if digits else ac.data.CIFAR10
    model = ac.models.CNN(widths=(16, 32), norm="batch") if digits else ac.models.ResNet20(norm="batch")
    return ac.Experiment(
        data=data(clients=given.clients, partition=even),
        model=model,
        method=ac.methods.FedAvg(work=ac.Work(epochs=given.epochs)),
        rounds=given.rounds,
        eval_every=given.rounds,
        seed=seed,
        device=given.device,
    )


Found = dict[str, tuple[float, int]]
"""Accuracy and bytes by the name of a variant."""


def measured(given: argparse.Namespace, seed: int, known: Found) -> Found:
    """Every variant with one seed; those that are known already are not served again."""
    wanted = {name: adapter for name, adapter in variants(given.rate).items() if name not in known}
    fit = trained(experiment(given, seed), given.trainings)
    stream = ac.shifts.Grouped(kinds=KINDS, length=given.length, batch=given.batch)
    found = dict(known)
    for name, adapter in wanted.items():
        rows = ac.evaluate(fit, adapters=[adapter], streams=[stream]).rows
        row = next(r for r in rows if r["selection"] == "last")
        found[name] = (row["accuracy"], row["exchanged_bytes"])
        print(f"seed {seed}: {name:50s} {100 * row['accuracy']:6.2f}", flush=True)
    fit.engine.close()
    return found


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What an entry is a measurement of, its seeds apart."""
    return {k: v for k, v in vars(given).items() if k not in ("out", "device", "trainings", "merge", "seeds")}


def record_of(given: argparse.Namespace, each: dict[int, Found], seconds: float) -> Any:
    """What is kept of the seeds that were measured so far; a variant that not all seeds have says which."""
    rows = []
    for name, exchanged in {name: sent for found in each.values() for name, (_, sent) in found.items()}.items():
        own = [seed for seed, found in each.items() if name in found]
        accuracies = [each[seed][name][0] for seed in own]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        row = {"variant": name, "accuracy": round(statistics.mean(accuracies), 6), "std_over_seeds": round(spread, 6)}
        seeds = {"seeds": own} if own != list(each) else {}
        rows.append({**row, "each": accuracies, "exchanged_bytes": exchanged, **seeds})
    return {
        "command": command(),
        "environment": environment(device_of(given.device, "--device ")),
        "settings": {**settings_of(given), "seeds": list(each)},
        "stream": {"kinds": KINDS, "severity": 5, "samples": given.length, "batch": given.batch},
        "seconds": round(seconds, 1),
        "rows": rows,
    }


def entry_of(given: argparse.Namespace) -> str:
    """`digits, 20 clients, batch 16`"""
    return f"{given.data}, {given.clients} clients, batch {given.batch}"


def before(given: argparse.Namespace) -> tuple[dict[int, Found], float]:
    """What the file has of these settings by seed, and the seconds that it took."""
    kept = json.loads(given.out.read_text()).get(entry_of(given)) if given.out.exists() else None
    if kept is None or {k: v for k, v in kept["settings"].items() if k != "seeds"} != settings_of(given):
        return {}, 0.0
    each: dict[int, Found] = {seed: {} for seed in kept["settings"]["seeds"]}
    for row in kept["rows"]:
        for seed, accuracy in zip(row.get("seeds", each), row["each"], strict=True):
            each[seed][row["variant"]] = (accuracy, row["exchanged_bytes"])
    return each, kept["seconds"]


def save(path: Path, entries: dict[str, Any]) -> None:
    """Put these entries in the place of earlier ones of the same names."""
    kept = json.loads(path.read_text()) if path.exists() else {}
    write(path, {**kept, **entries})


def shown(record: dict[str, Any]) -> str:
    """An entry as Markdown."""
    lines = []
    for r in record["rows"]:
        accuracy = f"{100 * r['accuracy']:.2f} ±{100 * r['std_over_seeds']:.2f}"
        lines.append([r["variant"], accuracy, f"{r['exchanged_bytes']:,}"])
    return "\n".join(layout.table(["variant", "accuracy, %", "bytes per client"], lines))


def main() -> None:
    """Train, measure, print, write."""
    parser = parser_of(__doc__)
    parser.add_argument("--data", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=320, help="samples of each client's stream")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=integers, default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=0.001, help="Tent's step size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--trainings", type=Path, help="a folder that keeps trainings, for the next run")
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/together.json"))
    given = parser.parse_args()
    if given.merge:
        for part in given.merge:
            save(given.out, json.loads(part.read_text()))
        return
    each, took = before(given)
    for seed in given.seeds:
        if variants(given.rate).keys() - each.get(seed, {}).keys():
            began = time.perf_counter()
            each[seed] = measured(given, seed, each.get(seed, {}))
            took += time.perf_counter() - began
            save(given.out, {entry_of(given): record_of(given, each, took)})  # a run that is cut keeps what it has
            print(f"seed {seed}: {took:.0f} s", flush=True)
    print("\n" + shown(record_of(given, each, took)))


if __name__ == "__main__":
    main()
