"""One round on the cores of one machine, by Flower's simulation and by `backend=auto`, in turn.

Both do the same federated averaging: same initial model, same examples, epochs, batch size and learning rate. Flower's
clients train as its examples do, with nn.Module and torch.optim, one core each and as many at a time as there are cores
(Ray); their examples lie in memory as normalised floats, so that no loader counts against them. Our round runs while
Flower's actors wait for the next, so that a busy machine is busy for both. The first round of each starts processes
and does not count. An epoch's last batch is a smaller one in Flower, and a full one here: ours trains on 7 % more.

    python benchmarks/cpu.py --peers [--rounds 6] [--out results/benchmarks/cpu.json]

BlazeFL is left out: it wants Python 3.12, and this library runs on 3.11, too.
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment
from processes import Workload

from acclimate import store
from acclimate.backends import Auto
from acclimate.core import Task, Worker, fit, tree
from acclimate.models import CNN

BATCH, RATE, EPOCHS, SIDE, CLASSES = 32, 0.05, 5, 32, 10
LOAD = Workload(CNN(), SIDE, clients=8, examples=300, epochs=EPOCHS, contrast=64.0)


# --- Flower's client -----------------------------------------------------------------------------------------------


@functools.cache
def examples(client: int) -> tuple[torch.Tensor, torch.Tensor]:
    """A client's examples as a model wants them."""
    data = LOAD.federation()
    rows = data.own(client)
    return (data.x[rows] / 255.0 - 0.5) / 0.5, data.y[rows]


def local_training(module: torch.nn.Module, client: int, seed: int) -> int:
    """What the examples of most libraries do; the number of examples."""
    x, y = examples(client)
    optimiser, g = torch.optim.SGD(module.parameters(), lr=RATE), torch.Generator().manual_seed(seed)
    for _ in range(EPOCHS):
        for rows in torch.randperm(len(y), generator=g).split(BATCH):
            optimiser.zero_grad()
            F.cross_entropy(module(x[rows])[1], y[rows]).backward()
            optimiser.step()
    return len(y)


def client_app() -> Any:
    """A Flower ClientApp that trains."""
    from flwr.app import ArrayRecord, Message, MetricRecord, RecordDict
    from flwr.clientapp import ClientApp

    app = ClientApp()

    @app.train()
    def train(message: Message, context: Any) -> Message:
        torch.set_num_threads(1)
        client = int(context.node_config["partition-id"])
        module = CNN().build((3, SIDE, SIDE), CLASSES)
        module.load_state_dict(message.content["arrays"].to_torch_state_dict())
        count = local_training(module, client, int(message.content["config"]["server-round"]) * 1000 + client)
        reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": MetricRecord({"num-examples": count})}
        return Message(content=RecordDict(reply), reply_to=message)

    return app


# --- both, in turn -------------------------------------------------------------------------------------------------


@dataclass
class Ours:
    """Our federation: one more round at a time."""

    worker: Worker = field(default_factory=LOAD.worker)
    round: int = 0
    times: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Auto().open(self.worker, LOAD.federation(), torch.device("cpu"))
        self.server = fit.start(self.worker, self.engine, LOAD.clients).server

    def train(self) -> None:
        """One round."""
        began = time.perf_counter()
        self.server, _, _ = fit.one_round(self.worker, self.engine, self.server, torch.arange(LOAD.clients), self.round)
        self.times.append(time.perf_counter() - began)
        self.round += 1


def accuracy(task: Task, params: dict[str, torch.Tensor]) -> float:
    """On examples that nobody trained with."""
    unseen = replace(LOAD, clients=1, examples=2000).federation(seed=1)
    with torch.no_grad():
        logits = task.apply({"params": params, "buffers": {}}, unseen.x).logits
    return float((logits.argmax(1) == unseen.y).float().mean())


def in_turn(rounds: int, cores: int) -> dict[str, Any]:
    """Flower's rounds and ours, one after the other; the first of each is not counted."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ours, flower, last = Ours(), [], {}
    first = tree.map(torch.clone, ours.server["vars"]["params"])
    app, clock = ServerApp(), [0.0]

    def between(round: int, arrays: ArrayRecord) -> None:
        """Flower calls this before its first round and after every one."""
        if round:
            flower.append(time.perf_counter() - clock[0])
            ours.train()
            print(f"round {round}: flower {flower[-1]:.2f} s, ours {ours.times[-1]:.2f} s", flush=True)
        last.update(arrays.to_torch_state_dict())
        clock[0] = time.perf_counter()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        FedAvg(fraction_evaluate=0.0, min_available_nodes=LOAD.clients).start(
            grid, ArrayRecord(first), num_rounds=rounds + 1, evaluate_fn=between
        )

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": cores}}
    run_simulation(app, client_app(), LOAD.clients, backend_config=resources)
    ours.engine.close()
    task, mine = ours.worker.task, ours.server["vars"]["params"]
    return {
        "seconds": {"flower": flower[1:], "ours": ours.times[1:]},
        "first_round_seconds": {"flower": flower[0], "ours": ours.times[0]},
        "accuracy": {"start": accuracy(task, first), "flower": accuracy(task, last), "ours": accuracy(task, mine)},
        "backend": repr(Auto().choose(ours.worker, LOAD.federation(), torch.device("cpu"))),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--peers", action="store_true", required=True)
    parser.add_argument("--rounds", type=int, default=6, help="that are counted")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p)
    torch.set_num_threads(args.cores)
    import flwr
    import ray

    before = os.getloadavg()
    found = in_turn(args.rounds, args.cores)
    each = [a / b for a, b in zip(*found["seconds"].values(), strict=True)]
    medians = {n: statistics.median(t) for n, t in found["seconds"].items()}
    report = {
        "benchmark": "cpu, peers",
        "cores": args.cores,
        "load_before": before,
        "load_after": os.getloadavg(),
        **environment(torch.device("cpu")),
        "flower": {"flwr": flwr.__version__, "ray": ray.__version__},
        "work": {"clients": LOAD.clients, "examples": LOAD.examples, "epochs": EPOCHS, "batch": BATCH, "lr": RATE},
        **found,
        "median_seconds": medians,
        "times_faster": medians["flower"] / medians["ours"],
        "times_faster_each_round": each,
    }
    print(
        f"flower {medians['flower']:.2f} s, ours {medians['ours']:.2f} s a round: {report['times_faster']:.2f} x "
        f"(rounds: {min(each):.2f} to {max(each):.2f}); accuracy {found['accuracy']}"
    )
    if args.out:
        store.write(args.out, json.dumps(report, indent=1) + "\n")


if __name__ == "__main__":
    main()
