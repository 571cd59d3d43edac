"""A data set of which a share is public: unlabelled inputs that every client holds (FedMD, HeteroFedTTA)."""

from __future__ import annotations

from dataclasses import dataclass, fields
from typing import Any

import torch
from torch import Tensor

from ..core import check, rng
from .world import Examples, World, digest
from .wrapping import Wrapper


@dataclass(frozen=True, repr=False)
class PublicWorld(World):
    """A world with a public set."""

    public: Tensor = torch.zeros(0, dtype=torch.int64)
    """Examples that everybody holds and nobody trains on as its own; their labels are not read."""

    def __post_init__(self) -> None:
        super().__post_init__()
        used = torch.cat([*self.train, *self.val, *self.test, *self.new, self.held])
        if bool(torch.isin(self.public, used).any()):
            raise ValueError("a world must use every example at most once: some public ones are also a client's")

    def card(self) -> dict[str, Any]:
        return {**super().card(), "public": {"hash": digest(self.public), "size": len(self.public)}}


@dataclass(frozen=True)
class Public(Wrapper):
    """Another data set with a random share set aside as the public set; the rest is dealt to clients.

    Of `data` the examples are taken, and its mean and std where this record has none. Everything else (partition,
    clients, splits, seed, fraction, angles and so on) is set on this record, and refused on `data`.
    """

    share: float = 0.1
    """The share of the data set that is public."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(self, "share")
        check.within(self, "share", 0.0, 0.9)
        if self.overlapping:
            says = f"Public: share={self.share} is drawn at random, and examples of {type(self.data).__name__} overlap"
            raise check.FieldError(f"{says}; set data.data.stride to the window", "share")

    def world(self, seed: int = 0) -> PublicWorld:
        """The world of the rest, and the public set beside it."""
        world = super().world(seed)
        rows, public = self._pool(world.examples, rng.key(world.seed))
        if not len(public):
            raise ValueError(f"Public: share={self.share} of {len(rows)} examples is none; raise share or fraction")
        known = {f.name: getattr(world, f.name) for f in fields(world)}
        return PublicWorld(**{**known, "name": type(self.data).__name__}, public=public)

    def _rows(self, examples: Examples, key: rng.Key) -> tuple[Tensor, Tensor]:
        return self._pool(examples, key)[0], super()._rows(examples, key)[1]

    def _pool(self, examples: Examples, key: rng.Key) -> tuple[Tensor, Tensor]:
        """The rows to deal out, and the public ones."""
        pool, _ = super()._rows(examples, key)
        chosen = rng.uniform(rng.fold(key, "public"), len(pool)) < self.share
        return pool[~chosen], pool[chosen]
