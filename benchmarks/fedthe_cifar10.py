"""FedTHE's Tables 1, 3 and 13 on CIFAR-10: 20 clients, the CNN without biases, 100 rounds of 5 epochs, BRFL's streams.

    export ACCLIMATE_DATA=...
    python benchmarks/fedthe_cifar10.py --alphas 0.1 1.0 --out table1.json
    python benchmarks/fedthe_cifar10.py --seeds 1 2 --rows fedavg fedavg+ft memo-p fedthe fedthe+ --out table1.json
    python benchmarks/fedthe_cifar10.py --table ablations --out ablations.json

A row is one training and one way to test it; rows of the same training share it, and are those of `acclimate reproduce`
(acclimate/recipes/brfl.py). What --out already holds is not run again, and it is written after every row, so that
several short calls add up. The natural stream joins where CIFAR-10.1 is. `benchmarks/fedthe_table.py` prints the result
beside the published numbers. --fraction and --rounds make it small enough to try out. Where there is no git,
ACCLIMATE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import itertools
from pathlib import Path
from typing import Any

import rows
from rows import Record, Row

import acclimate as ac
from acclimate.core import Method
from acclimate.ops.augment import FlipCrop
from acclimate.recipes import brfl as recipes
from acclimate.running import run as api

SCHEMA = "acclimate.fedthe/1"
TRAININGS: dict[str, Method] = {name: named.record for name, named in recipes.TRAININGS.items()}


def row(name: str) -> Row:
    """A row as `acclimate reproduce` has it."""
    line = recipes.LINES[name]
    training = next(t for t, named in recipes.TRAININGS.items() if named == line.method)
    return Row(training, line.personal.record, line.adapter.record)


TABLES: dict[str, dict[str, Row]] = {
    "1": {name: row(name) for name in recipes.TABLE1},
    "ablations": {name: row(name) for name in recipes.ABLATIONS.values()},
}
ROWS = {name: found for table in TABLES.values() for name, found in table.items()}


def streams() -> tuple[Any, ...]:
    """BRFL's streams, the natural one where its files are there."""
    try:
        ac.data.CIFAR10_1().load()
    except FileNotFoundError:
        return ac.shifts.brfl()
    return ac.shifts.brfl(ac.data.CIFAR10_1())


def experiment(training: str, alpha: float, seed: int, rounds: int, fraction: float = 1.0) -> ac.Experiment:
    """The training that rows share."""
    partition = ac.data.Dirichlet(alpha)
    data = ac.data.CIFAR10(clients=20, partition=partition, augment=FlipCrop(), fraction=fraction)
    model, method = ac.models.CNN(bias=False), TRAININGS[training]
    return ac.Experiment(data, model, method, streams=streams(), rounds=rounds, seed=seed, eval_every=rounds)


def alpha_of(e: ac.Experiment) -> float:
    """Of the Dirichlet distribution that dealt the labels."""
    assert isinstance(e.data.partition, ac.data.Dirichlet)
    return e.data.partition.alpha


def numbers(fit: api.Fit, last: list[Record]) -> Record:
    """Means over clients on every stream."""
    return {"streams": {r["stream"]: {k: r[k] for k in ("accuracy", "std", "loss", "ece")} for r in last}}


def script(training: str) -> rows.Script:
    """How the records of this training look, and how they are told of."""

    def about(fit: api.Fit, together: int) -> Record:
        return {"training": training, "alpha": alpha_of(fit.experiment), "seeds_trained_together": together}

    def accuracies(row: Record) -> dict[str, float]:
        return {stream: m["accuracy"] for stream, m in row["streams"].items()}

    return rows.Script(about, ROWS.__getitem__, numbers, accuracies, lambda e: f"Dir({alpha_of(e)}), seed {e.seed}")


def main() -> None:
    """Run what is asked for and not there yet."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=list(TABLES), default="1")
    parser.add_argument("--rows", nargs="+", choices=list(ROWS), metavar="ROW", help=f"instead: {', '.join(ROWS)}")
    parser.add_argument("--alphas", type=float, nargs="+", default=[0.1])
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=1.0, help="share of CIFAR-10 that is used")
    parser.add_argument("--out", type=Path, required=True)
    args = parser.parse_args()
    asked = args.rows or list(TABLES[args.table])
    body = rows.opened(args.out, SCHEMA)
    for training in TRAININGS:
        if lines := {n: ROWS[n] for n in asked if ROWS[n].training == training}:
            each = itertools.product(args.alphas, args.seeds)
            wanted = [experiment(training, alpha, seed, args.rounds, args.fraction) for alpha, seed in each]
            todo = {e: rows.missing(body["records"], lines, e) for e in wanted}
            rows.add(body, args.out, training, todo, script(training))


if __name__ == "__main__":
    main()
