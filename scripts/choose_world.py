"""How far fine-tuned models fall on other clients' examples, by validation data: how the embedded world was chosen.

    python scripts/choose_world.py --alphas 0.01 0.1 --clients 10 20 --sizes equal --seeds 3

FedAvg with fine-tuning, everything else at its default. `at home` is a client's own validation rows, `abroad` as many
of the other clients'. Test rows are not read.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from dataclasses import replace
from itertools import product
from statistics import fmean

import acclimate as ac
from acclimate.data import Digits, Dirichlet

STREAMS = (ac.shifts.Original(), ac.shifts.OutOfClient())


def on_validation(fit: ac.Fit) -> ac.Fit:
    """The same training, whose streams are made of validation rows."""
    return replace(fit, world=replace(fit.world, test=fit.world.val, val=fit.world.test))


def accuracies(data: Digits, seed: int) -> Iterator[float]:
    """Of FedAvg with fine-tuning, at home and abroad."""
    fit = on_validation(ac.train(ac.Experiment(data=data, seed=seed)))
    table = ac.evaluate(fit, [ac.adapters.NoAdapt()], STREAMS, ac.personal.FineTune())
    return (100 * table.accuracy(stream=name) for name in ("original", "out-of-client"))


def main() -> None:
    """Print a row per world."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.01, 0.03, 0.1])
    parser.add_argument("--clients", type=int, nargs="+", default=[10, 20])
    parser.add_argument("--sizes", nargs="+", default=["equal"])
    parser.add_argument("--seeds", type=int, default=3)
    args = parser.parse_args()
    print("alpha clients sizes    at home  abroad  lower by   each seed")
    for alpha, clients, sizes in product(args.alphas, args.clients, args.sizes):
        data = Digits(Dirichlet(alpha, sizes), clients)
        found = [tuple(accuracies(data, seed)) for seed in range(args.seeds)]
        home, abroad = (fmean(column) for column in zip(*found, strict=True))
        lower = " ".join(f"{h - a:.1f}" for h, a in found)
        print(
            f"{alpha:5g} {clients:7d} {sizes:8s} {home:7.1f} {abroad:7.1f} {home - abroad:9.1f}   {lower}", flush=True
        )


if __name__ == "__main__":
    main()
