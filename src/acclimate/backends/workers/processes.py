"""Clients on all cores of one machine: worker processes with one torch thread each, and shared memory.

Small models leave the threads of one process idle, because their kernels are too short to be divided. Clients are
independent, so processes do not have that problem. `workers.engine` says who owns what, and which bits to expect.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from ...core import Backend, Shards, Worker, check
from .engine import ClientRunner, Inside, WorkersEngine
from .process_pool import NESTED, ProcessPool, SealedJob
from .shared_memory import Sealed, Unsendable, seal


@dataclass(frozen=True)
class Processes(Backend):
    """Local worker processes, started at the first round; for CPUs, and without Ray."""

    workers: int | None = None
    """The number of worker processes; None: as many as `usable_cores`. There are never more than clients."""
    inside: Inside = "serial"
    """How a worker runs its clients: one after the other, or vectorised."""

    def __post_init__(self) -> None:
        if self.workers is not None:
            check.at_least(self, "workers", 1)
        check.choices(self)

    def open(self, worker: Worker, train: Shards, device: torch.device) -> ProcessesEngine:
        return ProcessesEngine(worker, train, device, self)


def usable_cores() -> int:
    """Cores that this process may use: as the system allows, and as `torch.set_num_threads` allows."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return max(min(allowed, _quota(), torch.get_num_threads()), 1)


def _quota() -> int:
    """Whole cores that a container may use at a time (Linux control groups), or a large number."""
    try:
        with open("/sys/fs/cgroup/cpu.max") as f:
            most, period = f.read().split()
        return int(most) // int(period)
    except (OSError, ValueError):  # no such limit: the file is missing, or says "max"
        return 1 << 30


def supported() -> bool:
    """Whether worker processes can be started here: not inside one, and only where sockets carry open files."""
    return NESTED not in os.environ and hasattr(socket, "send_fds")


def sendable(worker: Worker) -> bool:
    """Whether worker processes could understand this task, method and filters."""
    try:
        seal(worker)
    except Unsendable:
        return False
    return True


class ProcessesEngine(WorkersEngine):
    """Clients in worker processes of this machine."""

    def __init__(self, worker: Worker, train: Shards, device: torch.device, options: Processes) -> None:
        if device.type != "cpu":
            raise ValueError(f"Processes runs clients on CPU cores, not on device='{device}'; use Vmap, or device=cpu")
        if not supported():
            raise ValueError(
                "Processes cannot start worker processes here (inside one, or on a system without Unix sockets); "
                "use Serial or Vmap"
            )
        seal(worker)  # a worker that cannot be sent is refused now, not at the first round
        super().__init__(worker, train, options.inside)
        self.workers = min(options.workers or usable_cores(), self.shards.clients)
        self._pool: ProcessPool | None = None

    @property
    def pids(self) -> list[int]:
        """The process numbers of the workers; empty before the first call and after `close`."""
        return self._pool.pids if self._pool is not None and self._pool.open else []

    def close(self) -> None:
        """End the worker processes. A later call would start new ones."""
        super().close()
        if self._pool is not None:
            self._pool.close()
        self._pool = None

    def _start_workers(self) -> int:
        if self._pool is None or not self._pool.open:
            self._pool = ProcessPool(self.workers, seal(ClientRunner(self.worker, self.shards, self.inside)))
        return self.workers

    def _run_jobs(self, jobs: Sequence[Callable[[], SealedJob]]) -> list[Sealed]:
        assert self._pool is not None
        return self._pool.run(job() for job in jobs)

    def _for_one_job(self, value: Any) -> Sealed:
        return seal(value)

    def _for_many_jobs(self, value: Any, known: Sequence[Tensor] = ()) -> Sealed:
        return seal(value, known)

    def _values(self, handles: list[Sealed]) -> list[Any]:
        return [handle.open() for handle in handles]
