"""Clients spread over workers elsewhere: other processes (`processes`), other machines (`ray`).

The engine owns all private state. Workers keep the training data and nothing else between two calls: a job brings the
private state of a few clients and takes the new one back, which is put in place only when all clients are known to be
finite. So a worker that dies takes nothing with it, and its clients can run again elsewhere.

With `inside="serial"` messages are reduced in groups of clients that depend on the cohort alone, and combined in its
order. So the result has the same bits whatever the number of workers and whoever was quicker; for cohorts of up to
`GROUPS` clients, the bits of Serial with one thread. With `inside="vmap"` there is one group per worker, so the last
bits depend on their number.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
from torch import Tensor

from ...core import (
    Adapter,
    Backend,
    Engine,
    NonFinite,
    Personalizer,
    Private,
    Protocol,
    Reply,
    Shards,
    Stacked,
    Tree,
    Worker,
    message,
    tree,
)
from ..serial import Serial, stacked_start
from ..vmap.engine import Vmap

GROUPS = 64
"""At most so many groups of clients are handed out (inside="serial"): enough to keep many workers evenly busy, and a
bound on memory, which holds one reduced message per group."""

Inside = Literal["serial", "vmap"]
# Not captured: a worker gets other clients in every round, so a recording would seldom be replayed.
# And with examples where the worker has put them: a group of a worker's own data knows whose rows it holds.
INSIDE: dict[str, Backend] = {"serial": Serial(), "vmap": Vmap(capture=False, examples="device")}

Handle = Any
"""A value on its way to or from workers: sealed, an object of Ray's, or whatever an engine sends."""
Job = tuple[Handle, ...]
"""The arguments of one call of a worker's `Site`."""


# --- in the workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Few(Shards):
    """Some clients of a federation: counted from 0 here, known to every key by their own number."""

    ids: Tensor

    @classmethod
    def among(cls, all: Shards, ids: Tensor) -> Few:
        """The clients `ids` of a federation; the examples are not copied."""
        return cls(all.x, all.y, all.rows[ids], all.n[ids], ids)

    def to(self, device: torch.device | str) -> Few:
        """The same clients on a device."""
        return Few(*(t.to(device) for t in (self.x, self.y, self.rows, self.n, self.ids)))

    def tree(self, rows: Tensor, n: Tensor, ids: Tensor, round: Tensor, ragged: bool) -> Tree:
        """Client data, with the client's own number."""
        own = self.ids.gather(0, ids.reshape(1)).reshape(())
        return super().tree(rows, n, own, round, ragged)


class Trained(NamedTuple):
    """What a group of clients leaves behind: their reduced messages and new private states, or who is not finite."""

    bad: list[int]
    reply: Reply | None = None
    mine: Tree | None = None


@dataclass(frozen=True)
class Site:
    """What a worker holds, and what it does for the engine: every job calls one method by its name.

    What comes and what goes lies in main memory, whatever the device.
    """

    worker: Worker
    data: Shards
    inside: Inside
    device: str = "cpu"

    @property
    def known(self) -> tuple[Tensor, ...]:
        """Tensors that are not sent again: test data often lies in the same array as training data."""
        return (self.data.x, self.data.y)

    def __call__(self, call: tuple[str, tuple[Any, ...]], ids: list[int], *own: Any) -> Any:
        """Run one job: what all jobs of a call have in common, which clients, and what is theirs."""
        name, common = call
        return getattr(self, name)(*common, torch.tensor(ids), *own)

    def train(self, down: Tree, round: int, ids: Tensor, mine: Tree) -> Trained:
        """One round of a few clients."""
        engine = self._engine(self.data, ids)
        engine.mine = self._here(mine)
        try:
            reply = engine.train(self._here(down), torch.arange(len(ids)), round)
        except NonFinite as error:
            return Trained([int(ids[c]) for c in error.clients])
        sums, weights, each = (_home(t) for t in (reply.part.sums, reply.part.weights, reply.part.each))
        part = message.Partial(ids[_home(reply.part.clients)], sums, weights, each)
        return Trained([], Reply(part, reply.up), _home(engine.mine))

    def deploy(self, down: Tree, personal: Personalizer, ids: Tensor, mine: Tree) -> Any:
        """A few clients' live models: a handle of the engine inside."""
        return _home(self._engine(self.data, ids).deploy(self._here(down), Stacked(self._here(mine)), personal))

    def join(self, down: Tree, ids: Tensor) -> Any:
        """The same for newcomers, who are numbered after the clients that trained."""
        fresh = [self.worker.start(self.data.clients + i, like=ids) for i in ids.tolist()]
        models = [self.worker.method.deploy(self.worker.task, down, mine) for mine in fresh]
        return models if self.inside == "serial" else tree.stack(models)

    def serve(self, adapter: Adapter, protocol: Protocol, trace: bool, ids: Tensor, models: Any, test: Shards) -> Tree:
        """The metrics of a few clients."""
        engine = self._engine(test, ids)
        return engine.serve(self._here(models), Few.among(test, ids), adapter, protocol, trace)

    def _engine(self, data: Shards, ids: Tensor) -> Engine:
        return INSIDE[self.inside].open(self.worker, Few.among(data, ids), torch.device(self.device))

    def _here(self, value: Any) -> Any:
        return _moved(value, self.device)


def _home(value: Any) -> Any:
    return _moved(value, "cpu")


def _moved(value: Any, device: str) -> Any:
    """A tree, or a list of trees, on a device."""
    return [tree.to(t, device) for t in value] if isinstance(value, list) else tree.to(value, device)


# --- in the process that runs the round loop -----------------------------------------------------------------------


class Models(NamedTuple):
    """Live models: groups of clients, and where the models of each group are."""

    groups: list[Tensor]
    handles: list[Handle]


class SpreadEngine(Engine):
    """Holds the clients' private state in memory; a subclass holds the workers."""

    shards: Shards

    def __init__(self, worker: Worker, train: Shards, inside: Inside) -> None:
        super().__init__(worker, train, torch.device("cpu"))
        self.inside = inside
        self.mine = stacked_start(worker, self.shards)
        self._last_test: tuple[Shards, Handle] | None = None

    @abstractmethod
    def _start(self) -> int:
        """See to it that the workers are there; how many they are."""

    @abstractmethod
    def _do(self, jobs: Sequence[Callable[[], Job]]) -> list[Handle]:
        """What a worker's `Site` makes of every job, in the order of the jobs. A job is made when it is handed out."""

    @abstractmethod
    def _hand(self, value: Any) -> Handle:
        """A value that goes with one job."""

    @abstractmethod
    def _share(self, value: Any, known: Sequence[Tensor] = ()) -> Handle:
        """A value that goes with many jobs, without the tensors that are `known` to the site."""

    @abstractmethod
    def _open(self, handles: list[Handle]) -> list[Any]:
        """The values behind handles."""

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        groups = [cohort[g] for g in self._groups(self.shards.n[cohort])]
        handles = self._run("train", (down, round), groups, self.shards.n, self._states(self.mine, groups))
        done: list[Trained] = self._open(handles)
        if bad := sorted(c for d in done for c in d.bad):
            raise NonFinite(bad, round)
        replies = [d.reply for d in done if d.reply is not None]
        new = tree.map(lambda *xs: torch.cat(xs), *(d.mine for d in done))
        self.mine = self.mine.put(torch.cat(groups), new)
        return Reply(functools.reduce(message.combine, (r.part for r in replies)), replies[0].up)

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> Models:
        groups = self._groups(self.shards.n)
        states = self._states(mine, groups)
        return Models(groups, self._run("deploy", (down, personal), groups, self.shards.n, states))

    def model_of(self, models: Models, client: int) -> Tree:
        group = next(i for i, g in enumerate(models.groups) if client in g)
        at = int((models.groups[group] == client).nonzero())
        handle = self._open([models.handles[group]])[0]
        one: Tree = handle[at] if self.inside == "serial" else tree.take(handle, at)
        return one

    def join(self, down: Tree, newcomers: int) -> Models:
        sizes = torch.ones(newcomers, dtype=torch.int64)  # they have no examples yet
        groups = self._groups(sizes)
        return Models(groups, self._run("join", (down,), groups, sizes, lambda _: ()))

    def serve(self, models: Models, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False) -> Tree:
        def own(i: int) -> Job:
            return models.handles[i], self._shared(test)

        handles = self._run("serve", (adapter, protocol, trace), models.groups, test.n, own)
        order = torch.argsort(torch.cat(models.groups))
        metrics: Tree = tree.map(lambda *xs: torch.cat(xs)[order], *self._open(handles))
        return metrics

    def close(self) -> None:
        self._last_test = None

    def _groups(self, sizes: Tensor) -> list[Tensor]:
        """Positions of clients that are handed out together."""
        if self.inside == "vmap":
            return shares(sizes, self._start())
        return list(torch.arange(len(sizes)).split(-(-len(sizes) // GROUPS)))

    def _states(self, mine: Private, groups: list[Tensor]) -> Callable[[int], Job]:
        """What the job of group i gets besides what all jobs get: the private state of its clients."""
        return lambda i: (self._hand(mine.take(groups[i])),)

    def _shared(self, test: Shards) -> Handle:
        """Test data with the workers; the last is kept, because validation asks for the same after every round."""
        if self._last_test is None or self._last_test[0] is not test:
            self._last_test = (test, self._share(test, (self.shards.x, self.shards.y)))
        return self._last_test[1]

    def _run(
        self, name: str, common: tuple[Any, ...], groups: list[Tensor], sizes: Tensor, own: Callable[[int], Job]
    ) -> list[Handle]:
        """One job per group, handed out the largest first; the results in the order of the groups."""
        self._start()
        call = self._share((name, common))
        order = sorted(range(len(groups)), key=lambda i: -int(sizes[groups[i]].sum()))

        def job(i: int) -> Job:
            return (call, self._hand(groups[i].tolist()), *own(i))

        results = self._do([functools.partial(job, i) for i in order])
        return [handle for _, handle in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


def shares(sizes: Tensor, workers: int) -> list[Tensor]:
    """Positions for each worker: the largest first, each to the worker with the least so far. No share is empty."""
    members: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for i in torch.argsort(sizes, descending=True, stable=True).tolist():
        least = load.index(min(load))
        members[least].append(i)
        load[least] += max(int(sizes[i]), 1)
    return [torch.tensor(sorted(m)) for m in members if m]
