"""Clients that adapt together, where shifts come in groups: accuracy against the bytes that a client exchanges.

Clients share one FedAvg model and have examples of all classes alike, so that what differs between them is the
corruption of their stream: five kinds, client c has number c modulo 5. The temperature and the centring of `Together`
and the speed of the running statistics were looked at with seed 0 on the digits; the default seeds are others.

    python benchmarks/together.py [--data digits] [--clients 20] [--seeds 1,2,3] [--rate 0.001] [--device cpu]
    python benchmarks/together.py --data cifar10 --clients 100 --rounds 100 --device cuda

The file holds one entry per data set, number of clients and batch size; a run replaces its own.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

import torch
from harness import command, environment

import acclimate as ac
from acclimate import store
from acclimate.adapters import BNStats, FedCTTA, Latte, NoAdapt, RunningStats, Tent, Together
from acclimate.core import Adam, Adapter

KINDS = ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate")


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


def measured(given: argparse.Namespace, seed: int) -> dict[str, tuple[float, int]]:
    """Accuracy and bytes of every variant with one seed."""
    fit = ac.train(experiment(given, seed))
    stream = ac.shifts.Grouped(kinds=KINDS, length=given.length, batch=given.batch)
    found = {}
    for name, adapter in variants(given.rate).items():
        rows = ac.evaluate(fit, adapters=[adapter], streams=[stream]).rows
        row = next(r for r in rows if r["selection"] == "last")
        found[name] = (row["accuracy"], row["exchanged_bytes"])
    fit.engine.close()
    return found


def record_of(given: argparse.Namespace, each: list[dict[str, tuple[float, int]]], seconds: float) -> dict[str, Any]:
    """What is kept of the seeds that were measured so far."""
    rows = []
    for name in each[0]:
        accuracies = [found[name][0] for found in each]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        row = {"variant": name, "accuracy": round(statistics.mean(accuracies), 6), "std_over_seeds": round(spread, 6)}
        rows.append({**row, "each": accuracies, "exchanged_bytes": each[0][name][1]})
    settings = {k: v for k, v in vars(given).items() if k not in ("out", "device")}
    return {
        "command": command(),
        "environment": environment(torch.device(given.device)),
        "settings": {**settings, "seeds": given.seeds[: len(each)]},
        "stream": {"kinds": KINDS, "severity": 5, "samples": given.length, "batch": given.batch},
        "seconds": round(seconds, 1),
        "rows": rows,
    }


def save(given: argparse.Namespace, record: dict[str, Any]) -> None:
    """Put this record in the place of an earlier one of the same data, clients and batch size."""
    kept = json.loads(given.out.read_text()) if given.out.exists() else {}
    kept[f"{given.data}, {given.clients} clients, batch {given.batch}"] = record
    given.out.parent.mkdir(parents=True, exist_ok=True)
    store.write(given.out, store.json_text(kept, indent=1) + "\n")


def main() -> None:
    """Train, measure, print, write."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=("digits", "cifar10"), default="digits")
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=15)
    parser.add_argument("--epochs", type=int, default=2)
    parser.add_argument("--length", type=int, default=320, help="samples of each client's stream")
    parser.add_argument("--batch", type=int, default=16)
    parser.add_argument("--seeds", type=lambda s: [int(n) for n in s.split(",")], default=[1, 2, 3])
    parser.add_argument("--rate", type=float, default=0.001, help="Tent's step size")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--out", type=Path, default=Path("results/adapters/together.json"))
    given = parser.parse_args()
    began, each = time.perf_counter(), []
    for seed in given.seeds:
        each.append(measured(given, seed))
        record = record_of(given, each, time.perf_counter() - began)
        save(given, record)  # after every seed: a run that is cut keeps what it has
        print(f"seed {seed}: {record['seconds']:.0f} s", flush=True)
    print("\n| variant | accuracy, % | bytes per client |\n| --- | --- | --- |")
    for r in record["rows"]:
        accuracy = f"{100 * r['accuracy']:.2f} ±{100 * r['std_over_seeds']:.2f}"
        print(f"| {r['variant']} | {accuracy} | {r['exchanged_bytes']:,} |")


if __name__ == "__main__":
    main()
