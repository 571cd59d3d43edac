"""Streams of what nobody trained on: unseen domains, rotated inputs, clients that join late. And how few samples do."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Shards, check, rng
from ..ops.augment import rotate
from .base import Federation, Shift, Stream, consecutive, ordered, shuffled


@dataclass(frozen=True)
class UnseenDomain(Shift):
    """Examples of the held-out domains, for every client: leave-one-domain-out (FedICON's domain shift, FedSPL).

    Name the domains in the data set's `held_out`. `shared=True` shows all of them to every client, as the papers do;
    False deals them out.
    """

    shared: bool = True
    first: int | None = None
    """How many clients meet them, the first ones; None: all. One is enough where all clients have the same model."""

    def __post_init__(self) -> None:
        super().__post_init__()
        if self.first is not None:
            check.at_least(self, "first", 1)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        if not len(world.held):
            *others, last = world.examples.domains
            remedy = f"set data.held_out, for example data.held_out={last}" if others else "the data has one alone"
            raise ValueError(f"UnseenDomain: no domain is held out; {remedy}")
        clients = len(world.test)
        rows = [shuffled(world.held, rng.fold(key, "unseen", c)) for c in range(clients)]
        if not self.shared:
            rows = list(shuffled(world.held, rng.fold(key, "unseen")).tensor_split(clients))
        if self.first is not None:
            rows = [r if c < self.first else r[:0] for c, r in enumerate(rows)]
        names = [world.examples.domains[d] for d in world.examples.domain[world.held].unique().tolist()]
        return Stream(Shards.of(world.examples.x, world.examples.y, rows), {"domains": names})


@dataclass(frozen=True)
class Rotated(Shift):
    """The client's own test examples, turned by one of the angles (in degrees, drawn per client): concept shift."""

    angles: tuple[float, ...] = (15.0, 45.0)

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.angles:
            raise ValueError("Rotated: angles=() must name at least one")
        check.all_finite(self, "angles")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = ordered(world, key)
        picks = rng.randint(rng.fold(key, "rotated"), 0, len(self.angles), len(rows)).tolist()
        turned = [rotate(world.examples.x[r], self.angles[p]) for r, p in zip(rows, picks, strict=True)]
        of = torch.cat(rows)
        shards = Shards.of(torch.cat(turned), world.examples.y[of], consecutive(rows))
        return Stream(shards, {"angles": [self.angles[p] for p in picks]}, copied=of)


@dataclass(frozen=True)
class NewClients(Shift):
    """The examples of clients that join after training: they get the deployed model and have no labels (FedTTA).

    Set the data set's `new_clients`, and `new_partition` for another alpha. `share` leaves each newcomer a part of its
    examples only.
    """

    share: float = 1.0

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise check.FieldError(f"NewClients: share={self.share} must be above 0 and at most 1", "share")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        if not world.new:
            raise ValueError("NewClients: nobody joins; set data.new_clients, for example data.new_clients=10")
        rows = [shuffled(r, rng.fold(key, "new", c)) for c, r in enumerate(world.new)]
        kept = [r[: max(round(len(r) * self.share), 1)] for r in rows]
        return Stream(Shards.of(world.examples.x, world.examples.y, kept), {"share": self.share}, new=True)


@dataclass(frozen=True)
class Reduced(Shift):
    """A share of the client's own test examples: how little unlabelled data adaptation can do with."""

    share: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        if not 0 < self.share <= 1:
            raise check.FieldError(f"Reduced: share={self.share} must be above 0 and at most 1", "share")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = [r[: max(round(len(r) * self.share), min(len(r), 1))] for r in ordered(world, key)]
        return Stream(Shards.of(world.examples.x, world.examples.y, rows), {"share": self.share})
