"""Clients spread over Ray actors: the cores and GPUs of one machine, or of many.

`spread` says who owns what, and which bits to expect. The private state of all clients is held by the driver, the
process that runs the round loop, and is what its checkpoints hold; actors keep none of it between two jobs. An actor
that dies loses nothing: another takes its place, and its clients run again from the state that the driver has.

Training data goes to Ray's object store once: one copy per machine, which all actors there read in place. Test data
and what all clients of a call share go there once per call. We write no pickle to disk or network. Ray serialises
between its processes, by pickle, and spills its store to local disk when that is full; what we hand it are records as
plain configuration, and the bytes of tensors beside them (see `sealed`). So the machines of a cluster need the same
acclimate, and the modules that the records come from.

Ray's ports ask for no password: whoever reaches them can run code. A cluster started here listens on this machine
alone; one given by `address` belongs in a network that you trust.
"""

from __future__ import annotations

import contextlib
import logging
import math
import os
import sys
import threading
import warnings
import weakref
from collections import Counter, deque
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
import torch
from torch import Tensor

from ..core import check
from ..core.backend import Backend, Reply
from ..core.shards import Shards
from ..core.tree import Tree
from ..core.worker import Worker
from ..version import __version__
from .pool import Failure
from .sealed import pack, unpack
from .spread import INSIDE, Inside, Job, Site, SpreadEngine

log = logging.getLogger("acclimate")

LOCAL = {
    "RAY_USAGE_STATS_ENABLED": "0",
    "RAY_ENABLE_WINDOWS_OR_OSX_CLUSTER": "0",  # despite its name, and on every system: listen on loopback alone
    "RAY_worker_niceness": "0",  # clients are no background work
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",  # the coming default; without it Ray warns
}
"""Environment of a cluster that is started here, where the user has not set it. Ray reads it when it is imported."""

LARGE = 1 << 26
"""Bytes from which an actor reads a value where it lies in Ray's store instead of copying it."""
ROUNDING = 1e-9
"""Ten actors with gpus=0.1 fit on a GPU, whatever 1 / 0.1 is in floating point."""

Ref = Any
"""An object of Ray's: a value that is, or will be, in its store. (Ray is imported only where it is used.)"""
Handle = Any
"""An actor of Ray's."""


@dataclass(frozen=True)
class Ray(Backend):
    """Clients on Ray actors. Needs the extra `ray`."""

    address: str | None = None
    """A running cluster ("auto", "host:6379", "ray://host:10001"). None: the one that this process is connected to, or
    else one of its own on this machine, which ends with the run."""
    actors: int | None = None
    """None: as many as the cluster has free room for at the first call. Never more than there are clients."""
    cpus: float = 1.0
    """Cores that an actor reserves. It runs as many torch threads, at least one."""
    gpus: float = 0.0
    """The share of a GPU that an actor reserves, up to 1. Above 0, clients run on CUDA."""
    inside: Inside = "serial"
    """How an actor runs the clients it is handed: one after the other, or vectorised."""
    retries: int = 2
    """How often clients run again because their actor died, before that is raised."""
    patience: float = 300.0
    """Seconds to wait for an actor while there is none, before that is raised."""

    def __post_init__(self) -> None:
        if self.actors is not None:
            check.at_least(self, "actors", 1)
        check.positive(self, "cpus")
        check.within(self, "gpus", 0.0, 1.0)
        check.one_of(self, "inside", tuple(INSIDE))
        check.at_least(self, "retries", 0)
        check.positive(self, "patience")

    def open(self, worker: Worker, train: Shards, device: torch.device) -> RayEngine:
        return RayEngine(worker, train, device, self)


class ActorsDied(RuntimeError):
    """Actors died and replacing them did not help: says whose turn it was, and what Ray knows."""


# --- on the way ----------------------------------------------------------------------------------------------------


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


# --- in the actors -------------------------------------------------------------------------------------------------


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


# --- in the driver -------------------------------------------------------------------------------------------------


class Connection:
    """This process's connection to a cluster. There is one for all engines; the last of them ends what we began."""

    _users: ClassVar[int] = 0
    """Engines on a connection that was made here."""
    _lock: ClassVar[threading.RLock] = threading.RLock()

    def __init__(self, options: Ray) -> None:
        with self._lock:
            ray = imported(local=options.address is None)
            if not ray.is_initialized():
                Connection._users = 0
                self._begin(ray, options)
                self.ours = True
            else:
                here = ray.get_runtime_context().gcs_address
                if options.address not in (None, "auto", here) and not str(options.address).startswith("ray://"):
                    raise ValueError(
                        f"Ray: address='{options.address}', but this process is connected to {here}; "
                        "close that connection first (ray.shutdown())"
                    )
                self.ours = Connection._users > 0
            Connection._users += self.ours

    def _begin(self, ray: Any, options: Ray) -> None:
        quiet: dict[str, Any] = {"log_to_driver": False, "logging_level": "warning"}
        if options.address is not None:
            ray.init(address=options.address, **quiet)
            return
        # For Ray, cores are tokens: more actors than there are cores must be able to start, if they were asked for.
        needed = math.ceil((options.actors or 0) * options.cpus)
        cores = max(needed, os.cpu_count() or 1) if needed else None
        ray.init(address="local", num_cpus=cores, include_dashboard=False, **quiet)
        if not ray.get_runtime_context().gcs_address.startswith("127."):
            log.warning(
                "Ray was imported before this backend could tell it to listen on this machine alone: "
                "whoever reaches its ports over the network can run code here"
            )

    def end(self) -> None:
        """Disconnect, and end the cluster where it was started here, if no other engine is on it."""
        with self._lock:
            if not self.ours:
                return
            self.ours = False
            Connection._users -= 1
            if Connection._users == 0:
                imported().shutdown()


def imported(local: bool = False) -> Any:
    """The module `ray`; an error that says how to get it where it is not installed."""
    if local:
        for name, value in LOCAL.items():
            os.environ.setdefault(name, value)
    try:
        import ray
    except ImportError as error:
        raise ImportError("the backend Ray needs Ray; install it with `pip install 'acclimate[ray]'`") from error
    return ray


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
            f"gpus={o.gpus:g}, and the cluster has {_offer(self._ray.available_resources())} free"
        )


class RayEngine(SpreadEngine):
    """Clients on Ray actors, which start with the first call."""

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Ray) -> None:
        if device.type not in ("cpu", "cuda"):
            raise ValueError(f"Ray runs clients on CPU cores or on CUDA devices, not on device='{device}'")
        if device.type == "cuda" and not options.gpus:
            raise ValueError(
                "Ray: gpus=0.0, so clients would run on CPU cores, but device='cuda'; say what share of a GPU an actor "
                "gets (gpus=0.25), or device=cpu"
            )
        imported(local=options.address is None)
        pack(worker)  # what cannot be sent is refused now, not at the first round
        super().__init__(worker, train, options.inside)
        self.options = options
        self._connection: Connection | None = None
        self._crew: Crew | None = None
        self._actors = 0
        """How many actors there are, once that is known: the same for all calls, and so the same bits."""
        self._end: weakref.finalize[[], RayEngine] | None = None

    @property
    def pids(self) -> list[int]:
        """The process numbers of the actors, each on its own machine; empty before the first call and after `close`."""
        return [] if self._crew is None else self._crew.pids

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        losses = 0
        while True:
            try:
                return super().train(down, cohort, round)
            except imported().exceptions.ObjectLostError as loss:
                losses += 1
                if losses > self.options.retries:
                    raise
                # A whole machine went, with replies that were done but not fetched. Private state has not changed yet.
                log.warning("Ray lost replies of round %d, which runs again: %s", round, loss)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here and no other engine is on it."""
        super().close()
        if self._crew is not None:
            self._crew.close()
        self._crew = None
        if self._end is not None:
            self._end()
        self._connection = self._end = None

    def _start(self) -> int:
        if self._connection is None:
            self._connection = Connection(self.options)
            self._end = weakref.finalize(self, self._connection.end)
        if self._crew is None or not self._crew.open:
            recipe = self._share((self.worker, self.shards, self.inside))
            self._actors = self._actors or self._size()
            self._crew = Crew(self.options, self._actors, recipe)
        return self._actors

    def _size(self) -> int:
        """How many actors there will be."""
        o, ray = self.options, imported()
        if o.actors is not None:
            return min(o.actors, self.shards.clients)
        total = ray.cluster_resources()
        room = _room(o, ray.available_resources()) or _room(o, total)  # nothing free: wait for what others have now
        if room < 1:
            raise ValueError(
                f"Ray: no actor with cpus={o.cpus:g}, gpus={o.gpus:g} fits: the cluster has {_offer(total)}"
            )
        return min(room, self.shards.clients)

    def _do(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        assert self._crew is not None
        return self._crew.run(jobs)

    def _hand(self, value: Any) -> Parcel:
        return Parcel.of(value)

    def _share(self, value: Any, known: Sequence[Tensor] = ()) -> Ref:
        return imported().put(Parcel.of(value, known))

    def _open(self, handles: list[Ref]) -> list[Any]:
        return [parcel.open() for parcel in imported().get(handles)]


def _room(options: Ray, resources: dict[str, float]) -> int:
    """How many actors fit."""
    room = int(resources.get("CPU", 0) / options.cpus + ROUNDING)
    return min(room, int(resources.get("GPU", 0) / options.gpus + ROUNDING)) if options.gpus else room


def _offer(resources: dict[str, float]) -> str:
    return f"CPU={resources.get('CPU', 0):g}, GPU={resources.get('GPU', 0):g}"


def _some(clients: list[int]) -> str:
    return ", ".join(map(str, clients[:10])) + (" ..." if len(clients) > 10 else "")
