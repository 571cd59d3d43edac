"""What Ray costs: one federated round on Ray actors over the same round on Serial.

Called `actors` and not `ray`, because a script's own folder comes first where Python looks for the module `ray`.

Three workloads. With hardly any work in them, a round on one actor minus a round on Serial is what handing out costs
per round, and per client; with FedAvg on the two-layer CNN it is what remains of that where there is work; FedTHE has
private state that goes to the actors and back. Serial runs with one thread, as an actor does; the ways take turns
within each repeat, so that a busy machine is busy for all of them; times are medians. `start` is what the actors cost
once, before the first round; the cluster, once for all, is told apart. All ways must end with the bits of Serial.

    python benchmarks/actors.py             # about two minutes on two cores
    python benchmarks/actors.py --quick
"""

from __future__ import annotations

import os
import statistics
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from harness import environment, parser_of, write

from acclimate.backends import Serial
from acclimate.backends.workers.ray import Ray
from acclimate.backends.workers.ray_cluster import Connection
from acclimate.core import Backend, Engine, Method, Model, Shards, Task, Work, Worker, fit, tree
from acclimate.methods import FedAvg, FedTHE
from acclimate.models import CNN, MLP


@dataclass(frozen=True)
class Workload:
    """A model, a method and a federation of clients of one size."""

    model: Model
    method: Method
    side: int
    clients: int
    examples: int

    def federation(self) -> Shards:
        """Random images: what they show does not matter for time."""
        g = torch.Generator().manual_seed(0)
        count = self.clients * self.examples
        x = torch.randint(0, 256, (count, 3, self.side, self.side), generator=g, dtype=torch.uint8)
        y = torch.randint(0, 10, (count,), generator=g)
        return Shards.of(x, y, list(torch.arange(count).split(self.examples)))

    def worker(self) -> Worker:
        """The client half."""
        return Worker(Task(self.model, (3, self.side, self.side), 10, (0.5,) * 3, (0.5,) * 3), self.method)


def workloads(quick: bool) -> dict[str, Workload]:
    """What is measured, by name."""
    shrink = 4 if quick else 1
    work = Work(epochs=1, batch=32)
    return {
        "next to no work": Workload(MLP(hidden=(8,)), FedAvg(work=Work(epochs=1, batch=8)), 4, 20, 8),
        "fedavg, two-layer cnn": Workload(CNN(), FedAvg(work=work), 32, 8, 640 // shrink),
        "fedthe, two-layer cnn": Workload(CNN(), FedTHE(work=work, head_work=work), 32, 8, 320 // shrink),
    }


def ways(actors: int) -> dict[str, Backend]:
    """What is compared; the first is what the others are measured against."""
    return {"serial": Serial(), "ray, 1 actor": Ray(actors=1), f"ray, {actors} actors": Ray(actors=actors)}


def measure(load: Workload, actors: int, repeats: int) -> dict[str, Any]:
    """Median seconds of a round in every way, and what Ray adds."""
    data, worker = load.federation(), load.worker()
    server = worker.method.init_server(worker.task, load.clients, worker.key("init"))

    def round_of(engine: Engine) -> tuple[float, tree.Tree]:
        engine.mine = start  # every repeat does the same work
        began = time.perf_counter()
        after = fit.one_round(worker, engine, server, torch.arange(load.clients), 0)[0]
        return time.perf_counter() - began, after

    engines = {name: way.open(worker, data, torch.device("cpu")) for name, way in ways(actors).items()}
    start = engines["serial"].mine
    first = {name: round_of(engine) for name, engine in engines.items()}
    times: dict[str, list[float]] = {name: [] for name in engines}
    for _ in range(repeats):
        for name, engine in engines.items():
            times[name].append(round_of(engine)[0])
    kept = [[*tree.leaves(first[name][1]), *tree.leaves(engine.mine)] for name, engine in engines.items()]
    same = all(all(map(torch.equal, kept[0], other)) for other in kept)
    for engine in engines.values():
        engine.close()
    median = {name: statistics.median(t) for name, t in times.items()}
    base = median["serial"]
    return {
        "seconds": median,
        "spread": {name: max(t) - min(t) for name, t in times.items()},
        "added_seconds": {name: s - base for name, s in median.items()},
        "times_serial": {name: s / base for name, s in median.items()},
        "start_seconds": {name: first[name][0] - s for name, s in median.items()},
        "clients": load.clients,
        "state_bytes": tree.nbytes(start),
        "model_bytes": tree.nbytes(worker.method.download(worker.task, server)),
        "bits_of_serial": same,
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--quick", action="store_true", help="fewer examples")
    parser.add_argument("--only", default="", help="workloads whose name has this in it")
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--actors", type=int, default=max(len(os.sched_getaffinity(0)), 2))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    torch.set_num_threads(1)
    report: dict[str, Any] = {
        "benchmark": "actors",
        "cores": len(os.sched_getaffinity(0)),
        "load": os.getloadavg(),
        **environment(torch.device("cpu")),
        "runs": {},
    }
    print(f"{report['cores']} cores, load {os.getloadavg()[0]:.2f} before the start, {args.repeats} repeats")
    began = time.perf_counter()
    cluster = Connection(cores=args.actors + 1)  # room for all ways at once
    report["cluster_start_seconds"] = time.perf_counter() - began
    print(f"the cluster started in {report['cluster_start_seconds']:.1f} s")
    for title, load in ((t, w) for t, w in workloads(args.quick).items() if args.only in t):
        run = report["runs"][title] = measure(load, args.actors, args.repeats)
        print(
            f"{title}: {load.clients} clients, {run['model_bytes']:,} bytes of model, "
            f"{run['state_bytes']:,} bytes of private state in all"
        )
        for way, s in run["seconds"].items():
            added, times, start = (run[k][way] for k in ("added_seconds", "times_serial", "start_seconds"))
            each = added / load.clients
            print(
                f"  {way:16s} {s:7.3f} s/round  {1e3 * added:+8.1f} ms ({1e3 * each:+6.2f} per client)  "
                f"{times:5.2f} x serial  start {start:5.2f} s"
            )
        if not run["bits_of_serial"]:
            raise SystemExit("Ray differs from Serial: times would mean nothing")
    cluster.end()
    if args.out:
        write(args.out, report)


if __name__ == "__main__":
    main()
