"""What goes wrong in worker processes: they import this, and not the tests with all that these need."""

import os
import threading
from dataclasses import dataclass
from pathlib import Path

import torch

from acclimate.methods import FedAvg


@dataclass(frozen=True)
class Trouble(FedAvg):
    """Client 3 does something that a client should not do."""

    kind: str = ""

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        if int(data["id"]) == 3:
            if self.kind == "gossip":
                up = {**up, "gossip": torch.ones(())}
            elif self.kind == "exit":
                os._exit(7)
        return up, mine


@dataclass(frozen=True)
class Sleeper:
    """A function that takes for ever, and tells that it has begun."""

    begun: Path
    known = ()

    def __call__(self, *parts):
        self.begun.touch()
        threading.Event().wait()
