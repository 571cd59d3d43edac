"""Federated rounds, to be done the plain way and ours: the federation, the plain loops, and the check that all agree.

The plain loops are written as most code does it: nn.Module, torch.optim or torch.autograd, one client after the other,
the data already on the device. They follow the very batches that acclimate draws, so that results can be compared.
"""

from __future__ import annotations

import copy
import dataclasses
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, closing
from dataclasses import dataclass, replace
from typing import Any

import limits
import torch
import torch.nn.functional as F
from harness import Context, Record, Way, compare, insist, phase, summary, wait
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.backends import Auto, Serial, Vmap
from acclimate.core import Backend, Engine, Shards, Task, Work, Worker, fit, rng, tree
from acclimate.core.nn.layers import KeyedDropout
from acclimate.methods import FedAvg
from acclimate.methods.perfedavg import PerFedAvg

ALLOWED = 1e-9
"""How far ways may be apart in double precision, relative to the distance trained."""


def images(count: int, shape: tuple[int, ...], classes: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Images that can be learnt (a class pattern in noise): training on pure noise is chaotic."""
    g = torch.Generator().manual_seed(seed)
    pattern = torch.randint(0, 128, (classes, *shape), generator=torch.Generator().manual_seed(9), dtype=torch.uint8)
    y = torch.randint(0, classes, (count,), generator=g)
    return torch.randint(0, 128, (count, *shape), generator=g, dtype=torch.uint8) + pattern[y], y


def dealt(sizes: Sequence[int], shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Shards:
    """A federation of clients with so many synthetic images each."""
    x, y = images(sum(sizes), shape, classes)
    return Shards.of(x, y, list(torch.arange(len(y)).split(list(sizes))))


def task_of(model: Any, shape: tuple[int, ...] = (3, 32, 32), classes: int = 10) -> Task:
    """The model on pixels scaled to -1..1."""
    return Task(model, shape, classes, (0.5,) * shape[0], (0.5,) * shape[0])


@dataclass(frozen=True)
class Round:
    """One round of a cohort: the work that is done in several ways."""

    worker: Worker
    data: Shards
    cohort: Tensor
    dtype: torch.dtype = torch.float32

    @classmethod
    def of(cls, task: Task, method: Any, data: Shards, cohort: Tensor | None = None) -> Round:
        """The round of all clients, or of those given."""
        return cls(Worker(task, method), data, torch.arange(data.clients) if cohort is None else cohort)

    @property
    def work(self) -> Work:
        """The local work, in the batches that a step draws."""
        method: Any = self.worker.method
        times = 1 if not isinstance(method, PerFedAvg) else 3 if method.order == "second" else 2
        return replace(method.work, batch=times * method.work.batch)

    @property
    def has_plain_way(self) -> bool:
        """Whether there is a plain loop for the method."""
        return type(self.worker.method) in (FedAvg, PerFedAvg)

    def steps(self) -> int:
        """Local steps of the whole cohort."""
        return sum(self.work.steps(int(n)) for n in self.data.n[self.cohort.to(self.data.n.device)])

    def part(self, clients: int) -> Round:
        """The round of some clients only, evenly spaced in the cohort."""
        if clients >= len(self.cohort):
            return self
        return replace(self, cohort=self.cohort[torch.linspace(0, len(self.cohort) - 1, clients).round().long()])

    def server(self) -> tree.Tree:
        """The server's state before the round."""
        key = self.worker.key("init", like=self.data.n)
        return self.cast(self.worker.method.init_server(self.worker.task, self.data.clients, key))

    def ours(self, engine: Engine) -> Callable[[], tree.Tree]:
        """The round as acclimate runs it: the new parameters."""
        server = self.server()
        engine.mine = self.cast(engine.mine)
        return lambda: fit.one_round(self.worker, engine, server, self.cohort, 0)[0]["vars"]["params"]

    def cast(self, state: tree.Tree) -> tree.Tree:
        """A state in the round's precision."""
        cast: tree.Tree = tree.map(lambda v: v.to(self.dtype) if v.is_floating_point() else v, state)
        return cast

    def plain(self, keyed: bool = False) -> Callable[[], tree.Tree]:
        """The round as a loop over modules. `keyed` draws dropout masks from acclimate's keys instead of torch's."""
        task, data = self.worker.task, self.data
        method: Any = self.worker.method
        model: Any = task.model
        net = model.build(task.shape, task.num_classes)
        net.load_state_dict(self.server()["vars"]["params"], strict=False)  # running statistics start as they are built
        net.to(data.x.device, self.dtype).train()
        if keyed:
            _key_dropout(net)
        plans = [self._plan(c) for c in self.cohort.tolist()]
        sizes = data.n[self.cohort.to(data.n.device)].to(self.dtype)
        weights = sizes / sizes.sum() if isinstance(method, FedAvg) else torch.full_like(sizes, 1.0 / len(sizes))
        step = _second_order_step if isinstance(method, PerFedAvg) else _step

        def once() -> tree.Tree:
            total: tree.Tree = {n: torch.zeros_like(p) for n, p in net.named_parameters()}
            for (rows, keys), weight in zip(plans, weights, strict=True):
                local = copy.deepcopy(net)
                dropouts = [m for m in local.modules() if isinstance(m, KeyedDropout)]
                opt = torch.optim.SGD(local.parameters(), lr=method.opt.lr)
                for t, batch in enumerate(rows):
                    for i, layer in enumerate(dropouts):
                        layer.key = rng.fold(keys[t], "dropout", i)
                    step(local, opt, task.normalise(data.x[batch]), data.y[batch], method)
                total = {n: total[n] + weight * p.detach() for n, p in local.named_parameters()}
            return total

        return once

    def _plan(self, client: int) -> tuple[Tensor, Tensor]:
        """The rows of a client's every batch, and the keys of its steps, as `core.local.train` draws them."""
        key = self.worker.key("train", 0, client, like=self.data.n)
        rows, n = self.data.own(client), self.data.n[client]
        positions, _ = self.work.plan(self.data.tree(rows, n, n, n, ragged=False), rng.fold(key, "plan"))
        return rows[positions], rng.fold(key, "step", torch.arange(len(positions), device=key.device))

    def exact(self, clients: int = 3) -> Round:
        """A small version in double precision, in which different kernels must still give the same numbers.

        Every client trains for two epochs of up to five steps, the last of which wraps around.
        """
        few, examples = self.part(clients), 4 * self.work.batch + self.work.batch // 2
        x, y = self.data.x, self.data.y
        own = [self.data.own(c)[:examples] for c in few.cohort.tolist()]
        data = Shards.of(x[torch.cat(own)].double() / 255.0, y[torch.cat(own)], _places([len(r) for r in own]))
        method: Any = self.worker.method
        works = [f.name for f in dataclasses.fields(method) if f.name == "work" or f.name.endswith("_work")]
        changed = {n: replace(getattr(method, n), epochs=2, iterations=None) for n in works}
        worker = replace(self.worker, method=replace(method, **changed))
        return Round(worker, data.to(x.device), torch.arange(data.clients), torch.float64)


def _places(sizes: Sequence[int]) -> list[Tensor]:
    return list(torch.arange(sum(sizes)).split(list(sizes)))


def _key_dropout(net: nn.Module) -> None:
    """Let dropout draw its masks from acclimate's keys; all other layers stay torch's own."""
    for layer in net.modules():
        if isinstance(layer, nn.Dropout):
            layer.__class__ = KeyedDropout  # type: ignore[assignment]
            layer.channels = False  # type: ignore[assignment]


def _step(net: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, method: Any) -> None:
    opt.zero_grad()
    F.cross_entropy(net(x)[1], y).backward()
    opt.step()


def _second_order_step(net: nn.Module, opt: torch.optim.Optimizer, x: Tensor, y: Tensor, method: PerFedAvg) -> None:
    """Per-FedAvg's step on the batches D, D' and D'' with autograd's double backward."""
    size = method.work.batch
    parts = list(zip(x.split(size), y.split(size), strict=True))
    names, params = zip(*net.named_parameters(), strict=True)
    inner = torch.autograd.grad(F.cross_entropy(net(parts[0][0])[1], parts[0][1]), params)
    stepped = [(p - method.alpha * g).detach().requires_grad_() for p, g in zip(params, inner, strict=True)]
    logits = functional_call(net, dict(zip(names, stepped, strict=True)), (parts[1][0],))[1]
    outer = torch.autograd.grad(F.cross_entropy(logits, parts[1][1]), stepped)
    curved = torch.autograd.grad(F.cross_entropy(net(parts[2][0])[1], parts[2][1]), params, create_graph=True)
    product = torch.autograd.grad(curved, params, grad_outputs=outer)
    for p, v, h in zip(params, outer, product, strict=True):
        p.grad = v - method.alpha * h
    opt.step()


def backends(round: Round) -> dict[str, Backend]:
    """Every backend that must give the same numbers, the one that is chosen for this round among them."""
    found: dict[str, Backend] = {"serial": Serial(), "vmap": Vmap(capture=False)}
    chosen = Auto().choose(round.worker, round.data, round.data.x.device)
    return found if chosen in found.values() else found | {"ours": chosen}


def apart(a: tree.Tree, b: tree.Tree, start: tree.Tree) -> float:
    """The distance between two results, relative to how far training went."""
    return float(tree.norm(tree.sub(a, b)) / tree.norm(tree.sub(a, start)))


def agreement(round: Round) -> Record:
    """Whether all ways compute the same in double precision: the plain loop where there is one, else Serial, leads."""
    small = round.exact()
    results = {"plain": small.plain(keyed=True)()} if small.has_plain_way else {}
    for name, backend in backends(round).items():
        with closing(backend.open(small.worker, small.data, small.data.x.device)) as engine:
            results[name] = small.ours(engine)()
    reference = results[next(iter(results))]
    start = small.server()["vars"]["params"]
    return insist({name: apart(reference, r, start) for name, r in results.items()}, ALLOWED)


def measure(
    round: Round,
    context: Context,
    looped: int,
    more: dict[str, Backend] | None = None,
    fast: bool = False,
    accurate: bool = True,
    agreed: Round | None = None,
) -> Record:
    """Agreement, then seconds of one round: the plain loop over `looped` clients, acclimate's choice, and `more`.

    `fast` adds acclimate's choice with TF32 allowed, and training in bf16, on a GPU; there, without `accurate`, TF32
    alone is measured. Where the method has no plain loop here, Serial stands in for it. Ways agree on the round itself,
    or on `agreed`, a smaller one of the same kind, where large convolutions in double precision would take long.
    """
    device, few = context.device, round.part(looped)
    with phase("agreement in double precision"):
        found = agreement(agreed or round)
    record: Record = {"agreement": found, "clients": len(round.cohort), "steps": round.steps()}
    share, one = few.steps() / round.steps(), round.part(1)
    with ExitStack() as stack:

        def opened(backend: Backend) -> Engine:
            return stack.enter_context(closing(backend.open(round.worker, round.data, device)))

        if round.has_plain_way:
            ways = {"plain": Way(few.plain(), share, 2, one.plain())}
        else:
            loop = opened(Serial())
            ways = {"serial": Way(few.ours(loop), share, 2, one.ours(loop))}
        quick = fast and device.type == "cuda"
        if accurate or not quick:
            ways["ours"] = Way(round.ours(opened(Auto())))
        ways |= {name: Way(round.ours(opened(b))) for name, b in (more or {}).items()}
        if quick:
            ways["ours, TF32"] = Way(round.ours(opened(Auto())), tf32=True)
        if quick and accurate:
            ways["ours, bf16"] = Way(round.ours(opened(Vmap(precision="bf16"))), tf32=True)
        record |= compare(ways, context)
    if round.has_plain_way:
        record["work"] = _work_of_a_step(one)
    return record


def _work_of_a_step(round: Round) -> Record:
    """FLOPs and bytes of one plain step: two steps less one, so that what a client costs besides does not count."""
    method: Any = round.worker.method
    works = []
    for steps in (1, 2):
        short = replace(method, work=replace(method.work, iterations=steps))
        works.append(limits.work_of(replace(round, worker=replace(round.worker, method=short)).plain()))
    return {name: works[1][name] - works[0][name] for name in works[0]}


def with_rates(record: Record, ceilings: Record) -> Record:
    """The record with achieved FLOP/s and bytes/s, where its work was counted."""
    if "work" not in record:
        return record
    work = record.pop("work")
    return {**record, "achieved": limits.rates(work, record["steps"], record["seconds"], ceilings)}


def train(
    round: Round, context: Context, schedule: fit.RoundPlan, evaluate: Callable[[tree.Tree], float], warm: int = 2
) -> Record:
    """Many rounds with evaluation in between, as a run does them: seconds in all, and per round.

    The first rounds (what is recorded once, caches) are timed apart. Stops early where the budget is spent.
    """
    blocks: list[float] = []
    with closing(Auto().open(round.worker, round.data, context.device)) as engine:
        state = fit.start(round.worker, engine, round.data.clients).server
        began = time.perf_counter()
        for r in range(warm):
            state = fit.one_round(round.worker, engine, state, fit.sample(round.worker, schedule, r), r)[0]
        evaluate(state)
        wait(context.device)
        first = time.perf_counter() - began
        done, score, cohort, began = 0, 0.0, fit.sample(round.worker, schedule, 0), time.perf_counter()
        while done < schedule.rounds and time.perf_counter() - began < context.budget:
            size = min(schedule.eval_every, schedule.rounds - done)
            started = time.perf_counter()
            for r in range(done, done + size):
                following = fit.sample(round.worker, schedule, r + 1)
                engine.expect(following)  # as `fit.rounds` does
                state = fit.one_round(round.worker, engine, state, cohort, r)[0]
                cohort = following
            score = evaluate(state)
            wait(context.device)
            blocks.append((time.perf_counter() - started) / size)
            done += size
        total = time.perf_counter() - began
    return {
        "rounds": done,
        "rounds_wanted": schedule.rounds,
        "seconds": total,
        "seconds_per_round": {**summary(blocks), "mean": total / done},
        "seconds_of_first_rounds": first,
        "warm_rounds": warm,
        "accuracy": score,
    }


def central_accuracy(
    task: Task, test: tuple[Tensor, Tensor], device: torch.device, batch: int = 10_000
) -> Callable[[tree.Tree], float]:
    """Accuracy of the server's model on one test set."""
    x, y = (t.to(device) for t in test)

    @torch.no_grad()
    def evaluate(server: tree.Tree) -> float:
        parts = zip(x.split(batch), y.split(batch), strict=True)
        right = [(task.apply(server["vars"], a).logits.argmax(-1) == b).sum() for a, b in parts]
        return float(torch.stack(right).sum()) / len(y)

    return evaluate
