"""FedTTA's Table 1 and Figure 5: half of the clients train, the other half join later with unlabelled data.

    export ACCLIMATE_DATA=...
    python benchmarks/fedtta.py --data cifar10 --rows fedavg tent fedtta fedtta-prox fedtta++ --out cifar10.json
    python benchmarks/fedtta.py --data mnist --seeds 0 1 2 --out mnist.json
    python benchmarks/fedtta.py --data digits --rows fedavg fedtta fedtta-50 fedtta-50-patience-1 --out digits.json
    python benchmarks/fedtta.py --data cifar10 --rows hetero-0 hetero-0.8 hetero-tent --out hetero.json
    python benchmarks/fedtta.py --show cifar10.json

Every `--every` rounds each row is scored twice: on the validation data of the training clients and on the newcomers,
both times adapted as the row says. A row is reported at the round of its best validation accuracy, as in the paper, and
at the last round. Rows of the same training share it. What --out already holds is not run again; a training that is cut
short goes on from its last checkpoint beside --out. --fraction and --rounds make it small enough to try out. Where
there is no git, ACCLIMATE_COMMIT names the commit. Table 4's hyper-parameters are in `PRESETS`. `hetero-LAMBDA` is
HeteroFedTTA with clients of three architectures, `hetero-tent` is FedMD with them; a tenth of the data is public.
"""

from __future__ import annotations

import argparse
import json
import os
import time
from dataclasses import fields, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import acclimate as ac
from acclimate import api, store
from acclimate.adapters import NoAdapt, Tent
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.adapters.odpfl import ODPFL as Describe
from acclimate.core import fit as loop
from acclimate.core.adapter import Adapter
from acclimate.core.local import Work
from acclimate.core.method import Method
from acclimate.core.optim import SGD
from acclimate.core.stream import Protocol
from acclimate.methods.afl import AFL
from acclimate.methods.fedadg import FedADG
from acclimate.methods.fedsr import FedSR
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.odpfl import ODPFL
from acclimate.methods.pfl import PFL

SCHEMA = "acclimate.fedtta/1"
PUBLISHED = Path(__file__).parent / "published" / "fedtta_table1.json"
WORK = Work(iterations=20, batch=64)
HALF = ac.data.Pathological()
SPLIT = (0.85, 0.15, 0.0)
CHECKPOINT = 50
"""Rounds between two checkpoints."""
LENET, PERCEPTRON = ac.models.CNN(hidden=512), ac.models.MLP()
LAMBDAS = (0.0, 0.2, 0.4, 0.6, 0.8, 1.0)
"""Figure 5."""


class Preset(NamedTuple):
    """One column of Table 1: the world, the model, the rounds, and Table 4's rates."""

    data: ac.data.Dataset
    model: Any
    rounds: int
    fedavg: float
    fedprox: tuple[float, float]
    """Rate and mu."""
    scaffold: tuple[float, float]
    """Local and global rate."""
    afl: tuple[float, float]
    """Rates of the model and of the mixture."""
    gma: tuple[float, float, float]
    """Local and global rate, and tau."""
    fedadg: float
    fedsr: float
    odpfl: tuple[float, float, float]
    """Rates of local training, encoder and hypernetwork."""
    fedtta: tuple[float, float, float]
    """Inner, outer and adaptation rate."""
    prox: tuple[float, float, float, float]
    """The same for FedTTA-Prox, and mu."""
    patience: int
    work: Work = WORK
    hetero: tuple[float, float, float] = (0.5, 0.1, 0.005)
    """Inner, outer and adaptation rate of HeteroFedTTA (Sec. 4.6; the outer one is also FedMD's)."""
    mixed: ac.models.Mixed = ac.models.Mixed()
    """The architectures that its clients have (Table 3)."""
    public: float = 0.1
    """The share of the data that is its public set."""
    hetero_work: Work = replace(WORK, clip=10.0)
    """Clipped as in the released code: with the paper's rates alone, clients diverge."""
    join_epochs: int = 2
    """How often its newcomers pass over the public set."""


def _halves(data: ac.data.Dataset) -> ac.data.Dataset:
    """50 clients that train, 50 that join, at most two classes each."""
    return replace(data, clients=50, new_clients=50, partition=HALF, split=SPLIT)


PRESETS: dict[str, Preset] = {
    "mnist": Preset(
        data=_halves(ac.data.MNIST()),
        model=PERCEPTRON,
        rounds=200,
        fedavg=0.1,
        fedprox=(0.3, 0.001),
        scaffold=(0.1, 1.5),
        afl=(0.3, 0.001),
        gma=(0.3, 1.0, 0.1),
        fedadg=0.3,
        fedsr=0.3,
        odpfl=(0.3, 0.5, 0.5),
        fedtta=(0.5, 0.3, 0.01),
        prox=(0.5, 0.3, 0.001, 0.01),
        patience=1,
    ),
    "cifar10": Preset(
        data=_halves(ac.data.CIFAR10()),
        model=LENET,
        rounds=1000,
        fedavg=0.1,
        fedprox=(0.1, 0.001),
        scaffold=(0.1, 1.5),
        afl=(0.1, 0.3),
        gma=(0.1, 1.5, 0.1),
        fedadg=0.1,
        fedsr=0.05,
        odpfl=(0.05, 0.1, 0.5),
        fedtta=(0.5, 0.05, 0.005),
        prox=(0.3, 0.1, 0.003, 0.001),
        patience=1,
    ),
    "femnist": Preset(
        data=ac.data.FEMNIST(partition=ac.data.NaturalUsers(), clients=92, new_clients=93, split=SPLIT),
        model=LENET,
        rounds=200,
        fedavg=0.1,
        fedprox=(0.3, 0.001),
        scaffold=(0.1, 1.5),
        afl=(0.1, 0.5),
        gma=(0.3, 1.0, 0.1),
        fedadg=0.3,
        fedsr=0.3,
        odpfl=(0.01, 0.1, 0.5),
        fedtta=(0.3, 0.1, 0.003),
        prox=(0.3, 0.1, 0.003, 0.001),
        patience=5,
    ),
    "cifar100": Preset(
        data=replace(_halves(ac.data.CIFAR100()), partition=ac.data.BySuperclass()),
        model=LENET,
        rounds=1500,
        fedavg=0.1,
        fedprox=(0.1, 0.001),
        scaffold=(0.1, 1.5),
        afl=(0.1, 0.3),
        gma=(0.1, 1.5, 0.1),
        fedadg=0.1,
        fedsr=0.1,
        odpfl=(0.05, 0.1, 0.5),  # Table 4 has none: those of CIFAR-10
        fedtta=(0.5, 0.1, 0.001),
        prox=(0.5, 0.1, 0.001, 0.01),
        patience=5,
    ),
    "fashion-mnist": Preset(
        data=_halves(ac.data.FashionMNIST()),
        model=LENET,
        rounds=300,
        fedavg=0.3,
        fedprox=(0.3, 0.001),
        scaffold=(0.1, 1.5),
        afl=(0.3, 0.001),
        gma=(0.3, 1.5, 0.1),
        fedadg=0.3,
        fedsr=0.3,
        odpfl=(0.1, 0.5, 0.5),
        fedtta=(0.05, 0.1, 0.001),
        prox=(0.05, 0.1, 0.001, 0.001),
        patience=5,
    ),
    "digits": Preset(  # not the paper's: the embedded set, with rates chosen on its validation data
        data=ac.data.Digits(clients=20, new_clients=20, partition=HALF, split=SPLIT),
        model=ac.models.MLP(hidden=(64,)),
        rounds=20,
        fedavg=0.1,
        fedprox=(0.1, 0.001),
        scaffold=(0.1, 1.0),
        afl=(0.1, 0.1),
        gma=(0.1, 1.0, 0.1),
        fedadg=0.1,
        fedsr=0.1,
        odpfl=(0.1, 0.1, 0.1),
        fedtta=(0.5, 0.1, 0.01),
        prox=(0.5, 0.1, 0.01, 0.001),
        patience=1,
        work=Work(iterations=10, batch=32, clip=10.0),
        hetero=(0.1, 0.1, 0.01),
        mixed=ac.models.Mixed(tuple(ac.models.MLP(hidden=(h,)) for h in (32, 64, 128))),
        public=0.2,
        hetero_work=Work(iterations=10, batch=16, clip=10.0),
        join_epochs=20,
    ),
}


def trainings(p: Preset) -> dict[str, Method]:
    """Every method of a column. Clients count as one each, as in Algorithm 1; but for FEMNIST they are of one size."""
    work, shared = p.work, ac.methods.FedAvg(opt=SGD(lr=p.fedavg), work=p.work, weights="uniform")
    inner, outer, adapt = p.fedtta
    prox_inner, prox_outer, prox_adapt, mu = p.prox
    local, encoder, hyper = p.odpfl
    gma_lr, gma_global, tau = p.gma
    meta = HeteroFedTTA(
        0.8, p.hetero[0], SGD(lr=p.hetero[1]), SGD(lr=p.hetero[2]), work=p.hetero_work, join_epochs=p.join_epochs
    )
    hetero = {f"hetero-{lam:g}": replace(meta, lam=lam) for lam in LAMBDAS}
    return {
        "fedavg": shared,
        "fedprox": ac.methods.FedProx(opt=SGD(lr=p.fedprox[0]), mu=p.fedprox[1], work=work),
        "scaffold": ac.methods.SCAFFOLD(opt=SGD(lr=p.scaffold[0]), server_lr=p.scaffold[1], work=work),
        "afl": AFL(opt=SGD(lr=p.afl[0]), lambda_lr=p.afl[1], work=work),
        "fedgma": ac.methods.GMA(opt=SGD(lr=gma_lr), server_lr=gma_global, tau=tau, work=work),
        "fedadg": FedADG(opt=SGD(lr=p.fedadg), work=work),
        "fedsr": FedSR(opt=SGD(lr=p.fedsr), work=work),
        "pfl-sampled": PFL("sampled", opt=SGD(lr=p.fedavg), work=work),
        "pfl-ensemble": PFL("ensemble", opt=SGD(lr=p.fedavg), work=work),
        "odpfl": ODPFL(opt=SGD(lr=local), encoder_opt=SGD(lr=encoder), hyper_opt=SGD(lr=hyper), work=work),
        "fedtta": FedTTA(inner, SGD(lr=outer), SGD(lr=adapt), work=work),
        "fedtta-prox": FedTTA(prox_inner, SGD(lr=prox_outer), SGD(lr=prox_adapt), mu, work=work),
        "fedtta-first": FedTTA(inner, SGD(lr=outer), SGD(lr=adapt), order="first", work=work),
        **hetero,
        "fedmd": replace(meta, lam=0.0, inner_lr=0.0),
    }


class Row(NamedTuple):
    """One line: what is trained, and how clients adapt it to their unlabelled data."""

    training: str
    adapter: Adapter


TABLE = ("fedavg", "fedprox", "scaffold", "afl", "fedgma", "fedadg", "fedsr", "pfl-sampled", "pfl-ensemble")
TABLE += ("odpfl-hn", "tent", "fedtta", "fedtta-prox", "fedtta++")


def rows(p: Preset) -> dict[str, Row]:
    """Table 1, then what shows why FedTTA++ stops early: many steps, slower steps, and patience."""
    plain = {name: Row(name, NoAdapt()) for name in TABLE[:9]}
    # all parameters, one step on the whole set; Tent answers with what it had before its last step
    tent = Tent(params="all", opt=SGD(lr=p.fedavg), steps=2)
    hetero_tent = replace(tent, opt=SGD(lr=p.hetero[1]))
    slow = p.fedtta[0] / 10
    return plain | {
        "odpfl-hn": Row("odpfl", Describe()),
        "tent": Row("fedavg", tent),
        "fedtta": Row("fedtta", Adapt()),
        "fedtta-prox": Row("fedtta-prox", Adapt()),
        "fedtta++": Row("fedtta-prox", Adapt(steps=50, patience=p.patience)),
        "fedtta-base": Row("fedtta", NoAdapt()),
        "fedtta-set": Row("fedtta", Adapt(norm="set")),
        "fedtta-5": Row("fedtta", Adapt(steps=5)),
        "fedtta-50": Row("fedtta", Adapt(steps=50)),
        "fedtta-50-slow": Row("fedtta", Adapt(steps=50, lr=slow)),
        "fedtta-50-patience-1": Row("fedtta", Adapt(steps=50, patience=1)),
        "fedtta-50-patience-5": Row("fedtta", Adapt(steps=50, patience=5)),
        "fedtta-50-slow-patience-1": Row("fedtta", Adapt(steps=50, lr=slow, patience=1)),
        "fedtta-50-slow-patience-5": Row("fedtta", Adapt(steps=50, lr=slow, patience=5)),
        "fedtta-first": Row("fedtta-first", Adapt()),
        **{f"hetero-{lam:g}": Row(f"hetero-{lam:g}", Adapt(clip=10.0)) for lam in LAMBDAS},
        "hetero-tent": Row("fedmd", hetero_tent),
        "fedmd": Row("fedmd", NoAdapt()),
    }


ROWS = tuple(rows(PRESETS["cifar10"]))


def experiment(p: Preset, training: str, seed: int, rounds: int, every: int, fraction: float) -> ac.Experiment:
    """The training that rows share."""
    data, method, model = replace(p.data, fraction=fraction), trainings(p)[training], p.model
    if isinstance(method, HeteroFedTTA):
        data, model = with_public(data, p.public), p.mixed
    streams = (ac.shifts.NewClients(),)
    return ac.Experiment(data, model, method, streams=streams, rounds=rounds, seed=seed, eval_every=every)


def with_public(data: ac.data.Dataset, share: float) -> ac.data.Public:
    """The same federation after a share of the examples has become public."""
    own = {f.name: getattr(data, f.name) for f in fields(ac.data.Dataset)}
    return ac.data.Public(**own, data=data, share=share)


Curves = dict[str, list[list[float]]]
"""By row: `[round, validation accuracy, accuracy of new clients]` at every look."""


def look(world: Any, worker: Any, engine: Any, state: loop.State, asked: dict[str, Row]) -> dict[str, list[float]]:
    """Every row's two accuracies now, each client's whole set being one batch."""
    down = worker.method.download(worker.task, state.server)
    parts = [
        (engine.deploy(down, state.mine, ac.personal.NoPersonal()), world.shards(world.val)),
        (engine.join(down, len(world.new)), world.shards(world.new)),
    ]
    seen = {}
    for name, row in asked.items():
        scores = [float(state.round)]
        for models, shards in parts:
            served = engine.serve(models, shards, row.adapter, Protocol(batch=int(shards.n.max())))
            scores.append(round(float(served["accuracy"][served["n"] > 0].double().mean()), 6))
        seen[name] = scores
    return seen


def train(e: ac.Experiment, asked: dict[str, Row], out: Path) -> tuple[Any, Curves, float]:
    """Train with looks and checkpoints beside `out`: the world, the curves, and the median seconds of a round."""
    world, worker, engine = api.build(e)
    name = f"{out.stem}.{e.training_hash()[:12]}"
    place, kept = out.with_name(f"{name}.safetensors"), out.with_name(f"{name}.json")
    state, curves, seconds = loop.start(worker, engine, world.clients), {row: [] for row in asked}, [0.0]
    if place.exists() and kept.exists() and set(store.read_json(kept)) == set(asked):
        state = store.unpack(place, state, e.training_hash())
        curves = {row: [c for c in cs if c[0] <= state.round] for row, cs in store.read_json(kept).items()}
        print(f"  going on after round {state.round}", flush=True)
    schedule = loop.Schedule(e.rounds, world.clients, e.cohort_size, e.eval_every)
    began = time.perf_counter()
    for state in loop.rounds(worker, engine, schedule, world.shards(world.val), state):
        seconds.append(time.perf_counter() - began)
        if schedule.evaluates(state.round - 1):
            for row, scores in look(world, worker, engine, state, asked).items():
                curves[row].append(scores)
        if state.round % CHECKPOINT == 0 and state.round < e.rounds:
            store.write(place, store.pack(state, e.training_hash()))
            store.write(kept, json.dumps(curves) + "\n")
        began = time.perf_counter()
    engine.close()
    place.unlink(missing_ok=True)
    kept.unlink(missing_ok=True)
    return world, curves, sorted(seconds)[len(seconds) // 2]


def reported(curve: list[list[float]]) -> dict[str, Any]:
    """The paper's number - new clients at the round of best validation accuracy, the first of equals - and the last."""
    best, last = max(curve, key=lambda c: c[1]), curve[-1]
    names = ("round", "validation", "new")
    return {"best": dict(zip(names, best, strict=True)), "last": dict(zip(names, last, strict=True)), "curve": curve}


def add(body: dict[str, Any], out: Path, name: str, e: ac.Experiment, training: str, asked: dict[str, Row]) -> None:
    """Train for the rows that no record holds as they are defined now, and write them."""
    same = [r for r in body["records"] if r["training_hash"] == e.training_hash()]
    held = {(r["row"], r["adapter"]) for record in same for r in record["rows"]}
    todo = {n: row for n, row in asked.items() if (n, repr(row.adapter)) not in held}
    if not todo:
        print(f"{name}, {training}, seed {e.seed}: there already", flush=True)
        return
    print(f"{name}, {training}, seed {e.seed}", flush=True)
    began = time.perf_counter()
    world, curves, per_round = train(e, todo, out)
    card, env = world.card(), store.environment(api.device_of(e.device))
    env["commit"] = env["commit"] or os.environ.get("ACCLIMATE_COMMIT")
    record = {
        "data": name,
        "training": training,
        "seed": e.seed,
        "rounds": e.rounds,
        "fraction": e.data.fraction,
        "method": repr(e.method),
        "training_hash": e.training_hash(),
        "data_hashes": {"examples": card["hash"]} | {k: v["hash"] for k, v in card["splits"].items()},
        "environment": env,
        "seconds": round(time.perf_counter() - began, 1),
        "round_seconds_median": round(per_round, 4),
        "rows": [{"row": n, "adapter": repr(todo[n].adapter), **reported(curve)} for n, curve in curves.items()],
    }
    body["records"].append(record)
    store.write(out, json.dumps(body, indent=1) + "\n")
    for r in record["rows"]:
        best, last = r["best"], r["last"]
        print(
            f"  {r['row']:26s} validation {best['validation']:.1%}, new clients {best['new']:.1%} "
            f"(round {best['round']:.0f}); at the end {last['validation']:.1%}, {last['new']:.1%}",
            flush=True,
        )


def show(files: list[Path]) -> None:
    """The results beside the published numbers: new clients at the best validation round, then at the last."""
    found: dict[tuple[str, str], list[dict[str, Any]]] = {}
    for record in (r for f in files for r in store.read_json(f)["records"]):
        for row in record["rows"]:
            found.setdefault((record["data"], row["row"]), []).append(row)
    published = {r["row"]: r["published"] for r in json.loads(PUBLISHED.read_text())["rows"]}
    print("| data | row | seeds | validation | new clients | new clients, last round |\n|---|---|---|---|---|---|")
    for (data, row), got in found.items():
        paper = published.get(row, {}).get(data, {})
        cells = [
            _cell([r["best"]["validation"] for r in got], paper.get("validation")),
            _cell([r["best"]["new"] for r in got], paper.get("test")),
            _cell([r["last"]["new"] for r in got], None),
        ]
        print(f"| {data} | {row} | {len(got)} | {' | '.join(cells)} |")


def _cell(values: list[float], paper: list[float] | None) -> str:
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}" + (f" ({paper[0]:.1f})" if paper else "")


def main() -> None:
    """Run what is asked for and not there yet, or show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(PRESETS), default="cifar10")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(TABLE), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, help="default: the paper's")
    parser.add_argument("--every", type=int, default=10, help="rounds between two looks")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the data that is used")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print these results as a table")
    args = parser.parse_args()
    if args.show:
        return show(args.show)
    if args.out is None:
        parser.error("--out must name the file of results")
    preset = PRESETS[args.data]
    body: dict[str, Any] = store.read_json(args.out) if args.out.exists() else {"schema": SCHEMA, "records": []}
    lines, rounds = rows(preset), args.rounds or preset.rounds
    for training in trainings(preset):
        asked = {n: lines[n] for n in args.rows if lines[n].training == training}
        for seed in args.seeds if asked else []:
            e = experiment(preset, training, seed, rounds, args.every, args.fraction)
            add(body, args.out, args.data, e, training, asked)


if __name__ == "__main__":
    main()
