"""FedTHE's Tables 1, 3 and 13 on CIFAR-10: 20 clients, the CNN without biases, 100 rounds of 5 epochs, BRFL's streams.

    export ACCLIMATE_DATA=...
    python benchmarks/fedthe_cifar10.py --alphas 0.1 1.0 --out table1.json
    python benchmarks/fedthe_cifar10.py --seeds 1 2 --rows fedavg fedavg+ft memo-p fedthe fedthe+ --out table1.json
    python benchmarks/fedthe_cifar10.py --table ablations --out ablations.json

A row is one training and one way to test it; rows of the same training share it, and are those of `acclimate reproduce`
(acclimate/recipes/fedthe.py). What --out already holds is not run again, and it is written after every row, so that
several short calls add up. The natural stream joins where CIFAR-10.1 is. `benchmarks/fedthe_table.py` prints the result
beside the published numbers. --fraction and --rounds make it small enough to try out. Where there is no git,
ACCLIMATE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import itertools
import json
import os
import time
from pathlib import Path
from typing import Any, NamedTuple

import acclimate as ac
from acclimate import api, store
from acclimate.core.adapter import Adapter
from acclimate.core.method import Method
from acclimate.core.personal import Personalizer
from acclimate.ops.augment import FlipCrop
from acclimate.recipes import fedthe as recipes

SCHEMA = "acclimate.fedthe/1"
TRAININGS: dict[str, Method] = {name: named.record for name, named in recipes.TRAININGS.items()}


class Row(NamedTuple):
    """One line of a table: what is trained, and how the trained model is personalised and adapted."""

    training: str
    personal: Personalizer
    adapter: Adapter


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


def record_of(training: str, fit: api.Fit, seconds: float, together: int) -> dict[str, Any]:
    """The record of a training without results: settings, hashes, times and where it ran."""
    e = fit.experiment
    env, card = store.environment(fit.engine.device), fit.world.card()
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    return {
        "training": training,
        "alpha": alpha_of(e),
        "seed": e.seed,
        "rounds": e.rounds,
        "fraction": e.data.fraction,
        "method": repr(e.method),
        "training_hash": e.training_hash(),
        "data_hashes": {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()},
        "stream_hashes": {n: api.stream_hash(s) for n, (_, s) in api.streams_of(fit.world, e.streams).items()},
        "environment": env,
        "train_seconds": round(seconds, 1),
        "seeds_trained_together": together,
        "round_seconds_median": round(sorted(fit.seconds)[len(fit.seconds) // 2], 4),
        "rows": [],
    }


def tested(fit: api.Fit, name: str) -> dict[str, Any]:
    """One row of a trained experiment: means over clients on every stream, at the last round."""
    row, began = ROWS[name], time.perf_counter()
    table = ac.evaluate(fit, adapters=[row.adapter], personal=row.personal)
    if table.refused:
        raise SystemExit(f"{name}: {table.refused[0]['reason']}")
    last = [r for r in table.rows if r["selection"] == "last"]
    return {
        "row": name,
        "personal": repr(row.personal),
        "adapter": repr(row.adapter),
        "test_seconds": round(time.perf_counter() - began, 2),
        "streams": {r["stream"]: {k: r[k] for k in ("accuracy", "std", "loss", "ece")} for r in last},
    }


def missing(records: list[dict[str, Any]], names: list[str], e: ac.Experiment) -> list[str]:
    """The rows that no record holds as they are defined now."""
    same = [r for r in records if r["training_hash"] == e.training_hash()]
    held = {(r["row"], r["personal"], r["adapter"]) for record in same for r in record["rows"]}
    return [n for n in names if (n, repr(ROWS[n].personal), repr(ROWS[n].adapter)) not in held]


def add(body: dict[str, Any], out: Path, training: str, names: list[str], asked: list[ac.Experiment]) -> None:
    """Train those that lack a row (all together), test them, and write to `out` after every row."""
    todo = {e: rows for e in asked if (rows := missing(body["records"], names, e))}
    if not todo:
        print(f"{training}: there already", flush=True)
        return
    began = time.perf_counter()
    fits = ac.train_together(list(todo))
    seconds = time.perf_counter() - began
    told = ", ".join(f"Dir({alpha_of(e)}) seed {e.seed}" for e in todo)
    print(f"{training}: {told}: trained in {seconds:.1f} s", flush=True)
    for fit in fits:
        record = record_of(training, fit, seconds, len(fits))
        body["records"].append(record)
        _test(body, out, fit, record, todo[fit.experiment])


def _test(body: dict[str, Any], out: Path, fit: api.Fit, record: dict[str, Any], names: list[str]) -> None:
    for name in names:
        row = tested(fit, name)
        record["rows"].append(row)
        store.write(out, json.dumps(body, indent=1) + "\n")
        cells = "  ".join(f"{stream} {m['accuracy']:.1%}" for stream, m in row["streams"].items())
        print(f"  {name:20s} {cells}  ({row['test_seconds']} s)", flush=True)
    fit.engine.close()


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
    body: dict[str, Any] = store.read_json(args.out) if args.out.exists() else {"schema": SCHEMA, "records": []}
    for training in TRAININGS:
        if names := [n for n in asked if ROWS[n].training == training]:
            each = itertools.product(args.alphas, args.seeds)
            wanted = [experiment(training, alpha, seed, args.rounds, args.fraction) for alpha, seed in each]
            add(body, args.out, training, names, wanted)


if __name__ == "__main__":
    main()
