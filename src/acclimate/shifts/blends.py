"""A slow walk through corruptions, of any length: one fades while the next grows."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import Shards, check, rng, stream
from ..ops.hashing import content_hash
from .base import Corrupting, Federation, Stream, consecutive, frost, ordered
from .corruptions import COMMON
from .drift import walk
from .suited import ALL, changed, ice_for, kept, suited


class Places(NamedTuple):
    """Where on the walk samples are: two corruptions (as places in `kinds`) and their severities, which have parts."""

    fading: Tensor
    fading_severity: Tensor
    growing: Tensor
    growing_severity: Tensor


@dataclass(frozen=True)
class Blends(Corrupting):
    """Pairs of corruptions blend into each other, as in CCC (Press et al., "RDumb", NeurIPS 2023).

    The walk has corners: a corruption and its severity, drawn by the key, the next always of another type. From corner
    to corner, over `leg` samples, the first corruption fades to nothing and the second, laid over it, grows. All
    clients walk together; each walks through its own test examples again and again. A longer stream goes on where a
    shorter one ends.

    CCC changes severities in steps such that a reference model stays equally accurate. Here there is no such model: the
    severities of corners are drawn between `low` and `high`, and how hard a stream is changes along it. Between two
    whole severities, pixels are those of both, weighed; the noise is the same in both.
    """

    kinds: tuple[str, ...] = COMMON
    length: int = 512
    leg: int = 64
    low: float = 2.0
    high: float = 5.0

    def __post_init__(self) -> None:
        for name in ("length", "leg"):
            check.whole(self, name, 1)
        check.within(self, "low", 0.0, 5.0)
        check.within(self, "high", self.low, 5.0)
        check.several(self, "kinds")
        unknown = [k for k in self.kinds if k not in ALL]
        if unknown or len(set(self.kinds)) < max(2, len(self.kinds)):
            raise check.FieldError(
                f"Blends: kinds={unknown or self.kinds} must be two or more, none twice, of {', '.join(ALL)}",
                "kinds",
            )
        super().__post_init__()

    @property
    def protocol(self) -> stream.Protocol:
        return stream.Protocol(self.batch, self.reset, self.leg)

    def corners(self, key: rng.Key) -> tuple[Tensor, Tensor]:
        """The corruptions (as places in `kinds`) and severities of all corners that the length needs."""
        kinds, severities, key = list[int](), list[float](), rng.fold(key, "corners")
        for i in range((self.length - 1) // self.leg + 2):
            own, others = rng.fold(key, i), len(self.kinds) - 1
            draw = rng.fold(own, "kind")
            other = (kinds[-1] + 1 + int(rng.randint(draw, 0, others))) % len(self.kinds) if kinds else None
            kinds.append(int(rng.randint(draw, 0, others + 1)) if other is None else other)
            severities.append(self.low + (self.high - self.low) * float(rng.uniform(rng.fold(own, "severity"))))
        return torch.tensor(kinds), torch.tensor(severities)

    def places(self, key: rng.Key) -> Places:
        """Where the samples of a stream are, in order."""
        kinds, severities = self.corners(key)
        at = torch.arange(self.length)
        leg, share = at // self.leg, (at % self.leg) / self.leg
        return Places(kinds[leg], severities[leg] * (1.0 - share), kinds[leg + 1], severities[leg + 1] * share)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        if not (world.examples.x.is_floating_point() or world.examples.x.dtype == torch.uint8):
            raise ValueError("Blends: mixes inputs that are numbers or pixels, and texts are neither; use continual")
        own, fitting = rng.fold(key, "blends"), suited(self, world)
        walked = [walk(r, self.length) for r in ordered(world, key)]
        rows, at = torch.cat(walked), torch.cat([torch.arange(len(w)) for w in walked])
        x = fitting._inputs(world, rows, at, own)
        kinds, severities = fitting.corners(own)
        corners = [[fitting.kinds[k], round(s, 3)] for k, s in zip(kinds.tolist(), severities.tolist(), strict=True)]
        card = {
            "order": "a walk through corruptions: from corner to corner one fades and the next grows",
            "length": self.length,
            "leg": self.leg,
            "corners": corners,
        }
        shards = Shards.of(x, world.examples.y[rows], consecutive(walked))
        card |= {"frost": frost().source} if any(k == "frost" for k, _ in corners) else {}
        return Stream(shards, card, copied=rows)

    def _inputs(self, world: Federation, rows: Tensor, at: Tensor, key: rng.Key) -> Tensor:
        clean = world.examples.x[rows]
        keys, ice = rng.fold(rng.fold(rng.fold(key, "image"), rows), at), ice_for(clean)
        places = Places(*(values[at] for values in self.places(key)))

        def whole(x: Tensor, kinds: Tensor, severities: Tensor, keys: Tensor) -> Tensor:
            out, hit = x.clone(), (severities > 0).nonzero().flatten()
            some = x[hit], kinds[hit], severities[hit], keys[hit]
            out[hit] = changed(world, key, *some, self.kinds, ice, self.revision)
            return out

        def make() -> Tensor:
            faded = under(whole, clean, places.fading, places.fading_severity, rng.fold(keys, "fading"))
            return under(whole, faded, places.growing, places.growing_severity, rng.fold(keys, "growing"))

        name = content_hash(f"blends/{self.revision}", clean, keys, self.kinds, *places, ice.mark(self.kinds))
        return kept(clean, name, make)


def under(whole: Callable[..., Tensor], x: Tensor, kinds: Tensor, severities: Tensor, keys: Tensor) -> Tensor:
    """Inputs under corruptions whose severities have parts: between those of the two whole ones."""
    below = severities.floor()
    share = (severities - below).view(-1, *[1] * (x.dim() - 1))
    ends = [whole(x, kinds, s.long(), keys).float() for s in (below, severities.ceil())]
    mixed = ends[0] + share * (ends[1] - ends[0])
    return mixed if x.is_floating_point() else mixed.round().to(x.dtype)
