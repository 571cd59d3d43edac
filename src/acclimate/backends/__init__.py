"""Where clients run. `Auto` chooses; all of them give the same numbers."""

from __future__ import annotations

import logging
from dataclasses import dataclass

import torch

from ..core import Backend, Engine, Shards, Worker, absent, tree
from ..core.vectorised import refusal
from .flower.engine import Flower
from .serial import Serial
from .vmap.engine import Vmap
from .workers.processes import Processes, sendable, supported, usable_cores
from .workers.ray import Ray

__all__ = ["Auto", "Flower", "Processes", "Ray", "Serial", "Vmap"]

log = logging.getLogger("acclimate")

WORTH_PROCESSES = 10**7
"""Training examples times parameters from which starting worker processes pays off within a few rounds."""


@dataclass(frozen=True)
class Auto(Backend):
    """Vmap on a GPU. On a CPU, Vmap for models without convolutions, else Processes or Serial.

    The rule is what `benchmarks/round.py` and `benchmarks/processes.py` measured. On few cores, vmapped convolutions
    gain little or nothing over plain kernels. Clients side by side use several cores better than kernels, but worker
    processes take seconds to start: Processes needs two usable cores, two clients, enough work, and a model and a
    method that can be sent. A model from elsewhere that vmap cannot run is not vectorised, and a sentence says which
    operation is the reason. It is a rule and not a stopwatch, so that the same run takes the same path twice.
    """

    def choose(self, worker: Worker, train: Shards, device: torch.device) -> Backend:
        """The backend that `open` will use."""
        if device.type != "cpu" or not worker.task.has_convolution:
            if (reason := refusal(worker.task, device)) is None:
                return Vmap()
            log.warning("%s; clients run one at a time", reason)
            if device.type != "cpu":
                return Serial()
        several = supported() and min(usable_cores(), train.clients) >= 2
        return Processes() if several and work(worker, train) >= WORTH_PROCESSES and sendable(worker) else Serial()

    def open(self, worker: Worker, train: Shards, device: torch.device) -> Engine:
        return self.choose(worker, train, device).open(worker, train, device)


def work(worker: Worker, train: Shards) -> int:
    """How much one pass over all clients' data is, roughly: examples times parameters."""
    return int(train.n.sum()) * tree.numel(worker.task.init(worker.key("init"))["params"])


absent.explain(__name__)
