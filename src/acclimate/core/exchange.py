"""Clients that exchange while they adapt: serving as a federated method, and the loop over stretches of the streams.

A stretch of `every` batches is a round: a client receives what the server sent, serves its batches, and sends. Its
private state is its live model, the adapter's state and the answers so far. So whatever runs rounds of training runs
this too: filters, rules, partial sums, buckets, recordings, workers. Who has more batches to come sends; the last
stretch of a stream ends without a message.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, ClassVar, Protocol, TypeGuard

import torch
from torch import Tensor

from . import filter, fit, rng, stream, tree
from .adapter import Adapter, Exchanging
from .backend import Reply
from .limits import Limits
from .message import Rules
from .method import Method
from .private import Private, private
from .shards import Holdings
from .task import Mode, Out, Task
from .tree import Tree
from .worker import Worker

WHO = "who"
"""The entry of `down` that names the clients whose rows `own` has, in their order."""
LEAST = 2
"""The fewest clients between which there is anything to exchange."""


class StretchRunner(Protocol):
    """What the loop needs of an engine."""

    device: torch.device

    @property
    def mine(self) -> Private:
        """Every client's private state."""
        ...

    @mine.setter
    def mine(self, value: Any) -> None: ...

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """One round of the cohort's clients."""
        ...


class CannotExchange(ValueError):
    """An adapter that exchanges where nothing can be exchanged, with the reason."""


def exchanges(adapter: Adapter) -> TypeGuard[Exchanging]:
    """Whether the clients of this adapter exchange anything."""
    return isinstance(adapter, Exchanging) and bool(adapter.uplink)


def alone_refusal(adapter: Adapter) -> str | None:
    """Why this adapter cannot be judged by what each client does alone, in one sentence, or None where it can."""
    if not exchanges(adapter):
        return None
    return f"{type(adapter).__name__} exchanges with other clients, and here every client is served alone"


def mixed_refusal(adapter: Adapter) -> str | None:
    """Why clients of several architectures cannot exchange, in one sentence, or None where they need not."""
    if not exchanges(adapter):
        return None
    return (
        f"{type(adapter).__name__} exchanges at test time, and clients of several architectures have no common server "
        "for that; train one model"
    )


def refusal(worker: Worker, adapter: Adapter, clients: int) -> str | None:
    """Why so many clients cannot exchange what this adapter sends, in one sentence, or None where they can."""
    if not exchanges(adapter):
        return None
    name = type(adapter).__name__
    if adapter.transductive:
        return f"{name} wants to see the whole stream first, so its clients cannot exchange in the middle of it"
    for f in worker.filters:
        if type(f).card is not filter.Filter.card:
            return (
                f"{name} exchanges at test time, and filter {type(f).__name__} is accounted for by rounds of training "
                "alone; leave it out, or use clip and noise, which promise nothing"
            )
    if reason := filter.refusal(worker.filters, adapter.uplink):
        return f"{name} exchanges at test time what a filter of the experiment cannot take: {reason}"
    if clients < (least := _least(worker)):
        return f"{name} exchanges with other clients: it needs at least {least} clients with a stream, not {clients}"
    return None


def _least(worker: Worker) -> int:
    return max([LEAST, *(f.needs for f in worker.filters)])


@dataclass(frozen=True)
class Serving(Method):
    """Serving a test stream as a method: its rounds are stretches of `adapter.every` batches. No label is read."""

    downlink: ClassVar[tuple[str, ...]] = ("all", "own")

    method: Method = Method()
    """The method whose models are served."""
    adapter: Exchanging = Exchanging()
    protocol: stream.Protocol = stream.Protocol()
    alone: bool = False
    """Whether a stretch ends without a message."""

    @property
    def uplink(self) -> Rules:
        return {} if self.alone else self.adapter.uplink

    @property
    def limits(self) -> Limits:
        return self.adapter.limits

    @property
    def samples(self) -> int:
        """Samples between two exchanges."""
        return self.adapter.every * self.protocol.batch

    def begin(self, task: Task, model: Tree, size: int, key: rng.Key) -> Tree:
        """A client's private state before its stream of at most `size` samples."""
        like = model["vars"]["params"][task.head_weight]
        answers = torch.zeros(-(-size // self.samples), self.samples, task.num_classes, device=like.device)
        return {"model": model, "state": self.adapter.init(task, model), "answers": answers, "key": key}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def predict(model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
            return self.method.predict(task, model, x, mode, key)

        adapter, model, state, data = self.adapter, mine["model"], mine["state"], tree.drop(data, ("y",))
        if down:
            at = (down[WHO] == data["id"]).to(torch.int64).argmax()
            state = adapter.receive(task, model, state, {**down.get("all", {}), **tree.take(down.get("own", {}), at)})
        fresh, part = adapter.init(task, model), self.part(data["round"])
        served, state = stream.stretch(
            task, predict, adapter, model, data, self.protocol, mine["key"], state, fresh, part
        )
        now = torch.arange(len(mine["answers"]), device=data["round"].device) == data["round"]
        answers = torch.where(now[:, None, None], served.logits.to(mine["answers"].dtype), mine["answers"])
        if self.alone:
            return {}, {**mine, "state": state, "answers": answers}
        if type(adapter).look_ahead is not Exchanging.look_ahead:
            arrived = self.arrived(data)
            state = adapter.look_ahead(task, predict, model, state, arrived, rng.fold(key, "arrived"))
        return adapter.send(task, predict, model, state, key), {**mine, "state": state, "answers": answers}

    def arrived(self, data: Tree) -> Tensor:
        """The inputs of the first batch of the next stretch; only who has one sends."""
        n, first = data["n"].clamp_min(1), self.part(data["round"] + 1).first
        places = stream.Stretch(first, 1, self.protocol.batch).places(n.device)[0]
        inputs: Tensor = data["x"][data["rows"][places % n]]
        return inputs

    def part(self, round: int | Tensor) -> stream.Stretch:
        """The batches of a stretch."""
        return stream.Stretch(round * self.adapter.every, self.adapter.every, self.protocol.batch)

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        made = self.adapter.exchange(task, server, total, key)
        return {"all": {}, "own": {}, **made}


def serving(worker: Worker, adapter: Exchanging, protocol: stream.Protocol, alone: bool = False) -> Worker:
    """The client half that serves, and sends unless `alone`.

    Its keys are none of training's: noise that comes twice can be taken off.
    """
    seed = int(rng.fold(rng.key(worker.seed), "exchange")) & (2**62 - 1)
    return replace(
        worker,
        method=Serving(worker.method, adapter, protocol, alone),
        filters=() if alone else worker.filters,
        seed=seed,
    )


def serve(
    worker: Worker,
    models: Tree,
    test: Holdings,
    adapter: Exchanging,
    protocol: stream.Protocol,
    opened: Callable[[Worker], StretchRunner],
) -> Tree:
    """The metrics of clients that exchange, and the bytes that each of them sent and got (`exchanged`).

    `models` is stacked over clients; `opened(worker)` gives an engine whose clients hold the streams.
    """
    half = serving(worker, adapter, protocol)
    if reason := refusal(worker, adapter, int((test.sizes > 0).sum())):
        raise CannotExchange(reason)
    engine, quiet = opened(half), opened(serving(worker, adapter, protocol, alone=True))
    answered = torch.ones(test.clients, dtype=torch.bool)
    engine.mine = private(_begun(worker, half, models, test))
    exchanged = torch.zeros(test.clients, dtype=torch.int64)

    def alone(down: Tree, cohort: Tensor, round: int) -> None:
        quiet.mine = engine.mine
        quiet.train(down, cohort, round)
        engine.mine = quiet.mine

    try:
        exchanged = stretches(half, engine.train, alone, test.sizes, engine.device)
    except ArithmeticError as e:  # the grid says of such clients that they diverged
        answered[getattr(e, "clients", slice(None))] = False
    answers = engine.mine.saved()["answers"].cpu()
    scores = [_scored_of(answers[c], test, c) for c in range(test.clients)]
    metrics: Tree = tree.stack(scores)
    return {**metrics, "loss": torch.where(answered, metrics["loss"], torch.nan), "exchanged": exchanged}


def _begun(worker: Worker, half: Worker, models: Tree, test: Holdings) -> Tree:
    assert isinstance(half.method, Serving)
    like, rows = tree.leaves(models)[0], []
    for c in range(test.clients):
        key = worker.key("adapt", c, like=like)
        rows.append(half.method.begin(half.task, tree.take(models, c), test.longest, key))
    begun: Tree = tree.stack(rows)
    return begun


Train = Callable[[Tree, Tensor, int], Any]
"""Runs a stretch of a cohort, as `Engine.train` runs a round."""


def stretches(half: Worker, train: Train, alone: Train, sizes: Tensor, device: torch.device) -> Tensor:
    """Run all stretches of the clients' streams; the bytes that each client sent and got.

    `train` gives the reply of clients that send; `alone` runs clients of whom nobody wants a message. Those who do not
    reply are left out from then on.
    """
    assert isinstance(half.method, Serving)
    samples, least, there = half.method.samples, _least(half), torch.ones_like(sizes, dtype=torch.bool)
    server: Tree = {}
    down: Tree = {}
    exchanged = torch.zeros(len(sizes), dtype=torch.int64)
    for i in range(-(-int(sizes.max()) // samples)):
        going, ending = there & (sizes > (i + 1) * samples), there & (sizes > i * samples)
        ending &= ~going
        if int(going.sum()) < least:  # a client that is left over goes on alone
            going, ending = going & False, going | ending
        if bool(ending.any()):
            alone(down, ending.nonzero()[:, 0], i)
        if not bool(going.any()):
            down = {}
            continue
        cohort = going.nonzero()[:, 0]
        reply: Reply = train(down, cohort, i)
        there[going] = torch.isin(cohort, reply.part.clients.cpu())
        cohort = cohort[there[going]]
        server, down = _exchange(half, server, reply, cohort, i, device)
        exchanged[cohort] += tree.nbytes(reply.up) + sent_bytes(down)
    return exchanged


def _exchange(
    half: Worker, server: Tree, reply: Reply, cohort: Tensor, round: int, device: torch.device
) -> tuple[Tree, Tree]:
    """The server's half of an exchange: its state, and what it sends."""
    try:
        server = fit.update(half, server, reply, cohort, round, device)
    except ValueError as e:  # a robust reducer that needs more clients
        raise CannotExchange(f"an exchange at test time between {len(cohort)} clients: {e}") from e
    return server, {**half.method.download(half.task, server), WHO: cohort.to(device)}


def sent_bytes(down: Tree) -> int:
    """What one client gets: what all get, and its own row."""
    return tree.nbytes(down["all"]) + tree.nbytes(tree.take(down["own"], 0))


def for_some(down: Tree, clients: Sequence[int]) -> Tree:
    """What is sent to some clients: of `own` their rows alone."""
    if not down:
        return {}
    at = torch.isin(down[WHO], torch.tensor(clients)).nonzero()[:, 0]
    return {**down, "own": tree.take(down["own"], at), WHO: down[WHO][at]}


def scored(answers: Tensor, y: Tensor, n: Tensor) -> Tree:
    """One client's metrics from its answers and the labels of its stream in order."""
    return stream.score(answers.flatten(0, 1)[: len(y)], y, n)


def _scored_of(answers: Tensor, test: Holdings, client: int) -> Tree:
    """The metrics of a client; an empty stream has one row that is not counted."""
    n = test.sizes[client]
    rows = test.own(client) if int(n) else test.table(torch.tensor([client]), 1)[0]
    return scored(answers, test.y[rows.to(test.y.device)].cpu(), n)
