"""FedPCL's tables on real data with EfficientNet-Lite backbones: accuracy, fairness, ablations, noise, the heat map.

    python benchmarks/fedpcl.py --out results/fedpcl/accuracy.json                  # Tables 2 and 11, both data sets
    python benchmarks/fedpcl.py --table released --out results/fedpcl/released.json # the published code's classifier
    python benchmarks/fedpcl.py --table fairness --out results/fedpcl/fairness.json # Tables 12 and 13, Figure 2b
    python benchmarks/fedpcl.py --table heterogeneity --out results/fedpcl/heterogeneity.json # Figure 2a
    python benchmarks/fedpcl.py --table ablations --out results/fedpcl/ablations.json    # Tables 5, 6 and 14
    python benchmarks/fedpcl.py --table noise --out results/fedpcl/noise.json            # Table 15
    python benchmarks/fedpcl.py --table similarity --out results/fedpcl/similarity.json  # Figure 3
    python benchmarks/fedpcl.py --table tuning --seeds 0 --out results/fedpcl/tuning.json # learning rates
    python benchmarks/fedpcl.py --show results/fedpcl/accuracy.json                 # as Markdown, beside the paper's

Needs the extra `backbones`, and Office-Caltech-10 (64 px) and Digit-5 (mnist, mnistm, svhn and usps) in ACCLIMATE_DATA.
Features are encoded once, Office at 128 pixels and Digit-5's test files at 64, and kept in ACCLIMATE_CACHE; 512 random
directions of each backbone's 1280 give the shapes of the paper. Rows that the output file already has are not run
again. Where there is no git, ACCLIMATE_COMMIT names the commit.

Clients train one after the other in one thread, and federations side by side in --processes processes: with so few
clients and so small a network, padding them to vectorise them costs more than it gains. The numbers are the same.
"""

from __future__ import annotations

import argparse
import json
import multiprocessing
import os
import statistics
import sys
import time
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import groupby
from pathlib import Path
from typing import Any, NamedTuple

import torch

import acclimate as ac
from acclimate import store
from acclimate.backends import Serial
from acclimate.core import Adam, Filter, Method, Work, tree
from acclimate.data import Dataset
from acclimate.data.features import Features
from acclimate.data.noisy import Noisy
from acclimate.data.world import World
from acclimate.eval.fairness import fairness, parameters_sent, parameters_trained, prototype_similarity
from acclimate.filters.noise import Noise
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedproto import FedProto
from acclimate.methods.perfedavg import PerFedAvg
from acclimate.methods.pfedme import PFedMe
from acclimate.models.frozen import Frozen, Projection

PUBLISHED = Path(__file__).parent / "published"
SCHEMA = "acclimate.fedpcl/2"
OPT, WORK = Adam(lr=1e-3, weight_decay=1e-4), Work(epochs=1, batch=32)
"""The paper's, for every method."""
METHODS: dict[str, Method] = {
    "fedavg": ac.methods.FedAvg(opt=OPT, work=WORK),
    "pfedme": PFedMe(opt=OPT, work=WORK, eta=0.05),
    "perfedavg": PerFedAvg(opt=OPT, work=WORK),
    "fedrep": ac.methods.FedRep(opt=OPT, work=WORK),
    "fedproto": FedProto(opt=OPT, work=WORK),
    "local": ac.methods.Local(opt=OPT, work=WORK),
    "fedpcl": FedPCL(opt=OPT, work=WORK),
    "fedpcl-released": FedPCL(opt=OPT, work=WORK, variant="released"),
}
"""The rows of the paper's tables in its order, and the published code's reading of FedPCL."""
RATES = (1e-4, 1e-3, 1e-2)
"""Learning rates that `--table tuning` tries for every row: the paper's, without its largest."""
LOSSES: dict[str, Method] = {
    "ce": FedPCL(opt=OPT, work=WORK, loss="ce"),
    "ce+distance": FedPCL(opt=OPT, work=WORK, loss="ce+distance"),
    "supcon": FedPCL(opt=OPT, work=WORK, loss="supcon"),
}
PROTOTYPES: dict[str, Method] = {
    "global only": FedPCL(opt=OPT, work=WORK, prototypes="global"),
    "local only": FedPCL(opt=OPT, work=WORK, prototypes="local"),
    "fedpcl": METHODS["fedpcl"],
}
BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
KINDS = {"s": BACKBONES[:1], "2": BACKBONES[:2], "m": BACKBONES}
DIGITS = ac.data.Digit5(domains=("mnist", "mnistm", "svhn", "usps"), part="test")
OFFICE = ac.data.OfficeCaltech10(size=64)
CALTECH = ac.data.OfficeCaltech10(size=64, domains=("caltech10",))
SPLITS = {
    "digit5/feature": (0.06, 0.04, 0.9),
    "digit5/both": (0.1, 0.05, 0.85),
    "office/feature": (0.25, 0.05, 0.7),
    "office/both": (0.45, 0.05, 0.5),
}
"""Such that the smallest client still fills a batch: DSLR has 157 images."""
SIDES = {"digit5": 64, "office": 128}
SHIFTS = ("feature", "label", "both")


MOST = 120
"""Training examples of a client: the largest of the paper's Table 10."""


@lru_cache(maxsize=1)
def _world(data: Kept, seed: int) -> World:
    world = Features.world(data, seed)
    return replace(world, train=tuple(rows[:MOST] for rows in world.train))


@dataclass(frozen=True)
class Kept(Features):
    """Features for few training examples, whose last world is kept: it is read and dealt once for all rows."""

    def world(self, seed: int = 0) -> World:
        return _world(self, seed)


class Cell(NamedTuple):
    """What one figure of a table is measured on."""

    data: str
    setting: str
    backbones: str
    row: str
    method: Method
    filters: tuple[Filter, ...] = ()
    images: Dataset | None = None
    """Instead of the data set's own."""
    model: Projection = Projection()

    def features(self) -> Kept:
        """One of the paper's federations: about a hundred training examples per client, most others for testing."""
        base = self.images or (DIGITS if self.data == "digit5" else OFFICE)
        encoder = Frozen(KINDS[self.backbones], size=SIDES[self.data], width=512)
        return replace(self._dealt(base), data=base, encoder=encoder)

    def _dealt(self, base: Dataset) -> Kept:
        if self.setting.startswith("fair"):  # label shift between many clients, who share all there is
            return Kept(ac.data.Dirichlet(1.0), int(self.setting[4:]), (0.4, 0.05, 0.55))
        if self.setting.startswith("alpha"):
            return Kept(ac.data.Dirichlet(float(self.setting[5:])), 10, (0.15, 0.05, 0.8))
        if self.setting == "label":
            one = "mnistm" if self.data == "digit5" else "caltech10"
            # held out rather than not read: their features are there
            rest = () if self.images else tuple(d for d in base.domains if d != one)
            part = ac.data.Dirichlet(1.0, "natural", floor=110)
            return Kept(part, 5, (0.3, 0.05, 0.65), held_out=rest)
        alpha = None if self.setting == "feature" else 1.0
        return Kept(ac.data.ByDomain(alpha=alpha), 4, SPLITS[f"{self.data}/{self.setting}"])

    def experiment(self, seed: int, rounds: int, eval_every: int) -> ac.Experiment:
        """The training on cached features that this cell stands for."""
        return ac.Experiment(
            self.features(),
            self.model,
            self.method,
            filters=self.filters,
            adapters=(ac.adapters.NoAdapt(),),
            streams=(ac.shifts.Original(batch=256),),
            backend=Serial(),
            rounds=rounds,
            eval_every=eval_every,
            seed=seed,
        )


def cells(table: str) -> Iterator[Cell]:
    """What a table is made of."""
    if table == "accuracy":
        for data in ("office", "digit5"):
            yield from (Cell(data, s, k, n, m) for s in SHIFTS for k in ("m", "s") for n, m in METHODS.items())
    elif table == "released":
        rows = tuple((n, m) for n, m in METHODS.items() if n != "fedpcl-released")
        for data in ("office", "digit5"):
            yield from (Cell(data, s, "s", n, m, model=Projection(head="released")) for s in SHIFTS for n, m in rows)
    elif table == "tuning":
        for data in ("office", "digit5"):
            yield from (Cell(data, s, "s", n, m) for s in SHIFTS for n, m in _tuned())
    elif table == "fairness":
        for clients in (5, 10, 20, 40, 80):
            yield from (Cell("digit5", f"fair{clients}", "m", n, METHODS[n]) for n in ("fedavg", "fedpcl"))
    elif table == "heterogeneity":
        for alpha in (0.5, 1, 2, 5, 10):
            yield from (Cell("digit5", f"alpha{alpha}", "m", n, METHODS[n]) for n in ("fedrep", "local", "fedpcl"))
    elif table == "ablations":
        yield from (Cell("digit5", "both", "m", n, m) for n, m in LOSSES.items())
        yield from (Cell("digit5", s, "m", n, m) for s in SHIFTS for n, m in PROTOTYPES.items())
        yield from (Cell("digit5", "both", k, "fedpcl", METHODS["fedpcl"]) for k in ("2", "s"))
    elif table == "noise":
        yield from _noise()


def _tuned() -> Iterator[tuple[str, Method]]:
    for name, method in METHODS.items():
        for rate in RATES:
            tuned: Any = replace(method, opt=replace(OPT, lr=rate))  # type: ignore[call-arg]
            yield f"{name}, lr {rate:g}", tuned


def _noise() -> Iterator[Cell]:
    """Table 15: label shift on Caltech, with noise on what is sent or on the images (training and test)."""
    for name in ("fedrep", "fedpcl"):
        yield Cell("office", "label", "m", name, METHODS[name], images=CALTECH)
    for p in (0.1, 0.2):
        for kind in ("laplace", "gaussian"):
            row, noise = f"prototypes, {kind}, s 0.05, p {p}", Noise(kind, 0.05, p, groups=("prototypes",))
            yield Cell("office", "label", "m", row, METHODS["fedpcl"], (noise,), CALTECH)
    for p in (0.1, 0.2):
        for kind in ("laplace", "gaussian"):
            row, images = f"images, {kind}, s 0.2, p {p}", Noisy(data=CALTECH, kind=kind, s=0.2, p=p)
            yield Cell("office", "label", "m", row, METHODS["fedpcl"], images=images)


def measured(cell: Cell, seed: int, rounds: int) -> dict[str, Any]:
    """The record of one cell and seed."""
    began = time.perf_counter()
    fit = ac.train(cell.experiment(seed, rounds, eval_every=rounds))
    row = ac.evaluate(fit).where(selection="last").rows[0]
    return {
        **_named(cell, seed, rounds),
        "accuracy": row["accuracy"],
        "per_client": row["per_client"],
        "fairness": fairness(row["per_client"]),
        "parameters_sent": parameters_sent(fit.state.cost["message"]),
        "parameters_trained": parameters_trained(fit.worker.task),
        "train_sizes": [len(r) for r in fit.world.train],
        "seconds": round(time.perf_counter() - began, 1),
    }


def validated(cell: Cell, seed: int, rounds: int) -> dict[str, Any]:
    """The record of one cell of `tuning`: accuracy on validation data along the way. Test data is not looked at."""
    fit = ac.train(cell.experiment(seed, rounds, eval_every=5))
    curve = {str(h["round"]): round(h["val_accuracy"], 4) for h in fit.history}
    return {**_named(cell, seed, rounds), "validation": curve}


def _named(cell: Cell, seed: int, rounds: int) -> dict[str, Any]:
    where = {"data": cell.data, "setting": cell.setting, "backbones": cell.backbones, "row": cell.row}
    return {**where, "seed": seed, "rounds": rounds, "method": repr(cell.method), "model": repr(cell.model)}


def similarity(seed: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Figure 3: for each backbone and client, how near its own prototypes are to the fused ones."""
    for data in ("office", "digit5"):
        single = {b: _prototypes(data, (b,), seed, rounds) for b in BACKBONES}
        fused = _prototypes(data, BACKBONES, seed, rounds)
        heat = {b: prototype_similarity(p["prototypes"], fused["prototypes"], p["counts"]) for b, p in single.items()}
        domains = list((DIGITS if data == "digit5" else OFFICE).load().domains)
        yield {"data": data, "seed": seed, "rounds": rounds, "clients": domains, "similarity": heat}


def _prototypes(data: str, backbones: tuple[str, ...], seed: int, rounds: int) -> tree.Tree:
    """The local prototypes of every client, trained with these backbones."""
    e = Cell(data, "feature", "m", "fedpcl", METHODS["fedpcl"]).experiment(seed, rounds, rounds)
    e = replace(e, data=replace(e.data, encoder=Frozen(backbones, size=SIDES[data], width=512)))
    mine: tree.Tree = ac.train(e).state.mine
    return mine


class Job(NamedTuple):
    """Cells of one world, and what is measured on each."""

    cells: tuple[Cell, ...]
    seed: int
    rounds: int
    tuning: bool

    def records(self) -> list[dict[str, Any]]:
        """Measure every cell."""
        measure = validated if self.tuning else measured
        return [measure(c, self.seed, self.rounds) for c in self.cells]


def jobs(table: str, wanted: Iterable[tuple[Cell, int]], rounds: int) -> list[Job]:
    """The wanted cells by world: seed after seed, those that take longest first."""
    pairs = sorted(wanted, key=lambda p: (p[1], -len(KINDS[p[0].backbones]), p[0][:3], repr(p[0].images)))
    groups = groupby(pairs, key=lambda p: (p[0][:3], repr(p[0].images), p[1]))
    return [Job(tuple(c for c, _ in g), seed, rounds, table == "tuning") for (*_, seed), g in groups]


def run(table: str, only: dict[str, list[str]], seeds: list[int], rounds: int, processes: int, out: Path) -> None:
    """Every cell of a table that the file does not have yet; `only` names data sets, settings and rows, or none."""
    began = time.perf_counter()
    if table == "similarity":
        records = [r for seed in seeds for r in similarity(seed, rounds)]
        return save(out, records, {"seconds": round(time.perf_counter() - began)})
    order = [c[:4] for c in cells(table)]
    records = json.loads(out.read_text())["records"] if out.exists() else []
    if any(r["rounds"] != rounds for r in records):
        raise SystemExit(f"{out} holds results of {_rounds(records)} rounds, not {rounds}: choose another --out")
    have = {_place(r) for r in records}
    wanted = [
        (c, seed)
        for c in cells(table)
        for seed in seeds
        if all(not names or getattr(c, k) in names for k, names in only.items()) and (*c[:4], seed, rounds) not in have
    ]
    for found in _each(jobs(table, wanted, rounds), processes):
        records = sorted(records + found, key=lambda r: (order.index(_place(r)[:4]), r["seed"]))
        took = {"seconds": round(time.perf_counter() - began), "cells": len(records) - len(have)}
        save(out, records, took | {"processes": processes})
        print(f"{took['seconds']:5} s: {took['cells']} of {len(wanted)}", *_place(found[-1])[:3], flush=True)


def _place(record: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(record[k] for k in ("data", "setting", "backbones", "row", "seed", "rounds"))


def _each(jobs: list[Job], processes: int) -> Iterator[list[dict[str, Any]]]:
    """The records of each job, as they come."""
    if processes == 1:
        torch.set_num_threads(1)
        yield from map(Job.records, jobs)
        return
    with multiprocessing.get_context("spawn").Pool(processes, torch.set_num_threads, (1,)) as pool:
        yield from pool.imap_unordered(Job.records, jobs)


def save(path: Path, records: list[dict[str, Any]], took: dict[str, Any]) -> None:
    """All records, with where and how they were made, and how long the last command took for how many of them."""
    env = store.environment(torch.device("cpu"))
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    body = {"schema": SCHEMA, "command": ["benchmarks/fedpcl.py", *sys.argv[1:]], "took": took, "environment": env}
    lines = ",\n".join("  " + json.dumps(r) for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1)[:-2] + ',\n "records": [\n' + lines + "\n ]\n}\n")


Records = list[dict[str, Any]]


def show(path: Path) -> str:
    """A results file as Markdown: accuracy in %, mean and deviation over seeds, the published mean in brackets.

    Seeds that have not run for every cell are left out.
    """
    records: Records = json.loads(path.read_text())["records"]
    runs = {r["seed"]: sum(s["seed"] == r["seed"] for s in records) for r in records}
    records = [r for r in records if runs[r["seed"]] == max(runs.values())]
    if "similarity" in records[0]:
        return _heat(records)
    if "validation" in records[0]:
        return _tuning(records)
    if records[0]["setting"].startswith("fair"):
        return _fairness(records)
    sets = dict.fromkeys(r["data"] for r in records)
    pages = [_accuracy(d, [r for r in records if r["data"] == d]) for d in sets]
    return "\n".join(pages + (_ranking(records) if len(sets) > 1 else []))


def _accuracy(data: str, records: Records) -> str:
    """Rows by setting and backbones."""
    published = _published()
    columns = list(dict.fromkeys((r["setting"], r["backbones"]) for r in records))
    several = len({k for _, k in columns}) > 1
    head = [f"{s}, {k}" if several else s for s, k in columns]
    lines = [f"\n{data}, seeds {_seeds(records)}, {_rounds(records)} rounds\n", *_header("row", *head, "sent")]
    for row in dict.fromkeys(r["row"] for r in records):
        mine = [r for r in records if r["row"] == row]
        values = []
        for setting, kind in columns:
            found = [100 * r["accuracy"] for r in mine if (r["setting"], r["backbones"]) == (setting, kind)]
            values.append(_figure(found, published.get((row, f"{data}/{setting}/{kind}"))))
        lines.append(f"| {row} | {' | '.join(values)} | {_sent(mine)} |")
    return "\n".join(lines)


def _ranking(records: Records) -> list[str]:
    """Means over all settings and data sets, best first, for each number of backbones."""
    lines = [""]
    for kind in dict.fromkeys(r["backbones"] for r in records):
        mean = {}
        for row in dict.fromkeys(r["row"] for r in records):
            found = [100 * r["accuracy"] for r in records if (r["row"], r["backbones"]) == (row, kind)]
            mean[row] = statistics.fmean(found)
        ranked = sorted(mean, key=lambda r: -mean[r])
        lines.append(f"- mean over settings, {kind}: " + ", ".join(f"{r} {mean[r]:.1f}" for r in ranked))
    return lines


def _fairness(records: Records) -> str:
    measures = ("mean", "worst10", "worst20", "worst40", "best10", "std")
    published = _published()
    lines = [f"\nDigit-5, seeds {_seeds(records)}, {_rounds(records)} rounds\n", *_header("clients", "row", *measures)]
    for setting, row in dict.fromkeys((r["setting"], r["row"]) for r in records):
        found = [r["fairness"] for r in records if (r["setting"], r["row"]) == (setting, row)]
        values = [_figure([100 * f[m] for f in found], published.get((row, setting, m))) for m in measures]
        lines.append(f"| {setting[4:]} | {row} | {' | '.join(values)} |")
    return "\n".join(lines)


def _tuning(records: Records) -> str:
    """Validation accuracy by row and learning rate, along the rounds: the mean over all settings."""
    rounds = list(records[0]["validation"])
    lines = [f"\nValidation accuracy after so many rounds, seeds {_seeds(records)}\n", *_header("row", *rounds)]
    for row in dict.fromkeys(r["row"] for r in records):
        found = [r["validation"] for r in records if r["row"] == row]
        mean = [100 * statistics.fmean(f[t] for f in found) for t in rounds]
        lines.append(f"| {row} | " + " | ".join(f"{v:.1f}" for v in mean) + " |")
    return "\n".join(lines)


def _heat(records: Records) -> str:
    lines = []
    for data in dict.fromkeys(r["data"] for r in records):
        found = [r for r in records if r["data"] == data]
        lines += [f"\n{data}, seeds {_seeds(found)}\n", *_header("backbone", *found[0]["clients"])]
        for b in BACKBONES:
            mean = [statistics.fmean(v) for v in zip(*(r["similarity"][b] for r in found), strict=True)]
            lines.append(f"| {b} | " + " | ".join(f"{v:.2f}" for v in mean) + " |")
    return "\n".join(lines)


def _header(*columns: str) -> list[str]:
    return ["| " + " | ".join(columns) + " |", "|---" * len(columns) + "|"]


def _figure(values: list[float], published: list[float] | None) -> str:
    if not values:
        return ""
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({f'{published[0]:.1f}' if published else '-'})"


def _seeds(records: Records) -> str:
    return ", ".join(str(s) for s in sorted({r["seed"] for r in records}))


def _rounds(records: Records) -> str:
    return ", ".join(str(s) for s in sorted({r["rounds"] for r in records}))


def _sent(records: Records) -> str:
    return " / ".join(f"{n:,}" for n in sorted({r["parameters_sent"] for r in records}))


def _published() -> dict[tuple[str, ...], list[float]]:
    out: dict[tuple[str, ...], list[float]] = {}
    for name in ("fedpcl_accuracy", "fedpcl_ablations"):
        for r in json.loads((PUBLISHED / f"{name}.json").read_text())["rows"]:
            out |= {(r["row"], cell): value for cell, value in r["published"].items()}
    for r in json.loads((PUBLISHED / "fedpcl_fairness.json").read_text())["rows"]:
        out |= {(r["row"], f"fair{r['clients']}", m): value for m, value in r["published"].items()}
    return out


TABLES = ("accuracy", "released", "fairness", "heterogeneity", "ablations", "noise", "similarity", "tuning")


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=TABLES, default="accuracy")
    for name, example in (("data", "office"), ("setting", "both"), ("row", "fedpcl")):
        parser.add_argument(f"--{name}", nargs="+", default=[], help=f"only these, such as {example}")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--processes", type=int, default=2)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print a results file and do nothing else")
    args = parser.parse_args()
    if args.show:
        print(show(args.show))
    elif args.out is None:
        parser.error("--out FILE says where the results go")
    else:
        only = {"data": args.data, "setting": args.setting, "row": args.row}
        run(args.table, only, args.seeds, args.rounds, args.processes, args.out)


if __name__ == "__main__":
    main()
