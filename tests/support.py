"""Small worlds and helpers for tests."""

from __future__ import annotations

import dataclasses
from collections.abc import Collection, Iterable
from dataclasses import dataclass
from typing import Any

import pytest
import torch

from acclimate.backends import Serial, Vmap
from acclimate.core import Backend, Gather, Mean, Method, Rules, Shards, State, Sum, Task, Work, Worker, fit, tree
from acclimate.methods import FedAvg
from acclimate.models import CNN, MLP

CLASSES = 5
SIZES = (40, 24, 16, 33, 17, 9)
SMALL = Work(epochs=2, batch=8)
FEW = Work(epochs=2, batch=16)
"""Three steps or less in an epoch; batches that are full, that are not, and a client that fills none."""
BRIEF = Work(epochs=1, batch=16)
"""The same, once: where a test trains many times."""
ONE = Work(epochs=1, batch=max(SIZES))
"""One step for every client: where a test asks what happens around the steps."""
BACKENDS: dict[str, Backend] = {"serial": Serial(), "vmap": Vmap(chunk=2)}
MODELS = {
    "mlp-dropout": MLP(hidden=(16,), norm="batch", dropout=0.3),
    "cnn-plain": CNN(widths=(3, 4), hidden=8, kernel=3),
    "cnn-batch": CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"),
    "cnn-group": CNN(widths=(4, 4), hidden=8, kernel=3, norm="group"),
}


QUICK = ("fedavg", "fedper", "scaffold", "fedthe", "fedtta", "fedpcl")
"""Methods that stand for all in the quick set where a test repeats what test_contract.py has for every one."""


PEERS = (
    *("feddyn", "moon", "fedbabu", "lg-fedavg", "fedlc", "fedntd", "feddecorr", "fedala", "ifca", "fedpac", "fedas"),
    *("fedem", "ccvr", "fedfomo", "cfl"),
)
"""The methods that people look for first: each keeps or sends something else."""


def quick_or_slow(names: Iterable[str], quick: Collection[str] = QUICK) -> list[Any]:
    """Parameters for pytest: those of `quick` always, the others in the slow set."""
    return [n if n in quick else pytest.param(n, marks=pytest.mark.slow) for n in names]


SEEDS = [pytest.param((0,), id="one-seed"), pytest.param((0, 1, 2), id="three-seeds", marks=pytest.mark.slow)]
"""What papers claim is a mean over three seeds in the slow set; the quick set looks at the first of them."""


def images(count: int, seed: int = 0) -> tuple[torch.Tensor, torch.Tensor]:
    """Learnable uint8 images: the class is a bright band."""
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, CLASSES, (count,), generator=g)
    x = (torch.rand(count, 3, 10, 10, generator=g) * 120).to(torch.uint8)
    band = torch.arange(10) // 2 == y[:, None]
    return x + 100 * band[:, None, :, None].to(torch.uint8), y


def shards(sizes: tuple[int, ...] = SIZES, seed: int = 0) -> Shards:
    """Clients of these sizes, at shuffled places of one array."""
    x, y = images(sum(sizes) + 20, seed)
    order = torch.randperm(len(y), generator=torch.Generator().manual_seed(seed))
    return Shards.of(x, y, list(order[: sum(sizes)].split(list(sizes))))


def task(model: str = "cnn-batch") -> Task:
    """A new one for every test: some change it."""
    return Task(MODELS[model], (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3)


def small(method: Any, work: Work = SMALL) -> Any:
    """A record with little local work."""
    names = {f.name for f in dataclasses.fields(method)}
    changes: dict[str, Any] = {n: work for n in names if n == "work" or n.endswith("_work")}
    return dataclasses.replace(method, **changes)


def fitted(
    method: Method,
    backend: str = "serial",
    model: str = "cnn-batch",
    rounds: int = 3,
    cohort: int = 4,
    seed: int = 0,
    data: Shards | None = None,
    seen: list[State] | None = None,
) -> tuple[Worker, Any, State]:
    """Train on the small federation; the worker, the engine and the final state. `seen` gets that of each round."""
    worker = Worker(task(model), method, seed=seed)
    data = shards() if data is None else data
    engine = BACKENDS[backend].open(worker, data, torch.device("cpu"))
    state = fit.start(worker, engine, data.clients)
    schedule = fit.RoundPlan(rounds, data.clients, min(cohort, data.clients))
    for state in fit.rounds(worker, engine, schedule, shards((5, 9, 6, 0, 8, 7), seed=1), state):
        if seen is not None:
            seen.append(state)
    return worker, engine, state


@dataclass(frozen=True)
class Roll(FedAvg):
    """Gathers every client's id and the way of its head's bias: in cohorts of four, what the server saw last."""

    @property
    def uplink(self) -> Rules:
        return {"delta": Mean("n"), "n": Sum(), "id": Gather(), "own": Gather()}

    def client(self, task: Task, down: Any, mine: Any, data: Any, key: torch.Tensor) -> Any:
        up, mine = super().client(task, down, mine, data, key)
        return {**up, "id": data["id"], "own": {"w": up["delta"]["params"]["head.bias"]}}, mine

    def init_server(self, task: Task, clients: int, key: torch.Tensor) -> Any:
        seen = {"roll": torch.zeros(4, dtype=torch.int64), "own": torch.zeros(4, CLASSES)}
        return {**super().init_server(task, clients, key), **seen}

    def server(self, task: Task, server: Any, total: Any, key: torch.Tensor) -> Any:
        return {**super().server(task, server, total, key), "roll": total["id"], "own": total["own"]["w"]}


@dataclass(frozen=True)
class Poison(FedAvg):
    """Sends NaN from some clients in round 1."""

    poisoned: tuple[int, ...] = (3,)

    def client(self, task: Task, down: Any, mine: Any, data: Any, key: torch.Tensor) -> Any:
        up, mine = super().client(task, down, mine, data, key)
        bad = torch.isin(data["id"], torch.tensor(self.poisoned)) & (data["round"] == 1)
        return {**up, "delta": tree.map(lambda x: torch.where(bad, torch.nan, x), up["delta"])}, mine


def deployed(t: Task, key: torch.Tensor, count: int, sharper: float = 1) -> tuple[Task, Any, Any, torch.Tensor]:
    """What adapters get: a task, a model, how it predicts, and images. Entropies differ more with a sharper head."""
    vars = t.init(key)
    vars["params"]["head.weight"] = sharper * vars["params"]["head.weight"]

    def predict(model: Any, x: torch.Tensor, mode: Any = "eval", key: Any = None) -> Any:
        return t.apply(model["vars"], x, mode)

    return t, {"vars": vars}, predict, images(count)[0]


def client_data(data: Shards, client: int, round: int = 0) -> tree.Tree:
    """One client's data as `Method.client` gets it."""
    return data.tree(data.own(client), data.n[client], torch.tensor(client), torch.tensor(round), ragged=False)


def gap(a: Any, b: Any) -> float:
    """The largest absolute difference between two trees."""
    pairs = zip(tree.leaves(a), tree.leaves(b), strict=True)
    return max([float((x.double() - y.double()).abs().max()) for x, y in pairs if x.numel()], default=0.0)


def equal(a: Any, b: Any) -> bool:
    """Bit equality of two trees of the same names."""
    fa, fb = tree.flatten({"t": a}), tree.flatten({"t": b})
    return list(fa) == list(fb) and all(torch.equal(x, fb[k]) for k, x in fa.items())
