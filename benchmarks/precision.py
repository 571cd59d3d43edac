"""What reduced precision costs in accuracy: FedTHE trained in fp32 and in bf16, the same seeds, on BRFL's streams.

The world is that of `benchmarks/methods.py`: federated CIFAR-10, Dirichlet 0.1, 20 clients, 100 rounds, the CNN. A row
is one precision of local training and one seed. Parameters, averages and answers are in fp32 in every row.

    python benchmarks/precision.py [--method fedthe] [--seeds 0,1,2] [--rounds 100] [--device cuda] [--out FILE]

Rows that are in the file already are not run again.
"""

from __future__ import annotations

import argparse
import json
import statistics
from dataclasses import replace
from pathlib import Path

from harness import environment, parser_of

import methods
from acclimate.backends import Vmap
from acclimate.ops.devices import device_of

PRECISIONS = ("fp32", "bf16")


def measured(precision: str, given: argparse.Namespace, seed: int) -> methods.Row:
    """The row of one training."""
    backend = Vmap(precision=precision)  # type: ignore[arg-type]
    return methods.measured_of(replace(methods.experiment(given.method, given, seed), backend=backend), given)


def differences(rows: dict[str, methods.Row]) -> dict[str, dict[str, float]]:
    """By stream, in points at the last round: how far bf16 is above fp32, mean over seeds and the farthest seed."""
    pairs = [(r, rows[f"fp32 {r['seed']}"]) for r in rows.values() if r["precision"] == "bf16"]
    apart: dict[str, list[float]] = {}
    for low, exact in pairs:
        for stream, value in low["accuracy"]["last"].items():
            apart.setdefault(stream, []).append(value - exact["accuracy"]["last"][stream])
    return {s: {"mean": round(statistics.mean(d), 3), "farthest": max(d, key=abs)} for s, d in apart.items()}


def main() -> None:
    """Train and measure what is missing, write after each row, print the differences."""
    parser = parser_of(__doc__)
    methods.add_options(parser)
    parser.add_argument("--method", default="fedthe")
    parser.add_argument("--out", type=Path, default=Path("results/benchmarks/precision-h200.json"))
    given = parser.parse_args()
    study = {n: getattr(given, n) for n in ("data", "method", "clients", "rounds")} | methods.part_of(given)
    rows: dict[str, methods.Row] = {}
    if given.out.exists():
        stored = json.loads(given.out.read_text())
        if {n: v for n, v in stored["study"].items() if n != "bf16_above_fp32"} != study:
            raise SystemExit(f"rows are of {stored['study']}, not of {study}; name another --out")
        rows = stored["rows"]
    where = environment(device_of(given.device))
    for seed in given.seeds:
        for precision in PRECISIONS:
            name = f"{precision} {seed}"
            if name not in rows:
                rows[name] = {"precision": precision, "seed": seed, **measured(precision, given, seed)}
                print(f"{name} {rows[name]['accuracy']['last']} {rows[name]['seconds']} s", flush=True)
        methods.save(given.out, {**study, "bf16_above_fp32": differences(rows)}, where, rows)
    for stream, apart in differences(rows).items():
        print(f"{stream:16s} bf16 above fp32: {apart['mean']:+.2f} points, farthest seed {apart['farthest']:+.2f}")


if __name__ == "__main__":
    main()
