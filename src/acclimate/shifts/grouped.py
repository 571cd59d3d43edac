"""A stream in which clients meet the same shift in groups: who adapts together with whom then matters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Shards, check, rng
from ..ops import disk_cache
from ..ops.hashing import content_hash
from .base import Corrupting, Federation, Stream, consecutive, frost, ordered
from .corruptions import CORRUPTIONS, corrupt_each


@dataclass(frozen=True)
class Grouped(Corrupting):
    """The client's own test examples, all under one corruption: client c has kind number c modulo their number.

    With five kinds and 20 clients there are five groups of four. Which group a client is in is told to nobody.
    """

    kinds: tuple[str, ...] = ("gaussian_noise", "defocus_blur", "fog", "contrast", "pixelate")
    severity: int = 5
    length: int | None = None
    """Samples of each client's stream: its test examples again and again, each time corrupted anew; None: once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "severity", 1, 5)
        if self.length is not None:
            check.whole(self, "length", 1)
        unknown = [k for k in self.kinds if k not in CORRUPTIONS]
        if unknown or not self.kinds:
            says = f"Grouped: kinds={unknown or self.kinds} must name some of {', '.join(CORRUPTIONS)}"
            raise check.FieldError(says, "kinds")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        walked, turns, kinds = [], [], []
        for client, own in enumerate(ordered(world, key)):
            at = torch.arange(len(own) if self.length is None or not len(own) else self.length)
            walked.append(own[at % max(len(own), 1)])
            turns.append(torch.div(at, max(len(own), 1), rounding_mode="floor"))
            kinds.append(torch.full_like(at, client % len(self.kinds)))
        rows, kind, ice = torch.cat(walked), torch.cat(kinds), frost()
        keys = rng.fold(rng.fold(rng.fold(key, "grouped"), rows), torch.cat(turns))
        clean = world.examples.x[rows]
        name = content_hash(
            f"grouped/{self.revision}", clean, keys, kind, self.kinds, self.severity, ice.mark(self.kinds)
        )

        def make() -> torch.Tensor:
            some = clean, kind, self.severity, keys
            return corrupt_each(*some, names=self.kinds, frost=ice.textures, revision=self.revision)

        x = disk_cache.remembered("streams", name, make)
        groups = {k: list(range(i, len(walked), len(self.kinds))) for i, k in enumerate(self.kinds)}
        card = {"severity": self.severity, "groups": groups, "order": "one corruption per client, by its number"}
        card |= {"frost": ice.source} if "frost" in self.kinds else {}
        return Stream(Shards.of(x, world.examples.y[rows], consecutive(walked)), card, copied=rows)
