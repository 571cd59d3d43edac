"""Streams that only the papers' tables need: newcomers whose examples are dealt anew."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch

from ..core import rng
from ..data import Dirichlet, Partition
from ..experiment.names import allow
from ..shifts import NewClients
from ..shifts.base import Stream


@dataclass(frozen=True)
class Redealt(NewClients):
    """Newcomers who share the same examples out in another way than the world does: one training, several alphas.

    They hold what they would hold in a world with this `new_partition`.
    """

    partition: Partition = Dirichlet(alpha=0.1)

    def build(self, world: Any, key: rng.Key) -> Stream:
        if world.new:
            rows = torch.cat(world.new).sort().values
            deal = rng.fold(rng.key(world.seed), "new partition")
            parts = self.partition.split(world.examples.pool(rows), len(world.new), deal)
            world = replace(world, new=tuple(rows[p] for p in parts))
        return super().build(world, key)


allow(Redealt)
