"""Clients in workers elsewhere: in other processes (`processes`), or on other machines (`ray`).

The engine owns all private state. Workers keep the training data and nothing else between two calls: a job brings the
private state of some clients and takes the new one back. The engine puts new states in place only when those of all
clients are finite. So a worker that dies takes nothing with it, and its clients can run again elsewhere.

With `inside="serial"` messages are reduced in groups of clients that depend on the cohort alone, and combined in the
order of the cohort. So the bits of the result depend neither on the number of workers nor on which of them is quicker;
for cohorts of up to `GROUPS` clients they are the bits of Serial with one thread. With `inside="vmap"` there is one
group per worker, so the last bits depend on the number of workers.
"""

from __future__ import annotations

import functools
from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
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
    exchange,
    message,
    tree,
)
from ..serial import Serial, stacked_start
from ..vmap.engine import Vmap
from .stretches import Stretches

GROUPS = 64
"""The largest number of groups of clients with inside="serial": enough to keep many workers evenly busy, and a bound on
memory, which holds one reduced message per group."""

Inside = Literal["serial", "vmap"]
# Without capture: a worker gets other clients in every round, so a recording would seldom be replayed.
# With examples where the worker has put them: `SomeClients` knows whose rows it holds.
INSIDE: dict[str, Backend] = {"serial": Serial(), "vmap": Vmap(capture=False, examples="device")}

Handle = Any
"""A value on its way to or from workers: `Sealed` for processes, an object of Ray's store for actors."""
Job = tuple[Handle, ...]
"""The arguments of one call of a worker's `ClientRunner`."""


# --- in the workers ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class SomeClients(Shards):
    """Some clients of a federation, counted from 0 here. Keys are derived from their numbers in the federation."""

    ids: Tensor
    """The clients' numbers in the federation."""

    @classmethod
    def among(cls, all: Shards, ids: Tensor) -> SomeClients:
        """The clients `ids` of a federation; the examples are not copied."""
        return cls(all.x, all.y, all.rows[ids], all.n[ids], ids)

    def to(self, device: torch.device | str) -> SomeClients:
        """The same clients on a device."""
        return SomeClients(*(t.to(device) for t in (self.x, self.y, self.rows, self.n, self.ids)))

    def tree(self, rows: Tensor, n: Tensor, ids: Tensor, round: Tensor, ragged: bool) -> Tree:
        """Client data, with the client's number in the federation."""
        own = self.ids.gather(0, ids.reshape(1)).reshape(())
        return super().tree(rows, n, own, round, ragged)


class GroupResult(NamedTuple):
    """One round of a group of clients: their reduced messages and new private states, or who is not finite."""

    nonfinite: list[int]
    """Clients with values that are not finite; where there are any, nothing else is set."""
    reply: Reply | None = None
    mine: Tree | None = None


@dataclass(frozen=True)
class ClientRunner:
    """What a worker holds, and how it runs clients for the engine: every job calls one method by its name.

    Arguments and results lie in main memory, whatever the device.
    """

    worker: Worker
    data: Shards
    inside: Inside
    device: str = "cpu"

    @property
    def known(self) -> tuple[Tensor, ...]:
        """Tensors that the engine does not send again: test data often lies in the same array as training data."""
        return (self.data.x, self.data.y)

    def __call__(self, call: tuple[str, tuple[Any, ...]], ids: list[int], *own: Any) -> Any:
        """Run one job: the arguments that all jobs of a call share, the clients, and the arguments of these clients."""
        name, common = call
        return getattr(self, name)(*common, torch.tensor(ids), *own)

    def train(self, down: Tree, round: int, ids: Tensor, mine: Tree) -> GroupResult:
        """One round of some clients."""
        return self._round(self._engine(self.data, ids), down, round, ids, mine)

    def stretch(
        self, down: Tree, round: int, how: tuple[Any, ...], ids: Tensor, mine: Tree, test: Shards
    ) -> GroupResult:
        """A stretch of some clients' streams; `how` is what `exchange.serving` wants to know."""
        half = replace(self, worker=exchange.serving(self.worker, *how))
        return self._round(half._engine(test, ids), down, round, ids, mine)

    def _round(self, engine: Engine, down: Tree, round: int, ids: Tensor, mine: Tree) -> GroupResult:
        engine.mine = self._on_device(mine)
        try:
            reply = engine.train(self._on_device(down), torch.arange(len(ids)), round)
        except NonFinite as error:
            return GroupResult([int(ids[c]) for c in error.clients])
        sums, weights, each = (_in_memory(t) for t in (reply.part.sums, reply.part.weights, reply.part.each))
        part = message.Partial(ids[_in_memory(reply.part.clients)], sums, weights, each)
        return GroupResult([], Reply(part, reply.up), _in_memory(engine.mine))

    def deploy(self, down: Tree, personal: Personalizer, ids: Tensor, mine: Tree) -> Any:
        """The live models of some clients: a handle of the engine inside the worker."""
        return _in_memory(
            self._engine(self.data, ids).deploy(self._on_device(down), Stacked(self._on_device(mine)), personal)
        )

    def join(self, down: Tree, ids: Tensor) -> Any:
        """The live models of newcomers, who are numbered after the clients that trained."""
        fresh = [self.worker.start(self.data.clients + i, like=ids) for i in ids.tolist()]
        models = [self.worker.method.deploy(self.worker.task, down, mine) for mine in fresh]
        return models if self.inside == "serial" else tree.stack(models)

    def calibrated(self, adapter: Adapter, ids: Tensor, models: Any, held: Shards) -> Any:
        """The live models of some clients with what an adapter knows of their validation examples."""
        engine = self._engine(held, ids)
        return _in_memory(engine.calibrated(self._on_device(models), SomeClients.among(held, ids), adapter))

    def serve(self, adapter: Adapter, protocol: Protocol, trace: bool, ids: Tensor, models: Any, test: Shards) -> Tree:
        """The metrics of some clients."""
        engine = self._engine(test, ids)
        return engine.serve(self._on_device(models), SomeClients.among(test, ids), adapter, protocol, trace)

    def _engine(self, data: Shards, ids: Tensor) -> Engine:
        return INSIDE[self.inside].open(self.worker, SomeClients.among(data, ids), torch.device(self.device))

    def _on_device(self, value: Any) -> Any:
        return _moved(value, self.device)


def _in_memory(value: Any) -> Any:
    return _moved(value, "cpu")


def _moved(value: Any, device: str) -> Any:
    """A tree, or a list of trees, on a device."""
    return [tree.to(t, device) for t in value] if isinstance(value, list) else tree.to(value, device)


# --- in the process that runs the round loop -----------------------------------------------------------------------


class ModelGroups(NamedTuple):
    """Live models: groups of clients, and a handle of the models of each group."""

    groups: list[Tensor]
    handles: list[Handle]


class WorkersEngine(Engine):
    """Holds the private states of all clients in memory. A subclass holds the workers."""

    shards: Shards

    def __init__(self, worker: Worker, train: Shards, inside: Inside) -> None:
        super().__init__(worker, train, torch.device("cpu"))
        self.inside = inside
        self.mine = stacked_start(worker, self.shards)
        self._last_test: tuple[Shards, Handle] | None = None

    @abstractmethod
    def _start_workers(self) -> int:
        """Start the workers if they are not there. Returns how many there are."""

    @abstractmethod
    def _run_jobs(self, jobs: Sequence[Callable[[], Job]]) -> list[Handle]:
        """The results of all jobs, in their order. A job is called for its arguments when a worker is free for it."""

    @abstractmethod
    def _for_one_job(self, value: Any) -> Handle:
        """A handle of a value that one job needs."""

    @abstractmethod
    def _for_many_jobs(self, value: Any, known: Sequence[Tensor] = ()) -> Handle:
        """A handle of a value that many jobs need, without the tensors that are `known` to the workers."""

    @abstractmethod
    def _values(self, handles: list[Handle]) -> list[Any]:
        """The values of handles."""

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        reply, self.mine = self.round_of("train", (down, round), self.mine, self.shards.n, cohort, lambda: ())
        return reply

    def round_of(
        self, name: str, common: tuple[Any, ...], mine: Private, sizes: Tensor, cohort: Tensor, data: Callable[[], Job]
    ) -> tuple[Reply, Private]:
        """A round of the cohort, as `ClientRunner` has it under this name: the reply, and all private states after it.

        `common` begins with what is sent down and the number of the round; `data` gives what every job needs besides.
        """
        groups = [cohort[g] for g in self._groups(sizes[cohort])]
        states = self._states(mine, groups)
        handles = self._run(name, common, groups, sizes, lambda i: (*states(i), *data()))
        results: list[GroupResult] = self._values(handles)
        if nonfinite := sorted(c for r in results for c in r.nonfinite):
            raise NonFinite(nonfinite, common[1])
        replies = [r.reply for r in results if r.reply is not None]
        new = tree.map(lambda *xs: torch.cat(xs), *(r.mine for r in results))
        after = mine.put(torch.cat(groups), new)
        return Reply(functools.reduce(message.combine, (r.part for r in replies)), replies[0].up), after

    def deploy(self, down: Tree, mine: Private, personal: Personalizer) -> ModelGroups:
        groups = self._groups(self.shards.n)
        states = self._states(mine, groups)
        return ModelGroups(groups, self._run("deploy", (down, personal), groups, self.shards.n, states))

    def model_of(self, models: ModelGroups, client: int) -> Tree:
        group = next(i for i, g in enumerate(models.groups) if client in g)
        at = int((models.groups[group] == client).nonzero())
        handle = self._values([models.handles[group]])[0]
        one: Tree = handle[at] if self.inside == "serial" else tree.take(handle, at)
        return one

    def join(self, down: Tree, newcomers: int) -> ModelGroups:
        sizes = torch.ones(newcomers, dtype=torch.int64)  # they have no examples yet
        groups = self._groups(sizes)
        return ModelGroups(groups, self._run("join", (down,), groups, sizes, lambda _: ()))

    def calibrated(self, models: ModelGroups, held: Shards, adapter: Adapter) -> ModelGroups:
        def arguments(i: int) -> Job:
            return models.handles[i], self.test_handle(held)

        return ModelGroups(models.groups, self._run("calibrated", (adapter,), models.groups, held.n, arguments))

    def serve(
        self, models: ModelGroups, test: Shards, adapter: Adapter, protocol: Protocol, trace: bool = False
    ) -> Tree:
        if exchange.exchanges(adapter):
            return exchange.serve(
                self.worker,
                self._stacked(models),
                test,
                adapter,
                protocol,
                lambda half: Stretches(self, test, (adapter, protocol, half.method.uplink == {})),
            )

        def arguments(i: int) -> Job:
            return models.handles[i], self.test_handle(test)

        handles = self._run("serve", (adapter, protocol, trace), models.groups, test.n, arguments)
        order = torch.argsort(torch.cat(models.groups))
        metrics: Tree = tree.map(lambda *xs: torch.cat(xs)[order], *self._values(handles))
        return metrics

    def _stacked(self, models: ModelGroups) -> Tree:
        """The live models of all clients in this process: between two stretches nothing stays in a worker."""
        found = self._values(models.handles)
        parts = [tree.stack(f) for f in found] if self.inside == "serial" else found
        order = torch.argsort(torch.cat(models.groups))
        stacked: Tree = tree.map(lambda *xs: torch.cat(xs)[order], *parts)
        return stacked

    def close(self) -> None:
        self._last_test = None

    def _groups(self, sizes: Tensor) -> list[Tensor]:
        """Positions of the clients that share one job."""
        if self.inside == "vmap":
            return shares(sizes, self._start_workers())
        return list(torch.arange(len(sizes)).split(-(-len(sizes) // GROUPS)))

    def _states(self, mine: Private, groups: list[Tensor]) -> Callable[[int], Job]:
        """The argument that the job of group i alone gets: the private states of its clients."""
        return lambda i: (self._for_one_job(mine.take(groups[i])),)

    def test_handle(self, test: Shards) -> Handle:
        """A handle of test data. The last one is kept, because validation needs the same data after every round."""
        if self._last_test is None or self._last_test[0] is not test:
            self._last_test = (test, self._for_many_jobs(test, (self.shards.x, self.shards.y)))
        return self._last_test[1]

    def _run(
        self, name: str, common: tuple[Any, ...], groups: list[Tensor], sizes: Tensor, arguments: Callable[[int], Job]
    ) -> list[Handle]:
        """Run one job per group, the largest first. The results are in the order of the groups."""
        self._start_workers()
        call = self._for_many_jobs((name, common))
        order = sorted(range(len(groups)), key=lambda i: -int(sizes[groups[i]].sum()))

        def job(i: int) -> Job:
            return (call, self._for_one_job(groups[i].tolist()), *arguments(i))

        results = self._run_jobs([functools.partial(job, i) for i in order])
        return [handle for _, handle in sorted(zip(order, results, strict=True), key=lambda pair: pair[0])]


def shares(sizes: Tensor, workers: int) -> list[Tensor]:
    """Positions for each worker: the largest first, each for the worker with the least so far. No share is empty."""
    members: list[list[int]] = [[] for _ in range(workers)]
    load = [0] * workers
    for i in torch.argsort(sizes, descending=True, stable=True).tolist():
        least = load.index(min(load))
        members[least].append(i)
        load[least] += max(int(sizes[i]), 1)
    return [torch.tensor(sorted(m)) for m in members if m]
