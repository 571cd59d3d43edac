"""Ray actors that run clients: the values they are sent, what they do, and how those that die are replaced."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, NoReturn

import numpy as np
import torch
from torch import Tensor

from ...version import __version__
from .engine import ClientRunner, Job
from .process_pool import Failure
from .ray_cluster import Reservation, described, imported
from .shared_memory import pack, unpack

log = logging.getLogger("acclimate")

LARGE = 1 << 26
"""A value of so many bytes is read where it lies in Ray's store; a smaller one is copied."""

Ref = Any
"""Ray's reference to a value that is, or will be, in its store. (Ray is imported only where it is used.)"""
ActorHandle = Any
"""Ray's reference to an actor."""


class ActorsDied(RuntimeError):
    """Actors died, and new ones died too. The message says which clients they had, and what Ray knows."""


class StoredValue(NamedTuple):
    """A value as Ray's store holds it: a small pickle, and the bytes of its tensors, which Ray does not read."""

    body: bytes
    memory: np.ndarray[Any, Any]

    @classmethod
    def of(cls, value: Any, known: Sequence[Tensor] = ()) -> StoredValue:
        """Take a value apart, without the tensors that are `known` to the receiver."""
        packed = pack(value, known)
        memory = np.empty(packed.size, dtype=np.uint8)
        packed.fill(memory)
        return cls(packed.body, memory)

    def open(self, known: Sequence[Tensor] = (), copy: bool = True) -> Any:
        """The value. Without a copy its tensors lie in Ray's store, where nobody can write."""
        memory = self.memory.copy() if copy else self.memory
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes into an argument
            return unpack(self.body, memory, known)


class Greeting(NamedTuple):
    """What an actor says of itself."""

    pid: int
    version: str


class ClientActor:
    """A `ClientRunner` in a Ray actor. Exceptions come back as values, so that the driver raises the client's."""

    _runner: ClientRunner

    def prepare(
        self, recipe: StoredValue, device: str, threads: int, path: list[str]
    ) -> tuple[Failure | None, Greeting]:
        """Receive the method and the data, before the first job. Modules are looked for where the driver finds them."""
        failure = None
        try:
            sys.path.extend(p for p in path if p not in sys.path)
            torch.set_num_threads(threads)
            worker, data, inside = recipe.open(copy=False)
            self._runner = ClientRunner(worker, data.to(device), inside, device)
        except Exception as error:
            failure = Failure.of(error)
        return failure, self.greet()[1]

    def greet(self) -> tuple[Failure | None, Greeting]:
        """Answer, to show that this actor lives."""
        return None, Greeting(os.getpid(), __version__)

    def work(self, call: StoredValue, ids: StoredValue, *own: StoredValue) -> tuple[Failure | None, StoredValue | None]:
        """Run one job. Its last part may be test data, which is large and is read in the store."""
        try:
            parts = [p.open(self._runner.known, copy=p.memory.nbytes < LARGE) for p in (call, ids, *own)]
            return None, StoredValue.of(self._runner(*parts))
        except Exception as error:
            return Failure.of(error), None


class _Task(NamedTuple):
    actor: ActorHandle
    number: int
    result: Ref


class RayActors:
    """Actors with the same method and data. Those that die are replaced, and their jobs run again on others.

    `recipe` refers to a stored (worker, data, inside), from which every actor makes its `ClientRunner`. A job runs
    again `retries` times after deaths; where no actor can be started, `run` waits `patience` seconds.
    """

    def __init__(self, count: int, recipe: Ref, reservation: Reservation, retries: int, patience: float) -> None:
        self._ray, self._recipe, self._reservation = imported(), recipe, reservation
        self._retries, self._patience = retries, patience
        self._joining: dict[Ref, ActorHandle] = {}
        """Actors that have not answered yet whether they live, by the reference to their answer."""
        self._idle: list[ActorHandle] = []
        self._pids: dict[ActorHandle, int] = {}
        self._failed = 0
        """How many actors in a row died before they answered."""
        self.open = True
        for _ in range(count):
            self._add()

    @property
    def pids(self) -> list[int]:
        """The process numbers of the actors that are there, each on its own machine."""
        return list(self._pids.values())

    def run(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        """The results of all jobs, in their order. A job is called for its arguments when an actor is free for it.

        After an exception or an interrupt all actors are ended, so that none goes on with a job for nobody.
        """
        try:
            return self._run(jobs)
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """End the actors."""
        self.open = False
        for actor in {*self._pids, *self._joining.values()}:
            self._kill(actor)
        self._joining, self._idle, self._pids = {}, [], {}

    def _run(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        waiting, deaths = deque(range(len(jobs))), Counter[int]()
        busy: dict[Ref, _Task] = {}
        results: dict[int, Ref] = {}
        while len(results) < len(jobs):
            while waiting and self._idle:
                actor, number = self._idle.pop(), waiting.popleft()
                failure, result = actor.work.options(num_returns=2).remote(*jobs[number]())
                busy[failure] = _Task(actor, number, result)
            ready, _ = self._ray.wait([*self._joining, *busy], timeout=None if busy else self._patience)
            if not ready:
                self._raise_no_actor()
            if ready[0] in self._joining:
                self._welcome(ready[0])
                continue
            task = busy.pop(ready[0])
            try:
                failure = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as death:
                deaths[task.number] += 1
                self._replace(task.actor, death, jobs[task.number], deaths[task.number])
                waiting.appendleft(task.number)
                continue
            if failure is not None:
                failure.throw(f"the actor with pid {self._pids[task.actor]}")
            results[task.number] = task.result
            self._idle.append(task.actor)
        return [results[number] for number in range(len(jobs))]

    def _add(self) -> None:
        cpus, gpus = self._reservation
        remote = self._ray.remote(ClientActor)
        actor = remote.options(num_cpus=cpus, num_gpus=gpus, max_restarts=0, max_task_retries=0).remote()
        device, threads = "cuda" if gpus else "cpu", max(int(cpus), 1)
        self._joining[actor.prepare.remote(self._recipe, device, threads, sys.path)] = actor

    def _welcome(self, answer: Ref) -> None:
        actor = self._joining.pop(answer)
        try:
            failure, greeting = self._ray.get(answer)
        except self._ray.exceptions.RayActorError as death:
            self._failed += self._pids.pop(actor, None) is None
            if self._failed > self._retries:
                raise ActorsDied(f"{self._failed} Ray actors in a row died before they could work: {death}") from death
            self._add()
            return
        if greeting.version != __version__:  # before its failure, which may be a consequence
            raise RuntimeError(
                f"the Ray cluster has acclimate {greeting.version}, but this process has {__version__}; "
                "install the same version on every machine of the cluster"
            )
        if failure is not None:
            failure.throw(f"the actor with pid {greeting.pid}")
        self._failed = 0
        self._pids[actor] = greeting.pid
        self._idle.append(actor)

    def _replace(self, actor: ActorHandle, death: Exception, job: Callable[[], Job], deaths: int) -> None:
        clients = job()[1].open()
        pid = self._pids.pop(actor)
        if deaths > self._retries:
            raise ActorsDied(
                f"{deaths} Ray actors died, each while it had client(s) {_some(clients)}; the last: {death}"
            ) from death
        log.warning("a Ray actor (pid %d) died; client(s) %s run again on another", pid, _some(clients))
        self._kill(actor)  # Ray may only have lost sight of it
        self._add()
        # What ended one actor may have ended others, and that would count against the clients that they get next.
        for other in self._idle:
            self._joining[other.greet.remote()] = other
        self._idle = []

    def _kill(self, actor: ActorHandle) -> None:
        with contextlib.suppress(Exception):  # it, or the whole cluster, may be gone
            self._ray.kill(actor)

    def _raise_no_actor(self) -> NoReturn:
        free = described(self._ray.available_resources())
        raise ActorsDied(
            f"no Ray actor could be started within patience={self._patience:g} seconds: one needs {self._reservation}, "
            f"and the cluster has {free} free"
        )


def _some(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
