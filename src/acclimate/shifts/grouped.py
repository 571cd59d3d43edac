"""A stream in which clients meet the same shift in groups: who adapts together with whom then matters."""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Shards, check, rng
from ..ops.hashing import content_hash
from .base import Corrupting, Federation, Stream, consecutive, ordered
from .suited import ALL, changed, ice_for, kept, suited


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
        unknown = [k for k in self.kinds if k not in ALL]
        if unknown or not self.kinds:
            says = f"Grouped: kinds={unknown or self.kinds} must name some of {', '.join(ALL)}"
            raise check.FieldError(says, "kinds")

    def build(self, world: Federation, key: rng.Key) -> Stream:
        names = suited(self, world).kinds
        walked, turns, kinds = [], [], []
        for client, own in enumerate(ordered(world, key)):
            at = torch.arange(len(own) if self.length is None or not len(own) else self.length)
            walked.append(own[at % max(len(own), 1)])
            turns.append(torch.div(at, max(len(own), 1), rounding_mode="floor"))
            kinds.append(torch.full_like(at, client % len(names)))
        rows, kind, ice = torch.cat(walked), torch.cat(kinds), ice_for(world.examples.x)
        keys = rng.fold(rng.fold(rng.fold(key, "grouped"), rows), torch.cat(turns))
        clean = world.examples.x[rows]
        name = content_hash(f"grouped/{self.revision}", clean, keys, kind, names, self.severity, ice.mark(names))

        def make() -> torch.Tensor:
            return changed(world, key, clean, kind, self.severity, keys, names, ice, self.revision)

        x = kept(clean, name, make)
        groups = {k: list(range(i, len(walked), len(names))) for i, k in enumerate(names)}
        card = {"severity": self.severity, "groups": groups, "order": "one corruption per client, by its number"}
        card |= {"frost": ice.source} if "frost" in names else {}
        return Stream(Shards.of(x, world.examples.y[rows], consecutive(walked)), card, copied=rows)
