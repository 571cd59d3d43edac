"""One federated round on the cores of one machine: Serial with one thread and with all, Vmap, and Processes.

Two workloads: the two-layer CNN on 3x32x32 images (FedAvg, batch 32), and the small CNN with batch norm of the default
experiment. Processes must end with the bits of Serial with one thread; with more threads, or vectorised, sums have
another order, and how far that leads apart is printed. The ways take turns within each repeat, so that a busy machine
is busy for all of them; times are medians, and the ratios are what to quote. `start` is what the worker processes cost
once, before the first round.

    python benchmarks/processes.py             # about two minutes on two cores
    python benchmarks/processes.py --quick
"""

from __future__ import annotations

import os
import statistics
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import environment, parser_of, write

from acclimate.backends import Processes, Serial, Vmap
from acclimate.core import SGD, Backend, Engine, Model, Shards, Task, Work, Worker, fit, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN


@dataclass(frozen=True)
class Workload:
    """A model and a federation; the sizes of the clients differ by up to `uneven` examples."""

    model: Model
    side: int
    clients: int
    examples: int
    epochs: int
    uneven: int = 0
    contrast: float = 128.0
    """How far a class's pattern goes, of 255 levels."""

    def federation(self, seed: int = 0) -> Shards:
        """Images that can be learnt: a class pattern, which no seed changes, in noise."""
        g, fixed = torch.Generator().manual_seed(seed), torch.Generator().manual_seed(9)
        sizes = [self.examples - (i * 7) % (self.uneven + 1) for i in range(self.clients)]
        y = torch.randint(0, 10, (sum(sizes),), generator=g)
        pattern = torch.rand(10, 3, self.side, self.side, generator=fixed) * self.contrast
        x = (torch.rand(len(y), 3, self.side, self.side, generator=g) * 127 + pattern[y]).to(torch.uint8)
        return Shards.of(x, y, list(torch.arange(len(y)).split(sizes)))

    def worker(self) -> Worker:
        """FedAvg on the model."""
        task = Task(self.model, (3, self.side, self.side), 10, (0.5,) * 3, (0.5,) * 3)
        return Worker(task, FedAvg(opt=SGD(lr=0.05), work=Work(epochs=self.epochs, batch=32)))


@dataclass(frozen=True)
class Way:
    """A backend, and the threads that the parent process gives torch."""

    backend: Backend
    threads: int


def ways(cores: int) -> dict[str, Way]:
    """What is compared; the first is what the ratios refer to."""
    return {
        "serial, 1 thread": Way(Serial(), 1),
        f"serial, {cores} threads": Way(Serial(), cores),
        f"vmap, {cores} threads": Way(Vmap(), cores),
        f"processes, {cores} workers": Way(Processes(workers=cores), 1),
        f"processes, {cores} workers, vmap": Way(Processes(workers=cores, inside="vmap"), 1),
    }


def timed(f: Callable[[], Any], threads: int) -> tuple[float, Any]:
    """Wall-clock seconds and the result."""
    torch.set_num_threads(threads)
    began = time.perf_counter()
    out = f()
    return time.perf_counter() - began, out


def measure(load: Workload, cores: int, repeats: int) -> dict[str, Any]:
    """Median seconds of a round in every way, interleaved, and how far the results lie apart."""
    data, worker = load.federation(), load.worker()
    server = worker.method.init_server(worker.task, load.clients, worker.key("init"))
    engines: dict[str, Engine] = {}
    first, times, results = {}, {}, {}

    def round_of(engine: Engine) -> tree.Tree:
        return fit.one_round(worker, engine, server, torch.arange(load.clients), 0)[0]["vars"]["params"]

    for name, way in ways(cores).items():
        engines[name] = way.backend.open(worker, data, torch.device("cpu"))
        first[name], results[name] = timed(lambda e=engines[name]: round_of(e), way.threads)
        times[name] = []
    for _ in range(repeats):
        for name, way in ways(cores).items():
            times[name].append(timed(lambda e=engines[name]: round_of(e), way.threads)[0])
    for engine in engines.values():
        engine.close()
    median = {name: statistics.median(t) for name, t in times.items()}
    base, wide = list(median.values())[:2]
    reference, ours = next(iter(results.values())), results[f"processes, {cores} workers"]
    walked = tree.norm(tree.sub(reference, server["vars"]["params"]))
    return {
        "seconds": median,
        "spread": {name: max(t) - min(t) for name, t in times.items()},
        "times_faster_than_serial_1_thread": {name: base / s for name, s in median.items()},
        "times_faster_than_serial_all_threads": {name: wide / s for name, s in median.items()},
        "start_seconds": {name: first[name] - s for name, s in median.items()},
        "bits_of_serial": all(torch.equal(r, s) for r, s in zip(*map(tree.leaves, (reference, ours)), strict=True)),
        "relative_distance": {n: float(tree.norm(tree.sub(r, reference)) / walked) for n, r in results.items()},
        "examples_times_parameters": int(data.n.sum()) * tree.numel(server["vars"]["params"]),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer examples")
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    shrink = 4 if args.quick else 1
    small = CNN(widths=(16, 32), norm="batch")
    loads = {
        "cnn, even clients": Workload(CNN(), 32, 8, 640 // shrink, 1),
        "cnn, uneven clients": Workload(CNN(), 32, 10, 640 // shrink, 1, uneven=480 // shrink),
        "default experiment": Workload(small, 16, 10, 108, 5 if not args.quick else 1),
    }
    report: dict[str, Any] = {
        "benchmark": "processes",
        "cores": args.cores,
        "load": os.getloadavg(),
        **environment(torch.device("cpu")),
        "runs": {},
    }
    print(f"{args.cores} cores, load {os.getloadavg()[0]:.2f} before the start, {args.repeats} repeats")
    for title, load in ((t, w) for t, w in loads.items() if args.only in t):
        run = report["runs"][title] = measure(load, args.cores, args.repeats)
        print(f"{title}: {load.clients} clients, {run['examples_times_parameters']:.1e} examples x parameters")
        for way, s in run["seconds"].items():
            one = run["times_faster_than_serial_1_thread"][way]
            many = run["times_faster_than_serial_all_threads"][way]
            start, far = run["start_seconds"][way], run["relative_distance"][way]
            print(
                f"  {way:28s} {s:7.3f} s/round  {one:5.2f} x one thread  {many:5.2f} x all threads  "
                f"start {start:5.2f} s  result {far:.1e} away"
            )
        if not run["bits_of_serial"]:
            raise SystemExit("Processes differs from Serial with one thread: times would mean nothing")
    if args.out:
        write(args.out, report)


if __name__ == "__main__":
    main()
