"""Clients on Ray actors: on the cores and GPUs of one machine, or of many.

`workers.engine` says who owns what, and which bits to expect. The driver is the process that runs the round loop. It
holds the private states of all clients and writes them into checkpoints; actors keep none of them between two jobs. An
actor that dies loses nothing: another takes its place, and its clients run again from the state that the driver has.

Training data goes to Ray's object store once: one copy per machine, which all actors there read in place. Test data
and the values that all clients of a call share go there once per call. We write no pickle to disk or network. Ray
serialises between its processes, by pickle, and spills its store to local disk when that is full; we give it small
pickles of records, and the bytes of tensors beside them (see `shared_memory`). So the machines of a cluster need the
same acclimate, and the modules that the records come from.

Ray's ports ask for no password: whoever reaches them can run code. A cluster started here listens on this machine
alone; one given by `address` belongs in a network that you trust.
"""

from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core import Backend, Reply, Shards, Tree, Worker, check
from .engine import Inside, Job, WorkersEngine
from .ray_actors import RayActors, Ref, StoredValue
from .ray_cluster import Connection, Reservation, described, imported
from .shared_memory import pack

log = logging.getLogger("acclimate")


@dataclass(frozen=True)
class Ray(Backend):
    """Clients on Ray actors. Needs the extra `ray`."""

    address: str | None = None
    """The address of a running cluster ("auto", "host:6379", "ray://host:10001"). None: the cluster that this process
    is connected to, or else one that is started on this machine and ends with the run."""
    actors: int | None = None
    """The number of actors; None: as many as fit on the free part of the cluster at the first call. There are never
    more than clients."""
    cpus: float = 1.0
    """Cores that an actor reserves. It runs as many torch threads, at least one."""
    gpus: float = 0.0
    """The share of a GPU that an actor reserves, up to 1. Above 0, clients run on CUDA."""
    inside: Inside = "serial"
    """How an actor runs its clients: one after the other, or vectorised."""
    retries: int = 2
    """How often clients run again because their actor died, before an error is raised."""
    patience: float = 300.0
    """Seconds to wait for an actor while there is none, before an error is raised."""

    def __post_init__(self) -> None:
        if self.actors is not None:
            check.at_least(self, "actors", 1)
        check.positive(self, "cpus")
        check.within(self, "gpus", 0.0, 1.0)
        check.choices(self)
        check.at_least(self, "retries", 0)
        check.positive(self, "patience")

    def open(self, worker: Worker, train: Shards, device: torch.device) -> RayEngine:
        return RayEngine(worker, train, device, self)


class RayEngine(WorkersEngine):
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
        pack(worker)  # a worker that cannot be sent is refused now, not at the first round
        super().__init__(worker, train, options.inside)
        self.options = options
        self._connection: Connection | None = None
        self._actors: RayActors | None = None
        self._count = 0
        """The number of actors, once it is known: the same for all calls, so that all have the same bits."""
        self._end: weakref.finalize[[], RayEngine] | None = None

    @property
    def pids(self) -> list[int]:
        """The process numbers of the actors, each on its own machine; empty before the first call and after `close`."""
        return [] if self._actors is None else self._actors.pids

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        losses = 0
        while True:
            try:
                return super().train(down, cohort, round)
            except imported().exceptions.ObjectLostError as loss:
                losses += 1
                if losses > self.options.retries:
                    raise
                # A whole machine was lost, with replies that were not fetched yet. Private states have not changed yet.
                log.warning("Ray lost replies of round %d, which runs again: %s", round, loss)

    def close(self) -> None:
        """End the actors, and the cluster if it was started here and no other engine uses it."""
        super().close()
        if self._actors is not None:
            self._actors.close()
        self._actors = None
        if self._end is not None:
            self._end()
        self._connection = self._end = None

    def _start_workers(self) -> int:
        if self._connection is None:
            self._connection = Connection(self.options.address, (self.options.actors or 0) * self.options.cpus)
            self._end = weakref.finalize(self, self._connection.end)
        if self._actors is None or not self._actors.open:
            o, recipe = self.options, self._for_many_jobs((self.worker, self.shards, self.inside))
            self._count = self._count or self._find_count()
            self._actors = RayActors(self._count, recipe, self._reservation, o.retries, o.patience)
        return self._count

    @property
    def _reservation(self) -> Reservation:
        return Reservation(self.options.cpus, self.options.gpus)

    def _find_count(self) -> int:
        """How many actors there will be."""
        if self.options.actors is not None:
            return min(self.options.actors, self.shards.clients)
        ray, one = imported(), self._reservation
        total = ray.cluster_resources()
        count = one.fit(ray.available_resources()) or one.fit(total)  # nothing free: wait for what others have now
        if count < 1:
            raise ValueError(f"Ray: no actor with {one} fits: the cluster has {described(total)}")
        return min(count, self.shards.clients)

    def _run_jobs(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        assert self._actors is not None
        return self._actors.run(jobs)

    def _for_one_job(self, value: Any) -> StoredValue:
        return StoredValue.of(value)

    def _for_many_jobs(self, value: Any, known: Sequence[Tensor] = ()) -> Ref:
        return imported().put(StoredValue.of(value, known))

    def _values(self, handles: list[Ref]) -> list[Any]:
        return [stored.open() for stored in imported().get(handles)]
