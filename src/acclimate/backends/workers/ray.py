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

import logging
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core import Backend, Reply, Shards, Tree, Worker, check
from .engine import Inside, Job, SpreadEngine
from .ray_actors import Crew, Parcel, Ref
from .ray_cluster import Connection, imported, offer, room
from .shared_memory import pack

log = logging.getLogger("acclimate")


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
        check.choices(self)
        check.at_least(self, "retries", 0)
        check.positive(self, "patience")

    def open(self, worker: Worker, train: Shards, device: torch.device) -> RayEngine:
        return RayEngine(worker, train, device, self)


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
        fit = room(o, ray.available_resources()) or room(o, total)  # nothing free: wait for what others have now
        if fit < 1:
            raise ValueError(
                f"Ray: no actor with cpus={o.cpus:g}, gpus={o.gpus:g} fits: the cluster has {offer(total)}"
            )
        return min(fit, self.shards.clients)

    def _do(self, jobs: Sequence[Callable[[], Job]]) -> list[Ref]:
        assert self._crew is not None
        return self._crew.run(jobs)

    def _hand(self, value: Any) -> Parcel:
        return Parcel.of(value)

    def _share(self, value: Any, known: Sequence[Tensor] = ()) -> Ref:
        return imported().put(Parcel.of(value, known))

    def _open(self, handles: list[Ref]) -> list[Any]:
        return [parcel.open() for parcel in imported().get(handles)]
