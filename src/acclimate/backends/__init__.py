"""Where clients run. `Auto` chooses; all of them give the same numbers."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core.backend import Backend, Engine
from ..core.shards import Shards
from ..core.worker import Worker
from .serial import Serial
from .vmap import Vmap

__all__ = ["Auto", "Serial", "Vmap"]


@dataclass(frozen=True)
class Auto(Backend):
    """Vmap on a GPU. On a CPU, Vmap for models without convolutions and Serial for the rest.

    The rule is what `benchmarks/round.py` measured: on few cores, vmapped convolutions become grouped ones, which are
    slower than the plain kernels. It is a rule and not a stopwatch, so that the same run takes the same path twice.
    """

    def choose(self, worker: Worker, device: torch.device) -> Backend:
        """The backend that `open` will use."""
        return Serial() if device.type == "cpu" and worker.task.has_convolution else Vmap()

    def open(self, worker: Worker, train: Shards, device: torch.device) -> Engine:
        return self.choose(worker, device).open(worker, train, device)
