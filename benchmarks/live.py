"""Can a guarded adapter do harm? Every adapter on every stream: not adapted, adapted, and adapted with the guard.

A cell is one adapter, stream and seed; its accuracy is a mean over clients. The guard's thresholds were frozen before,
on other seeds (20 to 22) than those measured here.

    python benchmarks/live.py [--adapters bn,tent] [--streams original] [--seeds 0,1,2] [--rounds 10] [--cifar10]
    python benchmarks/live.py --merge part-1.json part-2.json      what runs side by side wrote, in one file

Cells that are in the file already are not run again.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from dataclasses import fields, replace
from pathlib import Path
from typing import Any, NamedTuple

import torch
from harness import command, commit, environment, integers, kept, parser_of, trained, write
from torch import Tensor

import acclimate as ac
from acclimate.core import Adapter
from acclimate.eval.grid import diverged
from acclimate.eval.rows import summary_of
from acclimate.experiment import catalogue
from acclimate.ops import layout
from acclimate.ops.devices import device_of
from acclimate.running.evaluate import streams_of
from acclimate.running.progress import Lines, beating

Cell = dict[str, Any]
GUARD = ac.adapters.Guarded()
STREAMS = "original,corrupted,out-of-client,mixture,continual,label-sorted,correlated,repeated"


class Case(NamedTuple):
    """An adapter with the method and the personaliser that make what it needs."""

    adapter: str
    method: str = "fedavg"
    personal: str = "none"
    norm: str = "batch"

    @property
    def label(self) -> str:
        """`fedavg+finetune/tent`"""
        return self.method + (f"+{self.personal}" if self.personal != "none" else "") + f"/{self.adapter}"


CASES = (
    Case("bn"),
    Case("tent"),
    Case("t3a"),
    Case("em"),
    Case("eata", personal="fisher"),
    Case("bbse", personal="confusion"),
    Case("knn", personal="memory"),
    Case("the", "fedthe"),
    Case("tsa", "fedthe"),
    Case("bn", personal="finetune"),
    Case("tent", personal="finetune"),
    Case("t3a", personal="finetune"),
    Case("delta"),
    Case("roid"),
    Case("unmix"),
    Case("deyo"),
    Case("neo"),
    Case("neo-continual"),
    Case("neo-client", personal="means"),
    Case("santa", personal="means"),
    Case("surgical"),
    Case("tent-all"),
    Case("odpfl", "odpfl"),
    Case("atp", "fedatp"),
    Case("atp-online", "fedatp"),
    Case("icon", "fedicon"),
    Case("shot"),
    Case("ttt", "fedttt"),
    Case("ttt-episodic", "fedttt"),
    Case("theplus", "fedthe"),
    Case("fedtta", "fedtta"),
    Case("fedtta-plus", "fedtta"),
    Case("memo"),
    Case("mbsl"),
    Case("bn-running"),
    Case("lame"),
    Case("rotta"),
    Case("sar"),
    Case("note", norm="iabn"),
    Case("cotta"),
)
"""Every adapter of the catalogue, slow ones last, but those whose clients exchange (with a guard they run alone) and
those that weigh two LoRAs, for which a small network has no use."""
CIFAR10 = ("bn", "tent", "t3a", "em", "eata", "bbse", "knn", "the", "surgical", "tent-all")


class Lab:
    """Trainings and streams by seed, each made once; trainings are kept in a folder, where one is given."""

    def __init__(self, base: ac.Experiment, streams: Sequence[str], folder: Path | None = None) -> None:
        self.base, self.names, self._folder = base, streams, folder
        self._fits: dict[tuple[str, str, int], ac.Fit] = {}
        self._streams: dict[int, Any] = {}
        self._models: dict[tuple[str, str, str, int], Any] = {}

    def fit(self, case: Case, seed: int) -> ac.Fit:
        """The training of one method, of a model with one normalisation, with one seed."""
        key = (case.method, case.norm, seed)
        if key not in self._fits:
            began = time.perf_counter()
            own = replace(self.base, model=replace(self.base.model, norm=case.norm), seed=seed)
            self._fits[key] = trained(replace(own, method=catalogue.METHODS[case.method]), self._folder)
            print(f"{case.method}, seed {seed}: trained in {time.perf_counter() - began:.0f} s", flush=True)
        return self._fits[key]

    def streams(self, case: Case, seed: int) -> Any:
        """The seed's streams by name: the world, and so what clients meet, does not depend on the method."""
        if seed not in self._streams:
            world = self.fit(case, seed).world
            self._streams[seed] = streams_of(world, [catalogue.STREAMS[name] for name in self.names])
        return self._streams[seed]

    def models(self, case: Case, seed: int) -> Any:
        """The deployed models, with what the guard knows of each client's validation examples."""
        key = (case.method, case.personal, case.norm, seed)
        if key not in self._models:
            fit = self.fit(case, seed)
            down = fit.worker.method.download(fit.worker.task, fit.state.server)
            models = fit.engine.deploy(down, fit.state.mine, catalogue.PERSONALS[case.personal])
            held = fit.world.shards(fit.world.val)
            self._models[key] = fit.engine.calibrated(models, held, GUARD)  # it is the same for every adapter inside
        return self._models[key]


def measured(lab: Lab, case: Case, stream: str, seed: int) -> Cell:
    """One cell: the accuracy of every client in percent, three ways, and how often adapted answers went out."""
    engine, models = lab.fit(case, seed).engine, lab.models(case, seed)
    shift, built = lab.streams(case, seed)[stream]
    inside = catalogue.ADAPTERS[case.adapter]

    def served(adapter: Adapter, trace: bool = False) -> dict[str, Tensor]:
        return engine.serve(models, built.shards, adapter, shift.protocol, trace)

    plain, free, guarded = served(ac.adapters.NoAdapt()), served(inside), served(replace(GUARD, adapter=inside), True)
    n, used = built.shards.n.cpu(), guarded["trace"]["used"][:, :: shift.protocol.batch].cpu()
    real = torch.arange(used.shape[1]) * shift.protocol.batch < n[:, None]
    cell: Cell = {"case": case.label, "stream": stream, "seed": seed, "samples": n[n > 0].tolist()}
    for name, metrics in (("plain", plain), ("adapted", free), ("guarded", guarded)):
        found = summary_of(metrics)
        cell[name] = round(100 * found.accuracy, 3)
        cell[f"{name}_clients"] = [round(100 * a, 2) for a in found.per_client]
    cell |= {"used": round(float(used[real].mean()), 4), "batches": int(real.sum())}
    return cell | {"diverged": len(diverged(free)), "commit": commit()}


def summary(cells: Iterable[Cell]) -> Cell:
    """What the issue asks of all cells together, in points of accuracy and shares of 1."""
    cells = list(cells)
    out: Cell = {"cells": len(cells), "clients": sum(len(c["samples"]) for c in cells)}
    for name in ("adapted", "guarded"):
        change = [c[name] - c["plain"] for c in cells]
        each = [a - b for c in cells for a, b in zip(c[f"{name}_clients"], c["plain_clients"], strict=True)]
        at = min(range(len(cells)), key=change.__getitem__)
        out[name] = {
            "cells_within_1": share(v >= -1 for v in change),
            "clients_within_1": share(v >= -1 for v in each),
            "worst_cell": round(change[at], 2),
            "worst_cell_is": " ".join(str(cells[at][k]) for k in ("case", "stream", "seed")),
            "worst_client": round(min(each), 2),
            "mean_change": round(sum(change) / len(change), 2),
        }
    gains = [c for c in cells if c["adapted"] - c["plain"] > 2]
    total = sum(c["adapted"] - c["plain"] for c in gains)
    left = sum(c["guarded"] - c["plain"] for c in gains)
    out["gaining_cells"], out["gain_kept"] = len(gains), round(left / total, 4) if gains else None
    out["batches_adapted"] = round(sum(c["used"] * c["batches"] for c in cells) / sum(c["batches"] for c in cells), 4)
    return out


def share(flags: Iterable[bool]) -> float:
    """The share that is true, in four digits."""
    flags = list(flags)
    return round(sum(flags) / len(flags), 4)


def table(cells: Iterable[Cell], by: Callable[[Cell], str]) -> str:
    """A Markdown table with a row per value of `by`, and one for all."""
    cells = list(cells)
    groups = {name: [c for c in cells if by(c) == name] for name in dict.fromkeys(map(by, cells))}
    head = "cells, free within 1, worst free, guarded within 1, worst guarded, clients within 1, gain kept, adapted"
    lines = []
    for name, some in {**groups, "all": cells}.items():
        s = summary(some)
        free, safe = s["adapted"], s["guarded"]
        gain = "" if s["gain_kept"] is None else f"{s['gain_kept']:.0%}"
        unguarded = [f"{free['cells_within_1']:.0%}", f"{free['worst_cell']:+.1f}"]
        guarded = [f"{safe['cells_within_1']:.1%}", f"{safe['worst_cell']:+.1f}", f"{safe['clients_within_1']:.1%}"]
        lines.append([name, str(s["cells"]), *unguarded, *guarded, gain, f"{s['batches_adapted']:.0%}"])
    return "\n".join(layout.table(["", *head.split(", ")], lines, words=1))


def study_of(base: ac.Experiment) -> Cell:
    """What all cells of a file share."""
    settings = {f.name: getattr(GUARD, f.name) for f in fields(GUARD) if f.name != "adapter"}
    return {"data": type(base.data).__name__, "clients": base.data.clients, "rounds": base.rounds, "guard": settings}


def read(path: Path, study: Cell) -> dict[str, Cell]:
    """The cells that a file has; an error where they are of another study."""
    return {name_of(c): c for c in kept(path, study, "cells")}


def name_of(cell: Cell) -> str:
    """`fedavg/tent original 0`"""
    return f"{cell['case']} {cell['stream']} {cell['seed']}"


def save(path: Path, study: Cell, environment: Cell, new: Sequence[Cell]) -> None:
    """Write what the file has by now together with new cells, in the order of the cases."""
    cells = read(path, study) | {name_of(c): c for c in new}
    labels, streams = [c.label for c in CASES], STREAMS.split(",")
    ordered = sorted(cells.values(), key=lambda c: (labels.index(c["case"]), streams.index(c["stream"]), c["seed"]))
    record = {"environment": environment, "study": study, "summary": summary(ordered), "cells": ordered}
    write(path, record)


def main() -> None:
    """Train, measure what is missing, write after each cell, print tables."""
    parser = parser_of(__doc__)
    parser.add_argument("--adapters", help="names, or labels such as fedavg+finetune/tent; default: all")
    parser.add_argument("--streams", default=STREAMS)
    parser.add_argument("--seeds", type=integers, default=[0, 1, 2])
    parser.add_argument("--rounds", type=int, help="default: 10, on CIFAR-10 30")
    parser.add_argument("--device", default="auto")
    parser.add_argument("--cifar10", action="store_true", help="20 clients of CIFAR-10 and ten adapters")
    parser.add_argument(
        "--merge", type=Path, nargs="+", help="files of cells that were measured elsewhere; runs nothing"
    )
    parser.add_argument("--out", type=Path, help="default: results/live/no-harm.json, or no-harm-cifar10.json")
    given = parser.parse_args()
    out = given.out or Path("results/live") / ("no-harm-cifar10.json" if given.cifar10 else "no-harm.json")
    base = ac.Experiment(backend=ac.backends.Vmap(), device=given.device, rounds=given.rounds or 10)
    if given.cifar10:
        world = {"data": ac.data.CIFAR10(clients=20), "model": catalogue.MODELS["cnn-bn"]}
        base = replace(base, **world, rounds=given.rounds or 30)
    wanted = given.adapters.split(",") if given.adapters else list(CIFAR10 if given.cifar10 else catalogue.ADAPTERS)
    cases = [c for c in CASES if c.label in wanted or c.adapter in wanted]
    cases = [c for c in cases if not given.cifar10 or c.personal != "finetune"]
    study, device, streams = study_of(base), device_of(given.device), given.streams.split(",")
    if given.merge:
        cases, parts = [], [json.loads(part.read_text())["environment"] for part in given.merge]
        merged = [c for part in given.merge for c in read(part, study).values()]
        commands = [c for p in parts for c in p.get("parts", [p["command"]])]  # a part may have been merged before
        save(out, study, {**parts[0], "command": command(), "parts": commands}, merged)
    lab, had = Lab(base, streams), read(out, study)
    todo = [(c, s, seed) for c in cases for seed in given.seeds for s in streams if f"{c.label} {s} {seed}" not in had]
    for number, (case, stream, seed) in enumerate(todo, 1):
        began = time.perf_counter()
        cell = measured(lab, case, stream, seed)
        save(out, study, environment(device), [cell])
        change = f"{cell['adapted'] - cell['plain']:+6.1f} guarded {cell['guarded'] - cell['plain']:+6.1f}"
        took = f"used {cell['used']:4.0%}, {time.perf_counter() - began:.1f} s"
        begin = f"{number}/{len(todo)} {name_of(cell):40s} plain {cell['plain']:5.1f}"
        print(f"{begin} adapted {change} {took}", flush=True)
    if had and not todo and not given.merge:
        save(
            out, study, environment(device), []
        )  # the record tells of the last command, also where nothing was missing
    cells = list(read(out, study).values())
    print(f"\n{table(cells, lambda c: c['case'])}\n\n{table(cells, lambda c: c['stream'])}\n")
    print(json.dumps(summary(cells), indent=1))


if __name__ == "__main__":
    with beating(Lines(sys.stderr)):  # a cell may take minutes
        main()
