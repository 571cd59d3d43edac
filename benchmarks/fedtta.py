"""FedTTA's Table 1 and Figure 5: half of the clients train, the other half join later with unlabelled data.

    export ACCLIMATE_DATA=...
    python benchmarks/fedtta.py --data cifar10 --clip 10 --rows fedavg tent fedtta fedtta++ --out cifar10.json
    python benchmarks/fedtta.py --data mnist --clip 10 --seeds 0 1 2 --out mnist.json
    python benchmarks/fedtta.py --data digits --rows fedavg fedtta fedtta-50 fedtta-50-patience-1 --out digits.json
    python benchmarks/fedtta.py --data cifar10 --rows hetero-0 hetero-0.8 hetero-tent --rounds 100 --out hetero.json
    python benchmarks/fedtta.py --show cifar10.json

Every `--every` rounds each row is scored twice: on the validation data of the training clients and on the newcomers,
both times adapted as the row says. A row is reported at the round of its best validation accuracy, as in the paper, and
at the last round. Rows of the same training share it, and on a GPU the seeds of a training run together. What --out
already holds is not run again; a training that is cut short goes on from its last checkpoint beside --out. --fraction,
--clients and --rounds make it small enough to try out. Where there is no git, ACCLIMATE_COMMIT names the commit.

Rows and Table 4's hyper-parameters are those of `acclimate reproduce` (`acclimate.recipes.fedtta`), but that here
gradients have no bound unless `--clip` gives one: the paper states none, and on CIFAR-10 FedTTA needs one.

`hetero-LAMBDA` is HeteroFedTTA with clients of three architectures, `hetero-tent` is FedMD with them; a tenth of the
data is public, and every client digests all of it in every round. With the paper's networks on CIFAR-10 that is 8 times
the arithmetic of FedTTA, and welcoming the newcomers for one look is more than a round; so looks are rarer. The paper
has this experiment on CIFAR-10 alone: on MNIST the three networks are its own for MNIST, and that with half and twice
the units.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import mean, stdev
from typing import Any, NamedTuple

import torch
from rows import trained_on

import acclimate as ac
from acclimate import store
from acclimate.backends import Vmap
from acclimate.backends.vmap.lanes import Lane
from acclimate.core import Adapter, Engine, Method, Protocol, Shards, Work, Worker
from acclimate.core import fit as loop
from acclimate.data import Pathological
from acclimate.recipes import fedtta as recipes
from acclimate.recipes import published
from acclimate.recipes.record import NONE, Line
from acclimate.running import run as api

SCHEMA = "acclimate.fedtta/1"
CHECKPOINT = 60.0
"""Seconds between two checkpoints, at least."""
EVERY, HETERO_EVERY = recipes.EVERY, 50
"""Rounds between two looks; in federations of several architectures newcomers learn for longer than a round takes."""
UNBOUNDED = replace(recipes.WORK, clip=None)
"""The recipes' local work without their bound, which here `--clip` gives."""


class Preset(NamedTuple):
    """One column of Table 1: the world and its rates; and how clients of several architectures live in it."""

    world: recipes.World
    rates: recipes.Rates
    work: Work = UNBOUNDED
    hetero: recipes.Several = recipes.Several()


COLUMNS = {
    "mnist": "MNIST",
    "cifar10": "CIFAR-10",
    "femnist": "FEMNIST",
    "cifar100": "CIFAR-100",
    "fashion-mnist": "Fashion-MNIST",
}
"""The data sets as Table 1 prints them."""
WIDTHS = ac.models.Mixed(tuple(ac.models.MLP((units, units)) for units in (100, 200, 400)))
"""The paper's network for MNIST with half, as many and twice as many units, as Table 3 has CIFAR-10's."""
DIGITS = Preset(
    recipes.World(
        ac.data.Digits(clients=20, new_clients=20, partition=recipes.HALF, split=recipes.SPLIT),
        ac.models.MLP(hidden=(64,)),
        rounds=40,
    ),
    recipes.SMOKE_RATES,
    work=Work(iterations=10, batch=32, clip=10.0),
    hetero=replace(
        recipes.SMOKE_SEVERAL,
        models=ac.models.Mixed(tuple(ac.models.MLP(hidden=(units,)) for units in (32, 64, 128))),
        work=Work(iterations=10, batch=16, clip=10.0),
    ),
)
"""Not the paper's: the embedded set, with rates chosen on its validation data."""
PRESETS = {
    **{name: Preset(recipes.WORLDS[printed], recipes.rates(printed)) for name, printed in COLUMNS.items()},
    "digits": DIGITS,
}
PRESETS["mnist"] = PRESETS["mnist"]._replace(hetero=recipes.Several(WIDTHS))


class Row(NamedTuple):
    """One line: what is trained, and how clients adapt it to their unlabelled data."""

    training: str
    """The first row that trains the same."""
    method: Method
    adapter: Adapter


TABLE = tuple(name.lower() for name in recipes.lines(recipes.SMOKE_RATES))


def rows(p: Preset) -> dict[str, Row]:
    """Table 1, then what shows why FedTTA++ stops early: many steps, slower steps, and patience; then Figure 5."""
    out: dict[str, Row] = {}
    for name, line in _lines(p).items():
        method = line.method.record
        training = next((row.training for row in out.values() if row.method == method), name)
        out[name] = Row(training, method, line.adapter.record)
    return out


def _lines(p: Preset) -> dict[str, Line]:
    """Every row as the recipes would have it."""
    table = {name.lower(): line for name, line in recipes.lines(p.rates, p.work).items()}
    figure5 = {f"hetero-{n.removeprefix('lambda ').lower()}": line for n, line in p.hetero.lines().items()}
    tta, slow = table["fedtta"], p.rates["FedTTA"]["eta_inner"] / 10
    steps: dict[str, dict[str, Any]] = {
        "set": {"norm": "set"},
        "5": {"steps": 5},
        "50": {"steps": 50},
        "50-slow": {"steps": 50, "lr": slow},
        "50-patience-1": {"steps": 50, "patience": 1},
        "50-patience-5": {"steps": 50, "patience": 5},
        "50-slow-patience-1": {"steps": 50, "lr": slow, "patience": 1},
        "50-slow-patience-5": {"steps": 50, "lr": slow, "patience": 5},
    }
    return {
        **table,
        "fedtta-base": replace(tta, adapter=NONE),
        **{f"fedtta-{name}": replace(tta, adapter=tta.adapter.but(**how)) for name, how in steps.items()},
        "fedtta-first": replace(tta, method=tta.method.but(order="first")),
        "fedmd": replace(figure5["hetero-tent"], adapter=NONE),
        **figure5,
    }


def trainings(p: Preset) -> dict[str, Method]:
    """Every method of a column."""
    return {row.training: row.method for row in rows(p).values()}


ROWS = tuple(rows(PRESETS["cifar10"]))


class Size(NamedTuple):
    """How much is run; None: as the preset has it."""

    rounds: int | None = None
    every: int | None = None
    fraction: float = 1.0
    clients: int | None = None
    """How many train, and as many again join."""


def experiment(p: Preset, training: str, seed: int, size: Size = Size()) -> ac.Experiment:
    """The training that rows share."""
    data, method, model = replace(p.world.data, fraction=size.fraction), trainings(p)[training], p.world.model
    if size.clients is not None:
        data = replace(data, clients=size.clients, new_clients=size.clients)
    mixed = method.several_models
    if mixed:
        data, model = p.hetero.data(data), p.hetero.models
    return ac.Experiment(
        data,
        model,
        method,
        streams=(ac.shifts.NewClients(),),
        rounds=size.rounds or p.world.rounds,
        seed=seed,
        eval_every=size.every or (HETERO_EVERY if mixed else EVERY),
    )


Scores = list[float]
"""`[round, validation accuracy, accuracy of new clients]`."""
Curves = dict[str, list[Scores]]
"""By row: its scores at every look."""


@dataclass
class Run:
    """One seed of a training on its way: who computes, what it is scored on, and how far it has come."""

    experiment: ac.Experiment
    asked: dict[str, Row]
    place: Path
    """Its checkpoint, but for the suffix."""
    world: Any
    worker: Worker
    engine: Engine
    val: Shards
    new: Shards
    """On the device from the start: a look sends nothing."""
    state: loop.State
    curves: Curves

    @classmethod
    def opened(cls, e: ac.Experiment, asked: dict[str, Row], out: Path) -> Run:
        """Ready to train, from its checkpoint beside `out` where one was made for the same rows."""
        world, worker, engine = api.build(e)
        place = out.with_name(f"{out.stem}.{e.training_hash()[:12]}")
        val, new = (world.shards(rows).to(engine.device) for rows in (world.val, world.new))
        state, curves = loop.start(worker, engine, world.clients), {row: [] for row in asked}
        run = cls(e, asked, place, world, worker, engine, val, new, state, curves)
        run._resume()
        return run

    def _resume(self) -> None:
        tensors, scores = self._files
        if tensors.exists() and scores.exists() and set(kept := store.read_json(scores)) == set(self.asked):
            self.state = store.unpack(tensors, self.state, self.experiment.training_hash())
            self.curves = {row: [c for c in curve if c[0] <= self.state.round] for row, curve in kept.items()}
            print(f"  seed {self.experiment.seed} goes on after round {self.state.round}", flush=True)

    @property
    def _files(self) -> tuple[Path, Path]:
        return self.place.with_name(self.place.name + ".safetensors"), self.place.with_name(self.place.name + ".json")

    def look(self) -> None:
        """Score every row now, each client's whole set being one batch; in it shorter clients wrap around, which the
        rows' adapters leave out of what they learn from."""
        down = self.worker.method.download(self.worker.task, self.state.server)
        parts = (
            (self.engine.deploy(down, self.state.mine, ac.personal.NoPersonal()), self.val),
            (self.engine.join(down, self.new.clients), self.new),
        )
        for name, row in self.asked.items():
            scores = [float(self.state.round)]
            for models, shards in parts:
                served = self.engine.serve(models, shards, row.adapter, Protocol(batch=shards.largest))
                scores.append(round(float(served["accuracy"][served["n"] > 0].double().mean()), 6))
            self.curves[name].append(scores)
        torch.cuda.empty_cache()  # a look at whole sets takes far more memory than rounds

    def checkpoint(self) -> None:
        """Write down how far it has come."""
        tensors, scores = self._files
        # scores first: looks that are newer than the tensors are dropped, but none that is missing comes back
        store.write(scores, json.dumps(self.curves) + "\n")
        store.write(tensors, store.pack(self.state, self.experiment.training_hash()))

    def close(self) -> None:
        """Leave nothing but the curves."""
        self.engine.close()
        for file in self._files:
            file.unlink(missing_ok=True)


def together(seeds: Sequence[ac.Experiment]) -> list[list[ac.Experiment]]:
    """Which seeds of a training run at once: on a GPU all, but where clients have several architectures."""
    e = seeds[0]
    if api.device_of(e.device).type == "cuda" and not e.method.several_models:
        return [list(seeds)]
    return [[e] for e in seeds]


def level(runs: Sequence[Run]) -> list[list[Run]]:
    """The runs that have come equally far, and so can be lanes of one engine."""
    return [[run for run in runs if run.state.round == r] for r in sorted({run.state.round for run in runs})]


def train(runs: Sequence[Run]) -> float:
    """Train to the last round, with looks and checkpoints: the median seconds of a round of all."""
    e, seconds = runs[0].experiment, [0.0]
    schedule = loop.Schedule(e.rounds, runs[0].world.clients, e.cohort_size, e.eval_every)
    began = saved = time.perf_counter()
    for states in _rounds(runs, schedule):
        seconds.append(time.perf_counter() - began)
        due = time.perf_counter() - saved >= CHECKPOINT and states[0].round < e.rounds
        for run, state in zip(runs, states, strict=True):
            run.state = state
            if schedule.evaluates(state.round - 1):
                run.look()
            if due:
                run.checkpoint()
        began = time.perf_counter()
        saved = began if due else saved
    return sorted(seconds)[len(seconds) // 2]


def _rounds(runs: Sequence[Run], schedule: loop.Schedule) -> Iterator[list[loop.State]]:
    """Every run's state after each round. Each run's own engine serves; several train as lanes of one more."""
    if len(runs) == 1:
        (run,) = runs
        for state in loop.rounds(run.worker, run.engine, schedule, run.val, run.state):
            yield [state]
        return
    lanes = [Lane(r.worker, r.world.shards(r.world.train)) for r in runs]
    engine, vals = Vmap().open_lanes(lanes, runs[0].engine.device), [r.world.shards(r.world.val) for r in runs]
    yield from loop.rounds_together([r.worker for r in runs], engine, schedule, vals, [r.state for r in runs])


def reported(curve: list[Scores]) -> dict[str, Any]:
    """The paper's number - new clients at the round of best validation accuracy, the first of equals - and the last."""
    best, last = max(curve, key=lambda c: c[1]), curve[-1]
    names = ("round", "validation", "new")
    return {"best": dict(zip(names, best, strict=True)), "last": dict(zip(names, last, strict=True)), "curve": curve}


def missing(body: dict[str, Any], e: ac.Experiment, asked: dict[str, Row]) -> dict[str, Row]:
    """The rows that no record holds as they are defined now."""
    same = [r for r in body["records"] if r["training_hash"] == e.training_hash()]
    held = {(r["row"], r["adapter"]) for record in same for r in record["rows"]}
    return {n: row for n, row in asked.items() if (n, repr(row.adapter)) not in held}


def add(body: dict[str, Any], out: Path, name: str, seeds: Sequence[ac.Experiment], asked: dict[str, Row]) -> None:
    """Train the seeds that lack a row, and write their rows."""
    training, lacking = next(iter(asked.values())).training, {e: missing(body, e, asked) for e in seeds}
    for e, rows in lacking.items():
        print(f"{name}, {training}, seed {e.seed}" + ("" if rows else ": there already"), flush=True)
    todo = [e for e, rows in lacking.items() if rows]
    for some in together(todo) if todo else []:
        for runs in level([Run.opened(e, lacking[e], out) for e in some]):
            began = time.perf_counter()
            per_round = train(runs)
            seconds = time.perf_counter() - began
            for run in runs:
                times = {"seconds": round(seconds, 1), "round_seconds_median": round(per_round, 4)}
                times["seeds_trained_together"] = len(runs)
                body["records"].append({**record_of(run, name, training), **times, "rows": tested(run)})
                store.write(out, json.dumps(body, indent=1) + "\n")
                run.close()
                _tell(body["records"][-1])


def record_of(run: Run, name: str, training: str) -> dict[str, Any]:
    """The record of a training without results."""
    return {"data": name, "training": training, **trained_on(run.experiment, run.world, run.engine.device)}


def tested(run: Run) -> list[dict[str, Any]]:
    """The rows of a training that is done."""
    return [{"row": n, "adapter": repr(row.adapter), **reported(run.curves[n])} for n, row in run.asked.items()]


def _tell(record: dict[str, Any]) -> None:
    print(f"  seed {record['seed']}, {record['seeds_trained_together']} together, {record['seconds']} s", flush=True)
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
    paper = printed()
    print("| data | row | seeds | validation | new clients | new clients, last round |\n|---|---|---|---|---|---|")
    for (data, row), got in found.items():
        cells = [
            _cell([r["best"]["validation"] for r in got], paper.get((row, data, "validation"))),
            _cell([r["best"]["new"] for r in got], paper.get((row, data, "test"))),
            _cell([r["last"]["new"] for r in got], None),
        ]
        print(f"| {data} | {row} | {len(got)} | {' | '.join(cells)} |")


def printed() -> dict[tuple[str, str, str], float]:
    """Table 1 by row, data set and split, `validation` or `test`."""
    names = {dataset: name for name, dataset in COLUMNS.items()}
    table = published.table("fedtta/table1")["rows"]
    return {(r["method"].lower(), names[r["dataset"]], r["split"]): r["mean"] for r in table}


def _cell(values: list[float], paper: float | None) -> str:
    spread = f" ± {100 * stdev(values):.1f}" if len(values) > 1 else ""
    return f"{100 * mean(values):.1f}{spread}" + (f" ({paper:.1f})" if paper else "")


def main() -> None:
    """Run what is asked for and not there yet, or show what is there."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--data", choices=list(PRESETS), default="cifar10")
    parser.add_argument("--rows", nargs="+", choices=ROWS, default=list(TABLE), metavar="ROW", help=", ".join(ROWS))
    parser.add_argument("--seeds", type=int, nargs="+", default=[0])
    parser.add_argument("--rounds", type=int, help="default: the paper's")
    parser.add_argument("--every", type=int, help=f"rounds between two looks ({EVERY}; hetero rows {HETERO_EVERY})")
    parser.add_argument("--fraction", type=float, default=1.0, help="share of the data that is used")
    parser.add_argument("--clients", type=int, help="how many train, and as many join (default: the paper's)")
    parser.add_argument("--shards", choices=("random", "in-order"), default="random", help="whose classes meet")
    parser.add_argument("--clip", type=float, help="bound of a gradient's norm (the released code has 10)")
    parser.add_argument("--out", type=Path)
    parser.add_argument("--show", type=Path, nargs="+", metavar="FILE", help="print these results as a table")
    args = parser.parse_args()
    if args.show:
        return show(args.show)
    if args.out is None:
        parser.error("--out must name the file of results")
    preset = PRESETS[args.data]
    if args.clip is not None:
        preset = preset._replace(work=replace(preset.work, clip=args.clip))
    if isinstance(dealt := preset.world.data.partition, Pathological):
        data = replace(preset.world.data, partition=replace(dealt, shards=args.shards))
        preset = preset._replace(world=replace(preset.world, data=data))
    body: dict[str, Any] = store.read_json(args.out) if args.out.exists() else {"schema": SCHEMA, "records": []}
    lines, size = rows(preset), Size(args.rounds, args.every, args.fraction, args.clients)
    for training in trainings(preset):
        if asked := {n: lines[n] for n in args.rows if lines[n].training == training}:
            seeds = [experiment(preset, training, seed, size) for seed in args.seeds]
            add(body, args.out, args.data, seeds, asked)


if __name__ == "__main__":
    main()
