"""One round on the cores of one machine, by other libraries and by `backend=auto`, in turn.

All do the same federated averaging: same initial model, same examples, epochs, batch size and learning rate, and all
find their examples in memory as normalised floats (ours as bytes), so that no loader counts against them.
- Flower's simulation: clients train as its examples do, with nn.Module and torch.optim, one core each and as many at a
  time as there are cores (Ray).
- BlazeFL: its pool of processes, one core each. It wants Python 3.12, so it runs in one that `--blazefl` names, which
  has blazefl, numpy and torch.
- PFLlib: clients one after the other, on all cores. It is no package, so `--pfllib` names a folder with its repository.
Rounds of all take turns, so that a busy machine is busy for all; the first round of each starts processes and does not
count. An epoch's last batch is a smaller one in Flower and BlazeFL, none in PFLlib, and a full one here: ours trains
on 7 % more. `cpu_seconds` is what a round costs in computing, of clients alone for Flower, of everything for the rest;
unlike seconds it hardly depends on what else the machine does.

    python benchmarks/cpu.py --peers [--rounds 6] [--out results/benchmarks/cpu.json]
    python benchmarks/cpu.py --peers --blazefl ENVIRONMENT/bin/python --pfllib PFLlib
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

import torch
import torch.nn.functional as F
from harness import environment, parser_of, write
from processes import Workload

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
        before = time.process_time()
        count = local_training(module, client, int(message.content["config"]["server-round"]) * 1000 + client)
        metrics = MetricRecord({"num-examples": count, "cpu-seconds": time.process_time() - before})
        reply = {"arrays": ArrayRecord(module.state_dict()), "metrics": metrics}
        return Message(content=RecordDict(reply), reply_to=message)

    return app


# --- peers in processes of their own -------------------------------------------------------------------------------


class Refused(Exception):
    """A peer that is not there, in a sentence."""


@dataclass
class Elsewhere:
    """A peer that `peer_process.py` runs: one more round at a time."""

    name: str
    python: str
    first: dict[str, torch.Tensor]
    cores: int
    folder: Path | None = None
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.place = Path(tempfile.mkdtemp())
        every = [examples(client) for client in range(LOAD.clients)]
        data = {"x": torch.stack([x for x, _ in every]), "y": torch.stack([y for _, y in every]), "first": self.first}
        torch.save(data | {"epochs": EPOCHS, "batch": BATCH, "lr": RATE, "cores": self.cores}, self.place / "work.pt")
        here = Path(__file__).parent / "peer_process.py"
        command = [self.python, str(here), self.name, *(str(self.place / n) for n in ("work.pt", "last.pt"))]
        command += [] if self.folder is None else ["--folder", str(self.folder)]
        try:
            # another Python must not meet the packages of this one
            env = {k: v for k, v in os.environ.items() if k != "PYTHONPATH"}
            self.process = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=env)
        except OSError as error:
            raise Refused(f"{self.name}: {self.python} cannot be started ({error.strerror})") from None
        self.about = self._answer()
        if "refused" in self.about:
            self.close()
            raise Refused(self.about["refused"])

    def train(self) -> None:
        """One round."""
        assert self.process.stdin is not None
        print("round", file=self.process.stdin, flush=True)
        answer = self._answer()
        self.times.append(answer["seconds"])
        self.cpu.append(answer["cpu_seconds"])

    @property
    def params(self) -> dict[str, torch.Tensor]:
        """The model after the last round."""
        params: dict[str, torch.Tensor] = torch.load(self.place / "last.pt", weights_only=True)
        return params

    def close(self) -> None:
        """End the process."""
        assert self.process.stdin is not None
        self.process.stdin.close()
        self.process.wait()

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None
        line = self.process.stdout.readline()
        if not line:
            raise Refused(f"{self.name} ended by itself; what it printed stands above")
        answer: dict[str, Any] = json.loads(line)
        return answer


def others(args: argparse.Namespace, first: dict[str, torch.Tensor]) -> tuple[list[Elsewhere], dict[str, str]]:
    """The peers that are there, and why the rest is not."""
    found, refused = [], {}
    for name, python, folder in (("blazefl", args.blazefl, None), ("pfllib", sys.executable, args.pfllib)):
        try:
            if name == "blazefl" and python is None:
                raise Refused("BlazeFL is left out: name a Python 3.12 that has it with --blazefl")
            if name == "pfllib" and (folder is None or not (folder / "system/flcore/clients/clientavg.py").is_file()):
                raise Refused(f"PFLlib is left out: --pfllib={folder} is no folder with its repository")
            found.append(Elsewhere(name, python, first, args.cores, folder))
        except Refused as reason:
            refused[name] = str(reason)
            print(reason)
    return found, refused


# --- all, in turn --------------------------------------------------------------------------------------------------


@dataclass
class Ours:
    """Our federation: one more round at a time."""

    worker: Worker = field(default_factory=LOAD.worker)
    round: int = 0
    times: list[float] = field(default_factory=list)
    cpu: list[float] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.engine = Auto().open(self.worker, LOAD.federation(), torch.device("cpu"))
        self.server = fit.start(self.worker, self.engine, LOAD.clients).server

    def train(self) -> None:
        """One round."""
        began, before = time.perf_counter(), self._used()
        self.server, _, _ = fit.one_round(self.worker, self.engine, self.server, torch.arange(LOAD.clients), self.round)
        self.times.append(time.perf_counter() - began)
        self.cpu.append(self._used() - before)
        self.round += 1

    def _used(self) -> float:
        """CPU seconds of this process and of its workers; these have none before the first round."""
        return time.process_time() + sum(map(cpu_seconds, getattr(self.engine, "pids", ())))


def cpu_seconds(pid: int) -> float:
    """What a process of this machine has used so far."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def accuracy(task: Task, params: dict[str, torch.Tensor]) -> float:
    """On examples that nobody trained with."""
    unseen = replace(LOAD, clients=1, examples=2000).federation(seed=1)
    with torch.no_grad():
        logits = task.apply({"params": params, "buffers": {}}, unseen.x).logits
    return float((logits.argmax(1) == unseen.y).float().mean())


def in_turn(args: argparse.Namespace) -> dict[str, Any]:
    """Everyone's rounds, one after the other; the first of each is not counted."""
    from flwr.app import ArrayRecord, Context
    from flwr.serverapp import Grid, ServerApp
    from flwr.serverapp.strategy import FedAvg
    from flwr.simulation import run_simulation

    ours, last = Ours(), {}
    first = tree.map(torch.clone, ours.server["vars"]["params"])
    elsewhere, refused = others(args, first)
    seconds: dict[str, list[float]] = {"flower": [], **{o.name: o.times for o in elsewhere}, "ours": ours.times}
    cpu: dict[str, list[float]] = {"flower": [], **{o.name: o.cpu for o in elsewhere}, "ours": ours.cpu}
    app, clock = ServerApp(), [0.0]

    def between(round: int, arrays: ArrayRecord) -> None:
        """Flower calls this before its first round and after every one."""
        if round:
            seconds["flower"].append(time.perf_counter() - clock[0])
            for one in (*elsewhere, ours):
                one.train()
            print(f"round {round}: " + ", ".join(f"{n} {t[-1]:.2f} s" for n, t in seconds.items()), flush=True)
        last.update(arrays.to_torch_state_dict())
        clock[0] = time.perf_counter()

    @app.main()
    def main(grid: Grid, context: Context) -> None:
        strategy = FedAvg(fraction_evaluate=0.0, min_available_nodes=LOAD.clients)
        done = strategy.start(grid, ArrayRecord(first), num_rounds=args.rounds + 1, evaluate_fn=between)
        means = done.train_metrics_clientapp  # of clients with the same number of examples
        cpu["flower"].extend(LOAD.clients * float(means[r]["cpu-seconds"]) for r in sorted(means))

    resources = {"client_resources": {"num_cpus": 1, "num_gpus": 0.0}, "init_args": {"num_cpus": args.cores}}
    run_simulation(app, client_app(), LOAD.clients, backend_config=resources)
    for one in (*elsewhere, ours.engine):
        one.close()
    task = ours.worker.task
    ends = {
        "start": first,
        "flower": last,
        **{o.name: o.params for o in elsewhere},
        "ours": ours.server["vars"]["params"],
    }
    return {
        "seconds": {n: t[1:] for n, t in seconds.items()},
        "cpu_seconds": {n: t[1:] for n, t in cpu.items()},
        "first_round_seconds": {n: t[0] for n, t in seconds.items()},
        "accuracy": {n: accuracy(task, params) for n, params in ends.items()},
        "peers": {o.name: o.about for o in elsewhere},
        "left_out": refused,
        "backend": repr(Auto().choose(ours.worker, LOAD.federation(), torch.device("cpu"))),
    }


def main() -> None:
    """Measure, print, and write JSON where asked."""
    parser = parser_of(__doc__)
    parser.add_argument("--peers", action="store_true", required=True)
    parser.add_argument("--rounds", type=int, default=6, help="that are counted")
    parser.add_argument("--cores", type=int, default=len(os.sched_getaffinity(0)))
    parser.add_argument("--blazefl", help="a Python that has BlazeFL")
    parser.add_argument("--pfllib", type=Path, help="a folder with PFLlib's repository")
    parser.add_argument("--out", type=Path, help="write the figures as JSON")
    args = parser.parse_args()
    here = str(Path(__file__).parent)
    os.environ["PYTHONPATH"] = os.pathsep.join(p for p in (here, os.environ.get("PYTHONPATH")) if p)
    torch.set_num_threads(args.cores)
    import flwr
    import ray

    before = os.getloadavg()
    found = in_turn(args)
    medians = {n: statistics.median(t) for n, t in found["seconds"].items()}
    computing = {n: statistics.median(t) for n, t in found["cpu_seconds"].items()}
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
        "median_cpu_seconds": computing,
        "times_faster": {n: t / medians["ours"] for n, t in medians.items()},
        "times_less_computing": {n: t / computing["ours"] for n, t in computing.items()},
    }
    for name, t in medians.items():
        ratios = report["times_faster"][name], report["times_less_computing"][name]
        print(
            f"{name:8s} {t:.2f} s a round, {computing[name]:.2f} s of CPU: ours is {ratios[0]:.2f} x as fast and ",
            end="",
        )
        print(f"computes {ratios[1]:.2f} x less; accuracy {found['accuracy'][name]:.3f}")
    if args.out:
        write(args.out, report)


if __name__ == "__main__":
    main()
