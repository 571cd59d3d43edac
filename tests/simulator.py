"""A federation as a plain loop over rounds, clients and batches, in double precision, for tests that compare with it.

It shares nothing with the package but the data, the initial model, who takes part in a round and which examples are in
a batch. Models are torch's own modules in training or evaluation mode, gradients those of `torch.autograd`, steps those
of `torch.optim`. A model's variables are `{"params": {name: tensor}, "buffers": {name: tensor}}`.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call

from acclimate.core import Adam, AdamW, Cosine, Optimizer, Shards, StepDecay, Task, Work, Worker, fit, rng

CLASSES, INPUTS, FEATURES = 4, 5, 6
SIZES = (9, 2, 5, 14, 3)
"""Some do not fill a batch, and most leave a batch that is not full."""


class Net(nn.Module):
    """A layer with batch norm, and a head; smooth, so that rounding changes no gradient by much."""

    def __init__(self, norm: bool = True, bias: bool = True) -> None:
        super().__init__()
        self.first = nn.Linear(INPUTS, FEATURES, bias=False)  # before batch norm its gradient would be rounding alone
        self.norm = nn.BatchNorm1d(FEATURES) if norm else nn.Identity()
        self.head = nn.Linear(FEATURES, CLASSES, bias=bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = torch.tanh(self.norm(self.first(x))) + 0.1
        return features, self.head(features)


def examples(sizes: Iterable[int] = SIZES, seed: int = 0) -> Shards:
    """Clients of these sizes at shuffled places of one table; all but the largest lack a class."""
    g, sizes = torch.Generator().manual_seed(seed), tuple(sizes)
    y = torch.randint(0, CLASSES, (sum(sizes) + 5,), generator=g)
    rows = list(torch.randperm(len(y), generator=g)[: sum(sizes)].split(list(sizes)))
    for client, own in enumerate(rows):
        if client != sizes.index(max(sizes)):
            y[own] = torch.where(y[own] == client % CLASSES, (y[own] + 1) % CLASSES, y[own])
    centres = 2 * torch.randn(CLASSES, INPUTS, generator=g)
    return Shards.of(centres[y] + torch.randn(len(y), INPUTS, generator=g), y, rows)


def mapped(f: Callable[..., Any], first: Any, *others: Any) -> Any:
    """`f` of every tensor of nested dicts of one form."""
    if isinstance(first, dict):
        return {k: mapped(f, v, *(o[k] for o in others)) for k, v in first.items()}
    return f(first, *others)


def mean(values: list[Any], weights: list[float] | None = None) -> Any:
    """The weighted mean of nested dicts."""
    weights = [1.0] * len(values) if weights is None else weights
    return mapped(lambda *xs: sum(w * x for w, x in zip(weights, xs, strict=True)) / sum(weights), *values)


def minus(a: Any, b: Any) -> Any:
    return mapped(lambda x, y: x - y, a, b)


def plus(a: Any, b: Any, times: float = 1.0) -> Any:
    return mapped(lambda x, y: x + times * y, a, b)


def copied(a: Any) -> Any:
    return mapped(lambda x: x.detach().clone(), a)


def dot(a: Any, b: Any) -> Any:
    """The inner product of two flat dicts."""
    return sum((x * b[name]).sum() for name, x in a.items())


def factor(opt: Optimizer, round: int, step: int) -> float:
    """What the schedule multiplies the rate with, from its definition."""
    s = opt.schedule
    time = round if s.per == "round" else step
    if isinstance(s, StepDecay):
        return s.gamma ** (time // s.every)
    if isinstance(s, Cosine):
        return s.floor + (1 - s.floor) * 0.5 * (1 + math.cos(math.pi * min(time / s.total, 1.0)))
    return 1.0


def stepper(opt: Optimizer, leaves: list[Tensor]) -> torch.optim.Optimizer:
    """Torch's own optimiser of the same settings."""
    if isinstance(opt, Adam):
        kind = torch.optim.AdamW if isinstance(opt, AdamW) else torch.optim.Adam
        return kind(leaves, opt.lr, (opt.b1, opt.b2), opt.eps, opt.weight_decay)
    return torch.optim.SGD(leaves, opt.lr, opt.momentum, weight_decay=opt.weight_decay, nesterov=opt.nesterov)


Loss = Callable[[Any, Any, Tensor, Tensor], tuple[Tensor, Any]]
"""`loss(params, buffers, x, y)` gives a number and the new buffers."""


@dataclass
class World:
    """A federation's data, model, settings, and the plain functions that every method needs."""

    worker: Worker
    data: Shards
    net: nn.Module
    opt: Optimizer
    work: Work
    purpose: tuple[Any, ...] = field(default=())
    """What the present phase's keys are made of: training in a round, or the last phase."""

    def __post_init__(self) -> None:
        self.net = self.net.double()
        self.x, self.y = self.data.x.double(), self.data.y
        self.start = mapped(torch.Tensor.double, self.worker.task.init(self.worker.key("init")))

    @property
    def task(self) -> Task:
        return self.worker.task

    def initial(self, *path: Any) -> Any:
        """The model that these words give."""
        return mapped(torch.Tensor.double, self.task.init(rng.fold(self.worker.key("init"), *path)))

    def rows(self, client: int) -> Tensor:
        return self.data.own(client)

    def size(self, client: int) -> int:
        return len(self.data.own(client))

    def counts(self, client: int) -> Tensor:
        return torch.bincount(self.y[self.rows(client)], minlength=CLASSES).double()

    def key(self, *path: Any) -> Tensor:
        return rng.fold(self.worker.key(*self.purpose), *path)

    def batches(self, client: int, work: Work, *path: Any, count: int | None = None) -> list[Tensor]:
        """Rows of the client's batches, in the order of the package's own plan; `count` takes the first examples."""
        own = self.rows(client)[:count]
        data = {"rows": torch.arange(len(own)), "n": torch.tensor(len(own))}
        positions, active = work.plan(data, self.key(*path, "plan"))
        assert bool(active.all())
        return [own[p] for p in positions]

    def run(self, p: Any, b: Any, x: Tensor, training: bool = True) -> tuple[Tensor, Tensor, Any]:
        """Features, logits, and the statistics after the pass."""
        b = copied(b)
        counters = {n: c.clone() for n, c in self.net.named_buffers() if not c.is_floating_point()}
        features, logits = functional_call(self.net.train(training), {**p, **b, **counters}, (x,))
        return features, logits, b

    def features(self, w: Any, client: int) -> Tensor:
        """The features of all of a client's examples, in evaluation mode."""
        return self.run(w["params"], w["buffers"], self.x[self.rows(client)], False)[0].detach()

    def logits(self, w: Any, client: int) -> Tensor:
        return self.run(w["params"], w["buffers"], self.x[self.rows(client)], False)[1].detach()

    def risk(self, w: Any, client: int) -> Tensor:
        return F.cross_entropy(self.logits(w, client), self.y[self.rows(client)])

    def ce(self, p: Any, b: Any, x: Tensor, y: Tensor) -> tuple[Tensor, Any]:
        """Cross-entropy in training mode."""
        _, logits, b = self.run(p, b, x)
        return F.cross_entropy(logits, y), b

    def slope(self, loss: Loss, p: Any, b: Any, x: Tensor, y: Tensor) -> tuple[Any, Any]:
        """The gradient by the parameters, and the new buffers."""
        p = {n: v.detach().clone().requires_grad_() for n, v in p.items()}
        value, b = loss(p, b, x, y)
        found = torch.autograd.grad(value, list(p.values()), allow_unused=True)
        return {n: torch.zeros_like(v) if g is None else g for (n, v), g in zip(p.items(), found, strict=True)}, b

    def local(
        self,
        w: Any,
        batches: list[Tensor],
        round: int,
        loss: Loss,
        opt: Optimizer | None = None,
        clip: float | None = None,
        only: Iterable[str] | None = None,
        gradient: Callable[..., tuple[Any, Any]] | None = None,
        inputs: Tensor | None = None,
    ) -> Any:
        """The variables after local steps on these batches; `only` names the parameters that move."""
        opt, b, x = opt or self.opt, copied(w["buffers"]), self.x if inputs is None else inputs
        p = copied(w["params"])
        moving = list(p) if only is None else [n for n in p if n in set(only)]
        steps = stepper(opt, [p[n] for n in moving])
        for t, rows in enumerate(batches):
            found, b = (gradient or self.slope)(loss, p, b, x[rows], self.y[rows])
            for n in moving:
                p[n].grad = found[n].clone()
            if clip is not None:
                nn.utils.clip_grad_norm_([p[n] for n in moving], clip)
            steps.param_groups[0]["lr"] = opt.lr * factor(opt, round, t)
            with torch.no_grad():
                steps.step()
        return copied({"params": p, "buffers": b})

    def fit_head(
        self, head: Any, features: Tensor, client: int, opt: Optimizer, work: Work, round: int, *path: Any
    ) -> Any:
        """A head after cross-entropy on fixed features of the client's examples."""
        table = torch.zeros(len(self.x), features.shape[1], dtype=torch.float64)
        table[self.rows(client)] = features

        def loss(p: Any, b: Any, f: Tensor, y: Tensor) -> tuple[Tensor, Any]:
            return F.cross_entropy(f @ p["weight"].T + p.get("bias", 0.0), y), b

        start, batches = {"params": head, "buffers": {}}, self.batches(client, work, *path)
        return self.local(start, batches, round, loss, opt, work.clip, inputs=table)["params"]


def simulate(world: World, rule: Any, rounds: int, cohort: int, lost: Any = ()) -> tuple[Any, list[Any], list[Any]]:
    """The server's state after these rounds, every client's private state, and the models that go live.

    `lost` has pairs of a round and a client whose message never arrives.
    """
    clients = world.data.clients
    server, mine = rule.start(world), [rule.mine(world, c) for c in range(clients)]
    schedule = fit.RoundPlan(rounds, clients, cohort)
    for r in range(rounds):
        present, replies = [c for c in fit.sample(world.worker, schedule, r).tolist() if (r, c) not in lost], []
        for c in present:
            world.purpose = ("train", r, c)
            message, mine[c] = rule.client(world, server, mine[c], c, r)
            replies.append(message)
        server = rule.server(world, server, replies, present, r)
    live = []
    for c in range(clients):
        world.purpose = ("personal", c, "settle")
        live.append(rule.live(world, server, mine[c], c))
    return server, mine, live
