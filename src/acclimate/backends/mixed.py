"""Clients of several architectures: one engine per architecture, of any backend, and one round over all of them.

An architecture is a bucket: its clients have state of one shape and run together. What they send has the same shape
whatever their model, so the parts of a round add up as those of chunks and workers do. Clients keep the numbers that
they have in the whole federation. Newcomers of an architecture are a federation of their own, which never trains: what
they do before they go live is the method's `welcome`.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import reduce
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import (
    Adapter,
    Backend,
    CannotExchange,
    Engine,
    NonFinite,
    Personalizer,
    Private,
    Protocol,
    Reply,
    Shards,
    Tree,
    Worker,
    exchange,
    message,
    tree,
)
from . import Auto
from .serial import Serial
from .vmap.engine import Vmap
from .workers.processes import Processes

NOBODY = torch.zeros(0, dtype=torch.int64)


@dataclass(frozen=True)
class Member(Worker):
    """The client half for some clients of a federation: counted from 0 by their engine, known to every key by their
    own number."""

    numbers: Tensor = NOBODY

    def start(self, client: int, like: Tensor | None = None) -> Tree:
        return super().start(int(self.numbers[client]), like)

    def train(self, down: Tree, mine: Tree, data: Tree) -> tuple[Tree, Tree, Tensor]:
        return super().train(down, mine, self._numbered(data))

    def personalise(self, down: Tree, mine: Tree, data: Tree, personal: Personalizer) -> Tree:
        return super().personalise(down, mine, self._numbered(data), personal)

    def calibrate(self, model: Tree, data: Tree, adapter: Adapter) -> Tree:
        return super().calibrate(model, self._numbered(data), adapter)

    def adapt(
        self, model: Tree, data: Tree, adapter: Adapter, protocol: Protocol, trace_rows: int | None = None
    ) -> Tree:
        return super().adapt(model, self._numbered(data), adapter, protocol, trace_rows)

    def _numbered(self, data: Tree) -> Tree:
        """A client's data, with the number that it has in the whole federation."""
        numbers = self.numbers.to(data["id"].device)
        return {**data, "id": numbers.gather(0, data["id"].reshape(1)).reshape(())}


@dataclass(frozen=True)
class Newcomer(Member):
    """The client half for clients that join after training. Their number goes on after those that trained."""

    def personalise(self, down: Tree, mine: Tree, data: Tree, personal: Personalizer) -> Tree:
        key = self.key("join", self._numbered(data)["id"], like=data["id"])
        return self.method.deploy(self.task, down, self.method.welcome(self.task, down, mine, key))


class Part(NamedTuple):
    """The clients of one architecture."""

    name: str
    numbers: Tensor
    """Who they are, ascending."""
    there: Tensor
    """The same on the device, so that a round copies nothing."""
    engine: Engine

    def among(self, cohort: Tensor) -> Tensor:
        """Which of them are in a cohort, as the engine counts them."""
        return torch.isin(self.numbers, cohort.cpu()).nonzero()[:, 0]

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """A round of those that are in the cohort, under their own numbers."""
        try:
            reply = self.engine.train(down, self.among(cohort), round)
        except NonFinite as error:
            raise NonFinite([int(self.numbers[c]) for c in error.clients], round) from None
        own = reply.part._replace(clients=self.there[reply.part.clients])
        faults = tuple(f._replace(client=int(self.numbers[f.client])) for f in reply.faults)
        return Reply(own, reply.up, faults)


class Apart(Private, Mapping[str, Any]):
    """Private state of clients of several architectures; it reads like a tree of what each architecture has."""

    def __init__(self, parts: Mapping[str, tuple[Tensor, Private]]) -> None:
        """By the name of an architecture: the clients that have it, and their state."""
        self._parts = parts

    def __getitem__(self, name: str) -> Private:
        return self._parts[name][1]

    def __iter__(self) -> Iterator[str]:
        return iter(self._parts)

    def __len__(self) -> int:
        return len(self._parts)

    @property
    def clients(self) -> int:
        return sum(len(numbers) for numbers, _ in self._parts.values())

    def take(self, ids: int | Tensor) -> Tree:
        """The state of one client; those of several do not stack."""
        for numbers, own in self._parts.values():
            at = (numbers == ids).nonzero()[:, 0]
            if len(at):
                return own.take(int(at[0]))
        raise IndexError(f"client {ids} is not in the federation")

    def put(self, ids: Tensor, rows: Tree) -> Apart:
        """Refused: the engine of each architecture changes what its own clients have."""
        raise TypeError("private states of several architectures do not stack: change those of one architecture")

    def saved(self) -> Tree:
        return {name: own.saved() for name, (_, own) in self._parts.items()}

    def restored(self, flat: Mapping[str, Tensor], prefix: str) -> Apart:
        parts = self._parts.items()
        return Apart({name: (who, own.restored(flat, f"{prefix}{name}/")) for name, (who, own) in parts})


class Models(NamedTuple):
    """Live models of all clients: those of each part, and which clients these are."""

    parts: tuple[Part, ...]
    handles: tuple[Any, ...]
    first: int
    """The number of the first client."""


class MixedEngine(Engine):
    """One engine per architecture. `workers` has the client half of each; `deal(n)` says which of them the first n
    clients have. Newcomers are numbered after those that train."""

    shards: Shards

    def __init__(
        self,
        workers: Sequence[Worker],
        deal: Callable[[int], list[int]],
        train: Shards,
        device: torch.device,
        backend: Backend,
    ) -> None:
        first = workers[deal(1)[0]]
        super().__init__(first, train, device)
        self._workers, self.deal, self.backend = workers, deal, backend
        self.parts = self._parts(Member, 0, self.shards)
        self._newcomers: dict[int, tuple[Part, ...]] = {}
        self._joined: tuple[Tree, Models] | None = None

    def _parts(self, role: type[Member], first: int, shards: Shards) -> tuple[Part, ...]:
        """The clients of these shards by architecture; the first of them has the number `first`."""
        kinds = torch.tensor(self.deal(first + shards.clients)[first:])
        parts = []
        for kind in kinds.unique().tolist():
            at = (kinds == kind).nonzero()[:, 0]
            numbers, there = first + at, (first + at).to(self.device)
            w = self._workers[kind]
            w.task.public_on(self.device)  # on the device before a round is recorded there
            worker, own = role(w.task, w.method, w.filters, w.seed, w.secret, there), shards.some(at)
            backend = inside(self.backend, worker, own, self.device)
            parts.append(Part(str(kind), numbers, there, backend.open(worker, own, self.device)))
        return tuple(parts)

    @property
    def architectures(self) -> Sequence[Worker]:
        return self._workers

    def worker_of(self, client: int) -> Worker:
        return self._workers[self.deal(client + 1)[-1]]

    @property
    def mine(self) -> Private:
        return Apart({part.name: (part.numbers, part.engine.mine) for part in self.parts})

    @mine.setter
    def mine(self, value: Any) -> None:
        for part in self.parts:
            part.engine.mine = value[part.name]

    def expect(self, cohort: Tensor) -> None:
        for part in self.parts:
            if len(own := part.among(cohort)):
                part.engine.expect(own)

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        before = self.mine
        try:
            replies = self._replies(down, cohort, round)
        except BaseException:  # also Ctrl-C: a round is done for all architectures or for none
            self.mine = before
            raise
        combined = reduce(message.combine, (r.part for r in replies))
        return Reply(combined, replies[0].up, tuple(f for r in replies for f in r.faults))

    def _replies(self, down: Tree, cohort: Tensor, round: int) -> list[Reply]:
        """The round of every architecture that has clients in the cohort; names all clients that are not finite."""
        replies, bad = [], []
        for part in self.parts:
            try:
                replies += [part.train(down, cohort, round)] if len(part.among(cohort)) else []
            except NonFinite as error:
                bad += error.clients
        if bad:
            raise NonFinite(sorted(bad), round)
        return replies

    def deploy(self, down: Tree, mine: Any, personal: Personalizer) -> Models:
        handles = tuple(part.engine.deploy(down, mine[part.name], personal) for part in self.parts)
        return Models(self.parts, handles, 0)

    def join(self, down: Tree, newcomers: int) -> Models:
        first = self.shards.clients
        if newcomers not in self._newcomers:
            blank = Shards.of(torch.zeros_like(self.shards.x[:1]), self.shards.y[:1], [NOBODY.new_zeros(1)] * newcomers)
            self._newcomers[newcomers] = self._parts(Newcomer, first, blank.to(self.device))
        parts = self._newcomers[newcomers]
        if self._joined is None or self._joined[0] is not down or self._joined[1].parts is not parts:
            handles = tuple(part.engine.deploy(down, part.engine.mine, Personalizer()) for part in parts)
            self._joined = down, Models(parts, handles, first)
        return self._joined[1]  # every adapter on every stream asks again, and a welcome is as long as a training

    def model_of(self, models: Models, client: int) -> Tree:
        part, handle, at = _find(models, client)
        return part.engine.model_of(handle, at)

    def calibrated(self, models: Models, held: Shards, adapter: Adapter) -> Models:
        held = held.to(self.device)
        pairs = zip(models.parts, models.handles, strict=True)
        done = [p.engine.calibrated(h, held.some(p.numbers - models.first), adapter) for p, h in pairs]
        return Models(models.parts, tuple(done), models.first)

    def serve(self, models: Models, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        if reason := exchange.mixed_refusal(adapter):
            raise CannotExchange(reason)
        test, done = test.to(self.device), []
        for part, handle in zip(models.parts, models.handles, strict=True):
            worker = self._workers[int(part.name)]
            if reason := adapter.refusal(worker.task, part.engine.model_of(handle, 0)):
                raise ValueError(f"architecture {part.name} of the federation ({worker.task.model}): {reason}")
            own = test.some(part.numbers - models.first)
            done.append(part.engine.serve(handle, own, adapter, protocol, trace))
        order = torch.argsort(torch.cat([part.numbers for part in models.parts]))
        metrics: Tree = tree.map(lambda *xs: torch.cat(xs)[order], *done)
        return metrics

    def close(self) -> None:
        for part in (*self.parts, *(p for parts in self._newcomers.values() for p in parts)):
            part.engine.close()


def inside(backend: Backend, worker: Worker, train: Shards, device: torch.device) -> Backend:
    """The backend of one architecture. Private state stays in memory, where its parts can be put side by side; and
    what chooses for itself starts no processes, because there would be as many pools as architectures."""
    chosen = backend.choose(worker, train, device) if isinstance(backend, Auto) else backend
    if chosen is not backend and isinstance(chosen, Processes):
        return Serial()
    if not isinstance(chosen, Vmap):
        return chosen
    if chosen.private == "mapped":
        raise ValueError("Vmap: private='mapped' must be 'device' or None where clients have several architectures")
    return replace(chosen, private="device")


def _find(models: Models, client: int) -> tuple[Part, Any, int]:
    """The part that a client is in, that part's models, and where it is among them."""
    for part, handle in zip(models.parts, models.handles, strict=True):
        at = (part.numbers == client + models.first).nonzero()[:, 0]
        if len(at):
            return part, handle, int(at[0])
    raise IndexError(f"client {client} is not in the federation")
