"""Ray actors that run clients: what travels to them, what they do, and the crew that replaces those that die."""

from __future__ import annotations

import contextlib
import logging
import os
import sys
import warnings
from collections import Counter, deque
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ...version import __version__
from .engine import Job, Site
from .process_pool import Failure
from .ray_cluster import imported, offer
from .shared_memory import pack, unpack

if TYPE_CHECKING:
    from .ray import Ray

log = logging.getLogger("acclimate")

LARGE = 1 << 26
"""Bytes from which an actor reads a value where it lies in Ray's store instead of copying it."""

Ref = Any
"""An object of Ray's: a value that is, or will be, in its store. (Ray is imported only where it is used.)"""
Handle = Any
"""An actor of Ray's."""


class ActorsDied(RuntimeError):
    """Actors died and replacing them did not help: says whose turn it was, and what Ray knows."""


class Parcel(NamedTuple):
    """A value for Ray's store: a small pickle, and the bytes of its tensors, which Ray does not look into."""

    body: bytes
    memory: np.ndarray[Any, Any]

    @classmethod
    def of(cls, value: Any, known: Sequence[Tensor] = ()) -> Parcel:
        """Take a value apart, without the tensors that are `known` to the receiver."""
        packed = pack(value, known)
        memory = np.empty(packed.size, dtype=np.uint8)
        packed.fill(memory)
        return cls(packed.body, memory)

    def open(self, known: Sequence[Tensor] = (), copy: bool = True) -> Any:
        """The value. Without a copy its tensors lie in Ray's store, where writing is not possible."""
        memory = self.memory.copy() if copy else self.memory
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message=".*not writable")  # nothing here writes into an argument
            return unpack(self.body, memory, known)


class Hello(NamedTuple):
    """Who an actor is."""

    pid: int
    version: str


class Actor:
    """A site that Ray runs. Exceptions come back as values, so that the driver raises what the client raised."""

    _site: Site

    def learn(self, recipe: Parcel, device: str, threads: int, path: list[str]) -> tuple[Failure | None, Hello]:
        """Take the method and the data; jobs may come. Modules are looked for where the driver finds them too."""
        failure = None
        try:
            sys.path.extend(p for p in path if p not in sys.path)
            torch.set_num_threads(threads)
            worker, data, inside = recipe.open(copy=False)
            self._site = Site(worker, data.to(device), inside, device)
        except Exception as error:
            failure = Failure.of(error)
        return failure, self.hello()[1]

    def hello(self) -> tuple[Failure | None, Hello]:
        """Whether anybody is there."""
        return None, Hello(os.getpid(), __version__)

    def work(self, call: Parcel, ids: Parcel, *own: Parcel) -> tuple[Failure | None, Parcel | None]:
        """One job of the site; its last part may be test data, which is large and stays in the store."""
        try:
            parts = [p.open(self._site.known, copy=p.memory.nbytes < LARGE) for p in (call, ids, *own)]
            return None, Parcel.of(self._site(*parts))
        except Exception as error:
            return Failure.of(error), None


class _Task(NamedTuple):
    actor: Handle
    number: int
    result: Ref


class Crew:
    """Actors that hold the same site. Those that die are replaced, and what they were doing is done again."""

    def __init__(self, options: Ray, count: int, recipe: Ref) -> None:
        self._ray, self._options, self._recipe = imported(), options, recipe
        self._joining: dict[Ref, Handle] = {}
        """Actors that have been asked whether they are there, by the answer they owe."""
        self._idle: list[Handle] = []
        self._pids: dict[Handle, int] = {}
        self._failed = 0
        """Actors that died one after the other before they answered."""
        self.open = True
        for _ in range(count):
            self._hire()

    @property
    def pids(self) -> list[int]:
        """The process numbers of the actors that are there, each on its own machine."""
        return list(self._pids.values())

    def run(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        """What the actors make of every job, in the order of the jobs. A job is made when an actor is free for it.

        After an exception or an interrupt the actors are ended: none is left with a job that nobody awaits.
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
        todo, deaths = deque(range(len(jobs))), Counter[int]()
        busy: dict[Ref, _Task] = {}
        results: dict[int, Ref] = {}
        while len(results) < len(jobs):
            while todo and self._idle:
                actor, number = self._idle.pop(), todo.popleft()
                told, result = actor.work.options(num_returns=2).remote(*jobs[number]())
                busy[told] = _Task(actor, number, result)
            ready, _ = self._ray.wait([*self._joining, *busy], timeout=None if busy else self._options.patience)
            if not ready:
                self._nobody()
            if ready[0] in self._joining:
                self._welcome(ready[0])
                continue
            task = busy.pop(ready[0])
            try:
                failure = self._ray.get(ready[0])
            except self._ray.exceptions.RayActorError as death:
                deaths[task.number] += 1
                self._replace(task.actor, death, jobs[task.number], deaths[task.number])
                todo.appendleft(task.number)
                continue
            if failure is not None:
                failure.throw(f"the actor with pid {self._pids[task.actor]}")
            results[task.number] = task.result
            self._idle.append(task.actor)
        return [results[number] for number in range(len(jobs))]

    def _hire(self) -> None:
        o = self._options
        remote = self._ray.remote(Actor).options(num_cpus=o.cpus, num_gpus=o.gpus, max_restarts=0, max_task_retries=0)
        actor = remote.remote()
        device, threads = "cuda" if o.gpus else "cpu", max(int(o.cpus), 1)
        self._joining[actor.learn.remote(self._recipe, device, threads, sys.path)] = actor

    def _welcome(self, answer: Ref) -> None:
        actor = self._joining.pop(answer)
        try:
            failure, hello = self._ray.get(answer)
        except self._ray.exceptions.RayActorError as death:
            self._failed += self._pids.pop(actor, None) is None
            if self._failed > self._options.retries:
                raise ActorsDied(f"{self._failed} Ray actors in a row died before they could work: {death}") from death
            self._hire()
            return
        if failure is not None:
            failure.throw(f"the actor with pid {hello.pid}")
        if hello.version != __version__:
            raise RuntimeError(f"the Ray cluster has acclimate {hello.version}, but this process has {__version__}")
        self._failed = 0
        self._pids[actor] = hello.pid
        self._idle.append(actor)

    def _replace(self, actor: Handle, death: Exception, job: Callable[[], Job], deaths: int) -> None:
        who = job()[1].open()
        pid = self._pids.pop(actor)
        if deaths > self._options.retries:
            raise ActorsDied(
                f"{deaths} Ray actors died, each while it had client(s) {_some(who)}; the last: {death}"
            ) from death
        log.warning("a Ray actor (pid %d) died; client(s) %s run again on another", pid, _some(who))
        self._kill(actor)  # Ray may only have lost sight of it
        self._hire()
        # Whatever ended one may have ended others, which would count against the clients that they are handed next.
        for other in self._idle:
            self._joining[other.hello.remote()] = other
        self._idle = []

    def _kill(self, actor: Handle) -> None:
        with contextlib.suppress(Exception):  # it, or the whole cluster, may be gone
            self._ray.kill(actor)

    def _nobody(self) -> None:
        o = self._options
        raise ActorsDied(
            f"no Ray actor could be started within patience={o.patience:g} seconds: one needs cpus={o.cpus:g}, "
            f"gpus={o.gpus:g}, and the cluster has {offer(self._ray.available_resources())} free"
        )


def _some(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
