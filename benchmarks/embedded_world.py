"""The default experiment's world: how far fine-tuned models fall abroad, and what FedTHE does about it.

`validation` is what the world was chosen by (scripts/choose_world.py): FedAvg with fine-tuning, everything else at its
default, on a client's own validation rows (at home) and as many of the other clients' (abroad). `test` was looked at
afterwards: the same, FedTHE with default settings, and FedTHE at its paper's rate, by the last round.

    python benchmarks/embedded_world.py [--seeds 3] [--out results/worlds/embedded.json]

Percent by row and stream, of every seed.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from pathlib import Path

import torch
from harness import environment, parser_of, write

import acclimate as ac
from acclimate.adapters import THE, NoAdapt
from acclimate.core import SGD
from acclimate.methods import FedAvg, FedTHE
from acclimate.personal import FineTune

sys.path.insert(0, str(Path(__file__).parents[1] / "scripts"))
from choose_world import STREAMS, accuracies

PAPER = SGD(lr=0.01, weight_decay=5e-4)
ROWS: dict[str, ac.Experiment] = {
    "FedAvg + FT": ac.Experiment(method=FedAvg(), personal=FineTune(), adapters=(NoAdapt(),)),
    "FedTHE": ac.Experiment(method=FedTHE(), adapters=(THE(),)),
    "FedTHE at the paper's rate": ac.Experiment(method=FedTHE(opt=PAPER, head_opt=PAPER), adapters=(THE(),)),
}


def tested(experiment: ac.Experiment, seed: int) -> list[float]:
    """Test accuracy at home and abroad, by the last round."""
    e = replace(experiment, seed=seed, streams=STREAMS)
    table = ac.evaluate(ac.train(e), e.adapters, e.streams, e.personal)
    return [100 * table.accuracy(stream=name, selection="last") for name in ("original", "out-of-client")]


def main() -> None:
    """Measure, print, and write JSON."""
    parser = parser_of(__doc__)
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--out", type=Path, default=Path("results/worlds/embedded.json"))
    given = parser.parse_args()
    seeds = range(given.seeds)
    chosen = [list(accuracies(ac.data.Digits(), seed)) for seed in seeds]
    found = {name: [tested(e, seed) for seed in seeds] for name, e in ROWS.items()}
    places = ("at home", "abroad")
    by = {name: dict(zip(places, map(list, zip(*rows, strict=True)), strict=True)) for name, rows in found.items()}
    validation = dict(zip(places, map(list, zip(*chosen, strict=True)), strict=True))
    body = {"seeds": list(seeds), "environment": environment(torch.device("cpu"))}
    rounded = {name: {p: [round(a, 2) for a in values] for p, values in row.items()} for name, row in by.items()}
    body |= {"validation": {p: [round(a, 2) for a in v] for p, v in validation.items()}, "test": rounded}
    write(given.out, body)
    for name, row in {"validation, FedAvg + FT": validation, **by}.items():
        print(name, {p: [round(a, 1) for a in values] for p, values in row.items()})


if __name__ == "__main__":
    main()
