"""Methods side by side on a federated CIFAR-10 or the embedded digits, each with its defaults: accuracy and cost.

The world of the leaderboard's track cifar10-cnn: label skew of Dirichlet 0.1 as in BRFL, the CNN without norm, the same
number of rounds and of local steps for all. A row is one method and one seed: accuracy on BRFL's streams
after the last round and after the round that validation data select, without adapting (FedTHE weighs its heads); bytes
that a client uploads in a round; seconds of the training (of seeds that train side by side, each has its share). With
`--data digits` the world is what `acclimate run` has without settings, but for the number of clients and rounds.

    python benchmarks/methods.py [--methods fedavg,moon] [--seeds 0,1,2] [--clients 20] [--rounds 100] [--device cuda]
        [--precision bf16]
    python benchmarks/methods.py --together                           all seeds of a method in one training, on a GPU
    python benchmarks/methods.py --methods fedrep/work.clip=none,moon/mu=0.1      settings of a method after its name
    python benchmarks/methods.py --data digits --clients 10 --rounds 10 --streams original,out-of-client --out FILE
    python benchmarks/methods.py --merge part-1.json part-2.json      what runs side by side wrote, in one file
    python benchmarks/methods.py --from RUNS                          rows of runs that are there, such as the track's

A method that diverges has a row that says so. Rows that are in the file already are not run again, so a run that was
cut goes on where it was.
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from harness import command, environment, integers, parser_of, write

import acclimate as ac
from acclimate.backends import Vmap
from acclimate.core import Adapter
from acclimate.experiment import catalogue, loads
from acclimate.experiment.labels import label
from acclimate.experiment.settings import expand
from acclimate.leaderboard.tracks import fixed
from acclimate.ops import layout
from acclimate.ops.devices import device_of

Row = dict[str, Any]
PEERS = "feddyn,moon,fedbabu,lg-fedavg,fedlc,fedala,fedntd,ifca,fedpac,fedas,fedem,ccvr,feddecorr,fedfomo,cfl"
BEFORE = "local,fedavg,fedavg+finetune,fedprox,scaffold,fednova,fedper,fedrep,fedrod,ditto,apfl,pfedme,fedproto,fedthe"
OWN: dict[type, Adapter] = {ac.methods.FedTHE: ac.adapters.THE()}
"""Methods whose answers are made at test time: all others answer as they were trained."""
MODEL = {"cifar10": "cnn", "digits": "cnn-small"}
STREAMS = "original,corrupted,out-of-client,mixture"


def dataset(given: argparse.Namespace) -> ac.data.Dataset:
    """The embedded digits as they are dealt by default, or CIFAR-10, all or a part of it, with BRFL's label skew."""
    if given.data == "digits":
        return ac.data.Digits(clients=given.clients)
    skewed = ac.data.Dirichlet(0.1, sizes="brfl")
    return ac.data.CIFAR10(skewed, given.clients, fraction=given.fraction)


def experiment(name: str, given: argparse.Namespace, seed: int) -> ac.Experiment:
    """The training of one method, with its defaults but for settings after its name: `fedrep/work.clip=none`."""
    named, *settings = name.split("/")
    method, _, personal = named.partition("+")
    changed = [(f"method.{key}", value) for key, _, value in (setting.partition("=") for setting in settings)]
    return ac.Experiment(
        data=dataset(given),
        model=catalogue.MODELS[MODEL[given.data]],
        method=expand([("method", method), *changed])[0].method,
        personal=catalogue.PERSONALS[personal or "none"],
        rounds=given.rounds,
        eval_every=max(given.rounds // 10, 1),
        seed=seed,
        device=given.device,
    )


def measured_of(run: ac.Experiment, given: argparse.Namespace) -> Row:
    """What a training gives: accuracies, bytes and seconds."""
    return measured_together([run], given)[0]


def measured_together(runs: list[ac.Experiment], given: argparse.Namespace) -> list[Row]:
    """What trainings side by side give; each has its share of the seconds."""
    began = time.perf_counter()
    fits = ac.train_together(runs) if len(runs) > 1 else [ac.train(runs[0])]
    seconds = (time.perf_counter() - began) / len(runs)
    streams = [catalogue.STREAMS[s] for s in given.streams.split(",")]
    rows = []
    for run, fit in zip(runs, fits, strict=True):
        adapter = OWN.get(type(run.method), ac.adapters.NoAdapt())
        rows.append(row_of(ac.evaluate(fit, adapters=[adapter], streams=streams).rows, seconds))
        fit.engine.close()
    return rows


def trained(name: str, given: argparse.Namespace, seeds: list[int]) -> list[Row]:
    """The figures of seeds of one method, or why they have none: defaults may diverge."""
    runs = [experiment(name, given, seed) for seed in seeds]
    if given.precision == "bf16":
        runs = [replace(run, backend=Vmap(precision="bf16")) for run in runs]
    try:
        return measured_together(runs, given)
    except ArithmeticError as reason:
        if len(seeds) == 1:
            return [{"failed": str(reason)}]
    return [row for seed in seeds for row in trained(name, given, [seed])]  # which of them diverges


def row_of(found: list[Row], seconds: float) -> Row:
    """The figures of rows of one training and one adapter."""
    accuracy: dict[str, dict[str, float]] = {}
    for r in found:
        accuracy.setdefault(r["selection"], {})[r["stream"]] = round(100 * r["accuracy"], 3)
    rounds = {r["selection"]: r["round"] for r in found}
    return {"accuracy": accuracy, "rounds": rounds, "up_bytes": found[0]["up_bytes"], "seconds": round(seconds, 1)}


def stored_runs(folder: Path, given: argparse.Namespace) -> dict[str, Row]:
    """Rows of the finished runs below a folder: those of the methods asked for, in this study's world."""
    rows: dict[str, Row] = {}
    for file in sorted(folder.rglob("results.json")):
        about = json.loads(file.read_text())
        run = loads((file.parent / "config.json").read_text(), str(file.parent / "config.json"))
        name = next((n for n in given.methods.split(",") if same_training(run, experiment(n, given, run.seed))), None)
        adapter = label(OWN.get(type(run.method), ac.adapters.NoAdapt()))
        streams = given.streams.split(",")
        found = [r for r in about["table"] if r["adapter"] == adapter and r["stream"] in streams]
        if name is None or run.seed not in given.seeds or {r["stream"] for r in found} != set(streams):
            print(f"{file.parent} is not of this study: {about['label']}, seed {run.seed}")
            continue
        rows[f"{name} {run.seed}"] = {
            "method": name,
            "seed": run.seed,
            **row_of(found, about["timings"]["train_seconds"] / about["timings"].get("trained_together", 1)),
            "digest": about["digest"],
        }
    return rows


def same_training(one: ac.Experiment, other: ac.Experiment) -> bool:
    """Whether two experiments train and personalise alike, wherever the data lies and whatever is tested."""
    return (
        one.personal == other.personal
        and all(
            getattr(one, part) == getattr(other, part) for part in ("method", "model", "rounds", "filters", "cohort")
        )
        and fixed(one)["data"] == fixed(other)["data"]
    )


def table(rows: dict[str, Row], streams: list[str]) -> str:
    """Means over seeds as Markdown, best mixture first: last round, and in brackets what validation data select."""
    lines, by_method = [], dict[str, list[Row]]()
    for row in rows.values():
        by_method.setdefault(row["method"], []).append(row)
    for name, tried in sorted(by_method.items(), key=lambda item: _place(item[1], streams[-1])):
        own = [r for r in tried if "accuracy" in r]
        cells = [_both(own, s) for s in streams] if own else ["diverges"] * len(streams)
        cost = _cost(own) if own else ["", ""]
        failed = [r for r in tried if r not in own]
        seeds = _seeds(own) + (f" ({_seeds(failed)} diverged)" if own and failed else _seeds(failed))
        lines.append([name, *cells, *cost, seeds])
    return "\n".join(layout.table(["method", *streams, "MB up per round", "seconds", "seeds"], lines, words=1))


def _place(rows: list[Row], stream: str) -> float:
    """A sort key: less for a higher mean after the last round; methods without a finite seed come last."""
    found = [r["accuracy"]["last"][stream] for r in rows if "accuracy" in r]
    return -statistics.mean(found) if found else 1.0


def _seeds(rows: list[Row]) -> str:
    return ", ".join(str(seed) for seed in sorted(r["seed"] for r in rows))


def _cost(rows: list[Row]) -> list[str]:
    """Megabytes that a client uploads in a round, and mean seconds."""
    return [f"{rows[0]['up_bytes'] / 1e6:.2f}", f"{statistics.mean(r['seconds'] for r in rows):.0f}"]


def _both(rows: list[Row], stream: str) -> str:
    """The mean after the last round, and in brackets that of validation's round where all runs have looked for it."""
    last = statistics.mean(r["accuracy"]["last"][stream] for r in rows)
    if any("validation" not in r["accuracy"] for r in rows):
        return f"{last:.1f}"
    return f"{last:.1f} ({statistics.mean(r['accuracy']['validation'][stream] for r in rows):.1f})"


def save(path: Path, study: Row, where: Row, rows: dict[str, Row]) -> None:
    """Write all rows, in the order of their names."""
    record = {"environment": where, "study": study, "rows": {name: rows[name] for name in sorted(rows)}}
    write(path, record)


def add_options(parser: argparse.ArgumentParser) -> None:
    """The options that `experiment` and `measured_of` read."""
    parser.add_argument("--data", choices=("digits", "cifar10"), default="cifar10")
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--clients", type=int, default=20)
    parser.add_argument("--rounds", type=int, default=100)
    parser.add_argument("--fraction", type=float, default=1.0, help="which part of CIFAR-10 is dealt")
    parser.add_argument("--streams", default=STREAMS)
    parser.add_argument("--device", default="auto")


def part_of(given: argparse.Namespace) -> Row:
    """What a study says of the part of CIFAR-10 that is dealt: nothing where it is all of it."""
    return {"fraction": given.fraction} if given.fraction < 1 else {}


def missing(rows: dict[str, Row], given: argparse.Namespace) -> list[tuple[str, list[int]]]:
    """Which seeds of which methods a file lacks: seed by seed, or all seeds of a method together."""
    names = given.methods.split(",")
    lacking = [(name, seed) for seed in given.seeds for name in names if f"{name} {seed}" not in rows]
    if not given.together:
        return [(name, [seed]) for name, seed in lacking]
    return [(name, own) for name in names if (own := [seed for n, seed in lacking if n == name])]


def main() -> None:
    """Train and measure what is missing, write after each row, print a table."""
    parser = parser_of(__doc__)
    add_options(parser)
    parser.add_argument("--methods", default=f"{PEERS},{BEFORE}")
    parser.add_argument("--precision", choices=("fp32", "bf16"), default="fp32", help="of local training, on a GPU")
    parser.add_argument("--together", action="store_true", help="seeds of a method train side by side, on a GPU")
    parser.add_argument("--merge", type=Path, nargs="+", help="files that were measured elsewhere; runs nothing")
    parser.add_argument("--from", type=Path, dest="runs", help="a folder of finished runs to read; trains nothing")
    parser.add_argument("--out", type=Path, default=Path("results/methods/cifar10.json"))
    given = parser.parse_args()
    partition = dataset(given).partition
    study = {
        "data": given.data,
        "clients": given.clients,
        "rounds": given.rounds,
        "alpha": partition.alpha,
        "sizes": partition.sizes,
        "model": MODEL[given.data],
        "precision": given.precision,
        **part_of(given),
    }
    files = [given.out, *(given.merge or [])]
    stored = [json.loads(p.read_text()) for p in files if p.exists()]
    for other in stored:
        if other["study"] != study:
            raise SystemExit(f"rows are of {other['study']}, not of {study}; name another --out")
    rows: dict[str, Row] = {name: row for other in stored for name, row in other["rows"].items()}
    where = environment(device_of(given.device))
    if given.merge:
        made = [part["environment"] for part in stored]
        said = {key: value for one in made for key, value in one.items() if key == "renamed"}
        parts = [run for one in made for run in one.get("parts", [one])]
        where = {**made[-1], **said, "command": command(), "parts": parts}
        save(given.out, study, where, rows)
    if given.runs:
        rows |= stored_runs(given.runs, given)
        save(given.out, study, where, rows)
    for name, seeds in () if given.merge or given.runs else missing(rows, given):
        for seed, found in zip(seeds, trained(name, given, seeds), strict=True):
            rows[f"{name} {seed}"] = row = {"method": name, "seed": seed, **found}
            said = row.get("failed") or f"{row['accuracy'].get('last')} {row['seconds']} s"
            print(f"{name:16s} {seed} {said}", flush=True)
        save(given.out, study, where, rows)
        torch.cuda.empty_cache()
    print("\n" + table(rows, given.streams.split(",")))


if __name__ == "__main__":
    main()
