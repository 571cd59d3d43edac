"""The base record of data sets: read examples, deal them to clients, split each client's share."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import rng
from .partition import Dirichlet, Partition
from .world import Examples, World


@dataclass(frozen=True)
class Dataset:
    """A data set and how it becomes a federation. A new one only defines `load`."""

    partition: Partition = Dirichlet(alpha=0.1)
    clients: int = 10
    split: tuple[float, float, float] = (0.6, 0.2, 0.2)
    """Each client's share of training, validation and test examples."""
    seed: int | None = None
    """Draws partition and splits; None takes the experiment's seed."""
    mean: tuple[float, ...] = ()
    """Per-channel mean of pixels in 0..1 that the task subtracts; empty: none. A constant, not measured on test data."""
    std: tuple[float, ...] = ()
    """Per-channel deviation that the task divides by."""

    def __post_init__(self) -> None:
        name = type(self).__name__
        if self.clients < 1:
            raise ValueError(f"{name}: clients={self.clients} must be at least 1")
        if len(self.split) != 3 or min(self.split) < 0 or abs(sum(self.split) - 1) > 1e-6 or self.split[0] <= 0:
            raise ValueError(f"{name}: split={self.split} must be three shares (train, val, test) that add up to 1")
        if len(self.mean) != len(self.std) or any(s <= 0 for s in self.std):
            raise ValueError(
                f"{name}: mean={self.mean} and std={self.std} need one entry per channel each, std above 0"
            )

    def load(self) -> Examples:
        """Read or make the examples."""
        raise TypeError(f"{type(self).__name__} must define load()")

    def world(self, seed: int = 0) -> World:
        """Deal and split: fixed by the seed, on any machine."""
        seed = seed if self.seed is None else self.seed
        examples, key = self.load(), rng.key(seed)
        shares = self.partition.split(examples, self.clients, rng.fold(key, "partition"))
        splits = [_cut(rows, self.split, rng.fold(key, "split", c)) for c, rows in enumerate(shares)]
        train, val, test = zip(*splits, strict=True)
        return World(examples, train, val, test, self.mean, self.std, name=type(self).__name__, seed=seed)


def _cut(rows: Tensor, shares: tuple[float, float, float], key: rng.Key) -> tuple[Tensor, Tensor, Tensor]:
    rows = rows[rng.permutation(key, len(rows))]
    train = round(len(rows) * shares[0])
    val = round(len(rows) * (shares[0] + shares[1]))
    return rows[:train], rows[train:val], rows[val:]
