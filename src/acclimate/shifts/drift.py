"""Streams that change while they run: severities that rise and fall, types that follow each other, labels that drift.

A stream is a row of segments of `segment` samples each. The client's own test examples are walked through again and
again, so that every segment has the client's label mix; reset="shift" starts the adapter afresh with every segment.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Shards, check, rng, stream
from ..ops import disk_cache
from ..ops.hashing import content_hash
from .base import Corrupting, Federation, Shift, Stream, consecutive, frost, ordered
from .benchmark_streams import Corrupted
from .corruptions import COMMON, CORRUPTIONS, corrupt_each


@dataclass(frozen=True)
class Segments(Corrupting):
    """The base of streams that are rows of (corruption, severity) segments; severity 0 is clean."""

    segment: int = 32

    def __post_init__(self) -> None:
        check.whole(self, "segment", 1)
        super().__post_init__()
        for kind, severity in self.plan():
            if kind not in CORRUPTIONS:
                raise ValueError(f"{type(self).__name__}: kind {kind!r} must be one of {', '.join(CORRUPTIONS)}")
            if severity not in range(6):
                raise ValueError(
                    f"{type(self).__name__}: severity {severity} must be one of 0 (clean), 1, 2, 3, 4 and 5"
                )

    @property
    def protocol(self) -> stream.Protocol:
        return stream.Protocol(self.batch, self.reset, self.segment)

    def plan(self) -> list[tuple[str, int]]:
        """The segments, in order."""
        return []

    def walked(self, world: Federation, key: rng.Key) -> list[Tensor]:
        """Every client's rows, in stream order: as many as all segments together have."""
        return [walk(r, self.segment * len(self.plan())) for r in ordered(world, key)]

    def build(self, world: Federation, key: rng.Key) -> Stream:
        plan, walked = self.plan(), self.walked(world, key)
        rows = torch.cat(walked)
        where = torch.cat([(torch.arange(len(w)) // self.segment) for w in walked])
        x = self._pixels(world, rows, where, rng.fold(key, type(self).__name__))
        shards = Shards.of(x, world.examples.y[rows], consecutive(walked))
        card = {"segment": self.segment, "plan": [[k, s] for k, s in plan]}
        card |= {"frost": frost().source} if any(k == "frost" and s for k, s in plan) else {}
        return Stream(shards, card, copied=rows)

    def _pixels(self, world: Federation, rows: Tensor, where: Tensor, key: rng.Key) -> Tensor:
        plan, clean = self.plan(), world.examples.x[rows]
        names = tuple(sorted({k for k, _ in plan}))
        kinds = torch.tensor([names.index(k) for k, _ in plan])[where]
        severities = torch.tensor([s for _, s in plan])[where]
        keys = rng.fold(rng.fold(rng.fold(key, "image"), rows), where)
        ice = frost()

        def make() -> Tensor:
            x, hit = clean.clone(), (severities > 0).nonzero().flatten()
            some = clean[hit], kinds[hit], severities[hit], keys[hit]
            x[hit] = corrupt_each(*some, names=names, frost=ice.textures, revision=self.revision)
            return x

        name = content_hash(f"segments/{self.revision}", clean, keys, plan, where, ice.mark(names))
        return disk_cache.remembered("streams", name, make)


@dataclass(frozen=True)
class Gradual(Segments):
    """One corruption whose severity rises from nothing to 5 and falls back."""

    kind: str = "gaussian_noise"

    def plan(self) -> list[tuple[str, int]]:
        return [(self.kind, s) for s in (0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0)]


@dataclass(frozen=True)
class Continual(Segments):
    """One corruption type after the other at one severity; the adapter is never told (reset="stream")."""

    kinds: tuple[str, ...] = COMMON
    severity: int = 5

    def __post_init__(self) -> None:
        check.whole(self, "severity", 0, 5)
        super().__post_init__()

    def plan(self) -> list[tuple[str, int]]:
        return [(k, self.severity) for k in self.kinds]


@dataclass(frozen=True)
class Recurring(Segments):
    """A few corruption types that come back `cycles` times, with clean segments between: does an adapter forget?"""

    kinds: tuple[str, ...] = ("gaussian_noise", "defocus_blur", "contrast")
    severity: int = 5
    cycles: int = 3

    def __post_init__(self) -> None:
        check.whole(self, "severity", 0, 5)
        check.whole(self, "cycles", 1)
        super().__post_init__()

    def plan(self) -> list[tuple[str, int]]:
        once = [pair for k in self.kinds for pair in ((k, 0), (k, self.severity))]
        return once * self.cycles


@dataclass(frozen=True)
class LabelDrift(Shift):
    """The client's own test examples in an order in which classes come in waves.

    Time is cut into `slots`; each class spreads over them in proportions drawn from Dirichlet(alpha): a small alpha
    gives runs of one class, a large one the usual shuffled order.
    """

    alpha: float = 0.1
    slots: int = 10

    def __post_init__(self) -> None:
        super().__post_init__()
        check.positive(self, "alpha")
        check.whole(self, "slots", 1)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        y, own = world.examples.y, ordered(world, key)
        rows = [in_waves(r, y[r], self.alpha, self.slots, rng.fold(key, "drift", c)) for c, r in enumerate(own)]
        return Stream(Shards.of(world.examples.x, y, rows), {"alpha": self.alpha, "slots": self.slots})


def in_waves(rows: Tensor, classes: Tensor, alpha: float, slots: int, key: rng.Key) -> Tensor:
    """Rows in the order of time slots over which each class spreads in proportions drawn from Dirichlet(alpha)."""
    slot = torch.zeros(len(rows))
    for c in classes.unique().tolist():
        mine = (classes == c).nonzero().flatten()
        edges = rng.dirichlet(rng.fold(key, c), alpha, 1, slots)[0].cumsum(0)
        at = (torch.arange(len(mine)) + 0.5) / len(mine)
        slot[mine] = torch.searchsorted(edges, at.double()).clamp_max(slots - 1).to(slot.dtype)
    return rows[torch.argsort(slot + rng.uniform(rng.fold(key, "within"), len(rows)), stable=True)]


def severity_sweep(kinds: tuple[str, ...] = COMMON) -> tuple[Shift, ...]:
    """Corrupted streams of severity 1 to 5."""
    return tuple(Corrupted(severity=s, kinds=kinds) for s in range(1, 6))


def walk(rows: Tensor, length: int) -> Tensor:
    """Rows again and again, up to a length; nothing for a client that has none."""
    return rows[torch.arange(length) % len(rows)] if len(rows) else rows
