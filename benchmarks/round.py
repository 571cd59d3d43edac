"""One federated round done four ways: a plain PyTorch loop, Serial, Vmap, and the round captured as a CUDA graph.

The work is the same in all of them: 20 clients, the two-layer CNN on 3x32x32 images, batch 32, 5 epochs of 1,500
examples, FedAvg. The plain loop is written the way other frameworks do it (nn.Module, torch.optim, one client after the
other), with the data already on the device. Results are compared before times are; times are medians of repeats in one
process, and the ratio is what to quote.

    python benchmarks/round.py                 # the whole work, on the GPU where there is one
    python benchmarks/round.py --quick         # a small version for CPUs
"""

from __future__ import annotations

import argparse
import copy
import json
import statistics
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F

from acclimate.backends import Serial, Vmap
from acclimate.core import fit, rng, tree
from acclimate.core.backend import Backend
from acclimate.core.local import Work
from acclimate.core.optim import SGD
from acclimate.core.shards import Shards
from acclimate.core.task import Task
from acclimate.core.worker import Worker
from acclimate.methods import FedAvg
from acclimate.models import CNN
from acclimate.version import __version__

LR = 0.05


def federation(clients: int, examples: int) -> Shards:
    """Images that can be learnt (a class pattern in noise), dealt evenly: training on pure noise is chaotic."""
    g = torch.Generator().manual_seed(0)
    y = torch.randint(0, 10, (clients * examples,), generator=g)
    pattern = torch.rand(10, 3, 32, 32, generator=g) * 128
    x = (torch.rand(len(y), 3, 32, 32, generator=g) * 127 + pattern[y]).to(torch.uint8)
    return Shards.of(x, y, list(torch.arange(len(x)).view(clients, examples)))


def prepared(x: torch.Tensor) -> torch.Tensor:
    """Bytes, or numbers in 0..1, as the model's input."""
    x = x.float() / 255.0 if x.dtype == torch.uint8 else x
    return (x - 0.5) / 0.5


def plain_round(worker: Worker, data: Shards, start: tree.Tree, work: Work) -> Callable[[], tree.Tree]:
    """The round as a loop over modules and optimisers, following the very same batches."""
    net = worker.task._build().to(data.x.device, start["params"]["head.weight"].dtype)
    net.load_state_dict(start["params"])
    plans = []
    for c in range(data.clients):
        key = worker.key("train", 0, c, like=data.n)
        own = data.tree(data.own(c), data.n[c], data.n[c], data.n[c], ragged=False)
        plans.append(data.own(c)[work.plan(own, rng.fold(key, "plan"))[0]])

    def once() -> tree.Tree:
        models = []
        for plan in plans:
            local = copy.deepcopy(net)
            opt = torch.optim.SGD(local.parameters(), lr=LR)
            for rows in plan:
                opt.zero_grad()
                F.cross_entropy(local(prepared(data.x[rows]))[1], data.y[rows]).backward()
                opt.step()
            models.append({n: p.detach() for n, p in local.named_parameters()})
        return tree.map(lambda *ps: torch.stack(ps).mean(0), *models)

    return once


def engine_round(backend: Backend, worker: Worker, data: Shards, server: tree.Tree) -> Callable[[], tree.Tree]:
    """The round as acclimate runs it."""
    engine = backend.open(worker, data, data.x.device)
    cohort = torch.arange(data.clients)
    return lambda: fit.one_round(worker, engine, server, cohort, 0)[0]["vars"]["params"]


def seconds(f: Callable[[], Any], repeats: int, device: torch.device) -> list[float]:
    """Wall-clock seconds of each repeat of something that has run before (and was captured then)."""
    out = []
    for _ in range(repeats):
        _synchronise(device)
        began = time.perf_counter()
        f()
        _synchronise(device)
        out.append(time.perf_counter() - began)
    return out


def _synchronise(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize()


def apart(a: tree.Tree, b: tree.Tree, start: tree.Tree) -> float:
    """The distance between two results, relative to how far training went."""
    return float(tree.norm(tree.sub(a, b)) / tree.norm(tree.sub(a, start)))


def ways(device: torch.device) -> dict[str, Backend]:
    """The backends to compare on this device."""
    if device.type == "cuda":
        return {"serial": Serial(), "vmap": Vmap(capture=False), "captured": Vmap()}
    return {"serial": Serial(), "vmap": Vmap()}


Rounds = dict[str, Callable[[], tree.Tree]]


def setting(data: Shards, work: Work, dtype: torch.dtype) -> tuple[Rounds, tree.Tree]:
    """The round in every way, and the model they all start from."""
    clients, device = data.clients, data.x.device
    task = Task(CNN(), (3, 32, 32), 10, (0.5,) * 3, (0.5,) * 3)
    worker = Worker(task, FedAvg(opt=SGD(lr=LR), work=work))
    server = worker.method.init_server(task, clients, worker.key("init", like=data.n))
    server = tree.map(lambda v: v.to(dtype), server)
    start = server["vars"]["params"]
    rounds = {"plain": plain_round(worker, data, server["vars"], work)}
    return rounds | {name: engine_round(b, worker, data, server) for name, b in ways(device).items()}, start


def agreement(data: Shards) -> float:
    """The largest relative distance from the plain result after ten steps in double precision: the same work or not."""
    exact = Shards(data.x.double() / 255.0, data.y, data.rows, data.n)
    rounds, start = setting(exact, Work(iterations=10, batch=32), torch.float64)
    results = {name: f() for name, f in rounds.items()}
    return max(apart(results["plain"], r, start) for r in results.values())


def measure(data: Shards, epochs: int, repeats: int, tf32: bool) -> dict[str, Any]:
    """Times, ratios and distances of all ways, with one precision setting."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = tf32
    work = Work(epochs=epochs, batch=32)
    device, examples = data.x.device, data.rows.shape[1]
    rounds, start = setting(data, work, torch.float32)
    results = {name: f() for name, f in rounds.items()}
    again = {name: f() for name, f in rounds.items() if name in ("vmap", "captured")}
    times = {name: seconds(f, repeats, device) for name, f in rounds.items()}
    median = {name: statistics.median(t) for name, t in times.items()}
    return {
        "tf32": tf32,
        "steps_per_client": work.steps(examples),
        "seconds": {n: round(s, 4) for n, s in median.items()},
        "spread": {n: round(max(t) - min(t), 4) for n, t in times.items()},
        "times_faster_than_plain": {n: round(median["plain"] / s, 2) for n, s in median.items()},
        "relative_distance_from_plain": {n: apart(results["plain"], r, start) for n, r in results.items()},
        "vmap_repeats_bit_for_bit": same(results["vmap"], again["vmap"]),
        "captured_equals_vmap_bit_for_bit": same(results["captured"], results["vmap"])
        if "captured" in results
        else None,
    }


def same(a: tree.Tree, b: tree.Tree) -> bool:
    """Bit equality."""
    return all(torch.equal(a[k], b[k]) for k in a)


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--quick", action="store_true", help="4 clients x 160 examples x 1 epoch")
    parser.add_argument("--repeats", type=int, default=3)
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    clients, examples, epochs = (4, 160, 1) if args.quick else (20, 1500, 5)
    name = torch.cuda.get_device_name() if device.type == "cuda" else f"cpu, {torch.get_num_threads()} threads"
    report: dict[str, Any] = {
        "benchmark": "round",
        "work": {"clients": clients, "examples": examples, "epochs": epochs, "batch": 32, "model": "CNN, 3x32x32"},
        "device": name,
        "torch": torch.__version__,
        "acclimate": __version__,
        "runs": [],
    }
    print(f"{name}: {clients} clients x {examples} examples x {epochs} epochs, batch 32")
    data = federation(clients, examples).to(device)
    report["relative_distance_after_10_double_steps"] = gap = agreement(data)
    print(f"all ways agree within {gap:.1e} (relative) after ten steps in double precision")
    if gap > 1e-9:
        raise SystemExit("the ways disagree: times would mean nothing")
    for tf32 in (False, True) if device.type == "cuda" else (False,):
        run = measure(data, epochs, args.repeats, tf32)
        report["runs"].append(run)
        print(f"TF32 {'on' if tf32 else 'off'}: {run['steps_per_client']} steps per client")
        for way, s in run["seconds"].items():
            ratio, far = run["times_faster_than_plain"][way], run["relative_distance_from_plain"][way]
            print(f"  {way:9s} {s:9.4f} s/round   {ratio:6.2f} x plain   result {far:.1e} from plain")
        print(f"  vmap repeats itself bit for bit: {run['vmap_repeats_bit_for_bit']}")
        print(f"  captured equals vmap bit for bit: {run['captured_equals_vmap_bit_for_bit']}")
    if args.out:
        args.out.write_text(json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
