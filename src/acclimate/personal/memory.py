"""The datastore of kNN-Per. Marfoq et al., ICML 2022, Algorithm 1: features and labels of the client's training data.

The store has the same `capacity` for every client; one with more examples keeps a random subset of them (the paper's
study of the datastore size), one with fewer leaves the rest empty.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from ..core import check, rng
from ..core.adapter import Predict
from ..core.personal import Personalizer
from ..core.task import Task
from ..core.tree import Tree


@dataclass(frozen=True)
class Memory(Personalizer):
    """Adds `memory` to the model: `z` [capacity, d], `y` [capacity] and how many of them are real, `n`."""

    capacity: int = 4096

    def __post_init__(self) -> None:
        check.at_least(self, "capacity", 1)

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        size = min(data["rows"].shape[-1], self.capacity)
        kept = data["rows"][rng.order(rng.fold(key, "memory"), data["rows"].shape[-1], data["n"])[:size]]
        z = torch.cat([predict(model, data["x"][rows]).features.detach() for rows in kept.split(256, dim=-1)])
        short = self.capacity - size
        memory = {"z": F.pad(z, (0, 0, 0, short)), "y": F.pad(data["y"][kept], (0, short))}
        return {**model, "memory": {**memory, "n": data["n"].clamp_max(self.capacity)}}
