"""Clients that adapt together, where shifts come in groups: accuracy against the bytes that a client exchanges.

Clients share one FedAvg model and have examples of all classes alike, so that what differs between them is the
corruption of their stream: five kinds, client c has number c modulo 5. The temperature and the centring of `Together`
and the speed of the running statistics were looked at with seed 0 on the digits; the default seeds are others.

    python benchmarks/together.py [--data digits] [--clients 20] [--seeds 1,2,3] [--rate 0.001] [--device cpu]
    python benchmarks/together.py --data cifar10 --clients 100 --rounds 100 --device cuda

The file holds one entry per data set, number of clients and batch size. Seeds that an entry of the same settings has
are not run again; an entry of other settings is replaced. `--merge part.json` takes over the entries of other files.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from pathlib import Path
from typing import Any

from harness import command, environment, integers, parser_of, trained, write

import acclimate as ac
from acclimate.adapters import BNStats, FedCTTA, Latte, NoAdapt, RunningStats, Tent, Together
from acclimate.core import Adam, Adapter
from acclimate.ops import layout
from acclimate.ops.devices import device_of

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
    fit = trained(experiment(given, seed), given.trainings)
    stream = ac.shifts.Grouped(kinds=KINDS, length=given.length, batch=given.batch)
    found = {}
    for name, adapter in variants(given.rate).items():
        rows = ac.evaluate(fit, adapters=[adapter], streams=[stream]).rows
        row = next(r for r in rows if r["selection"] == "last")
        found[name] = (row["accuracy"], row["exchanged_bytes"])
        print(f"seed {seed}: {name:50s} {100 * row['accuracy']:6.2f}", flush=True)
    fit.engine.close()
    return found


def settings_of(given: argparse.Namespace) -> dict[str, Any]:
    """What an entry is a measurement of, its seeds apart."""
    return {k: v for k, v in vars(given).items() if k not in ("out", "device", "trainings", "merge", "seeds")}


def record_of(given: argparse.Namespace, each: dict[int, dict[str, tuple[float, int]]], seconds: float) -> Any:
    """What is kept of the seeds that were measured so far."""
    rows = []
    for name, (_, exchanged) in next(iter(each.values())).items():
        accuracies = [found[name][0] for found in each.values()]
        spread = statistics.stdev(accuracies) if len(accuracies) > 1 else 0.0
        row = {"variant": name, "accuracy": round(statistics.mean(accuracies), 6), "std_over_seeds": round(spread, 6)}
        rows.append({**row, "each": accuracies, "exchanged_bytes": exchanged})
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


def before(given: argparse.Namespace) -> tuple[dict[int, dict[str, tuple[float, int]]], float]:
    """What the file has of these settings by seed, and the seconds that it took."""
    kept = json.loads(given.out.read_text()).get(entry_of(given)) if given.out.exists() else None
    if kept is None or {k: v for k, v in kept["settings"].items() if k != "seeds"} != settings_of(given):
        return {}, 0.0
    seeds = kept["settings"]["seeds"]
    rows = [(r["variant"], r["each"], r["exchanged_bytes"]) for r in kept["rows"]]
    return {seed: {name: (each[i], sent) for name, each, sent in rows} for i, seed in enumerate(seeds)}, kept["seconds"]


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
        if seed not in each:
            began = time.perf_counter()
            each[seed], took = measured(given, seed), took + time.perf_counter() - began
            save(given.out, {entry_of(given): record_of(given, each, took)})  # a run that is cut keeps what it has
            print(f"seed {seed}: {took:.0f} s", flush=True)
    print("\n" + shown(record_of(given, each, took)))


if __name__ == "__main__":
    main()
