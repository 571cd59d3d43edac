"""The streams of BRFL, the benchmark of FedTHE (Jiang & Lin, ICLR 2023, Sec. 5.1 and Appendix B)."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check, rng
from ..core.shards import Shards
from .base import Federation, Shift, Stream, shuffled
from .corruptions import COMMON, CORRUPTIONS, corrupt_each


@dataclass(frozen=True)
class Original(Shift):
    """The client's own test examples, as they are."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = [shuffled(r, rng.fold(key, "original", c)) for c, r in enumerate(world.test)]
        return Stream(Shards.of(world.examples.x, world.examples.y, rows), {})


@dataclass(frozen=True)
class Corrupted(Shift):
    """The client's own test examples, each under one of the corruption types, drawn once and kept."""

    severity: int = 5
    kinds: tuple[str, ...] = COMMON

    def __post_init__(self) -> None:
        super().__post_init__()
        check.within(self, "severity", 1, 5)
        unknown = [k for k in self.kinds if k not in CORRUPTIONS]
        if unknown or not self.kinds:
            raise ValueError(f"Corrupted: kinds={unknown or self.kinds} must name some of {', '.join(CORRUPTIONS)}")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = torch.cat(world.test)
        # keyed by the example, so an example looks the same whoever holds it and whatever else is drawn
        keys = rng.fold(rng.fold(key, "image"), rows)
        kinds = _choice(rng.fold(rng.fold(key, "kind"), rows), len(self.kinds))
        x = corrupt_each(world.examples.x[rows], kinds, self.severity, keys, names=self.kinds)
        start, own = 0, []
        for c, r in enumerate(world.test):
            own.append(shuffled(torch.arange(start, start + len(r)), rng.fold(key, "corrupted", c)))
            start += len(r)
        mix = dict(zip(self.kinds, torch.bincount(kinds, minlength=len(self.kinds)).tolist(), strict=True))
        return Stream(Shards.of(x, world.examples.y[rows], own), {"severity": self.severity, "kinds": mix})


@dataclass(frozen=True)
class OutOfClient(Shift):
    """Test examples of the other clients: label shift for a personal model. As many as the client has of its own."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = []
        for c, own in enumerate(world.test):
            others = torch.cat([r for o, r in enumerate(world.test) if o != c] or [own[:0]])
            rows.append(shuffled(others, rng.fold(key, "out-of-client", c))[: len(own)])
        return Stream(Shards.of(world.examples.x, world.examples.y, rows), {})


@dataclass(frozen=True)
class Mixture(Shift):
    """Equal parts of other streams, shuffled: as many of each as the shortest has."""

    parts: tuple[Shift, ...] = (Original(), Corrupted(), OutOfClient())

    def __post_init__(self) -> None:
        super().__post_init__()
        if not self.parts:
            raise ValueError("Mixture: parts must name at least one stream")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = [part.build(world, key).shards for part in self.parts]  # the same key: the same streams as on their own
        x, y = torch.cat([s.x for s in built]), torch.cat([s.y for s in built])
        starts = torch.tensor([0] + [len(s.y) for s in built[:-1]]).cumsum(0).tolist()
        rows = []
        for c in range(len(world.test)):
            each = min(int(s.n[c]) for s in built)
            equal = torch.cat([s.own(c)[:each] + a for s, a in zip(built, starts, strict=True)])
            rows.append(shuffled(equal, rng.fold(key, "mixture", c)))
        return Stream(Shards.of(x, y, rows), {"parts": [type(p).__name__ for p in self.parts]})


def brfl() -> tuple[Shift, ...]:
    """BRFL's streams: original, corrupted, out-of-client, and their mixture."""
    return Original(), Corrupted(), OutOfClient(), Mixture()


def _choice(keys: Tensor, options: int) -> Tensor:
    """One of `options` per key."""
    return torch.vmap(lambda k: rng.randint(k, 0, options))(keys)
