"""What a small device may learn from, after BoTTA (Danilowski et al., 2025): few samples, few classes, now and then.

BoTTA adapts on one set and tests on another. Here both are parts of one stream, and every answer counts: those to the
samples that the adapter learns from, too. What is bounded is what an adapter keeps from batch to batch. One that adapts
within a batch, such as to its statistics, still does so with every batch.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import check, rng, stream
from .base import Federation, Stream
from .benchmark_streams import Corrupted
from .drift import Continual, walk


@dataclass(frozen=True)
class FewSamples(Corrupted):
    """The client's own test examples, corrupted; the adapter learns from the first `learn` of them alone."""

    batch: int = 16
    learn: int = 16

    def __post_init__(self) -> None:
        check.whole(self, "learn", 1)
        super().__post_init__()

    @property
    def protocol(self) -> stream.Protocol:
        return stream.Protocol(self.batch, self.reset, until=self.learn)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = super().build(world, key)
        return replace(built, card={**built.card, "learning": f"from the first {self.learn} samples alone"})


@dataclass(frozen=True)
class FewClasses(FewSamples):
    """The adapter learns from `learn` samples of a few classes alone, and then meets all classes of the client.

    The classes are drawn for each client, of those that it has. Their examples come first, again and again up to
    `learn`; then all of the client's own test examples come once, with those again that were learned from.
    """

    classes: int = 2

    def __post_init__(self) -> None:
        check.whole(self, "classes", 1)
        super().__post_init__()

    def rows(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return [self._before(world, own, rng.fold(key, "few", c)) for c, own in enumerate(super().rows(world, key))]

    def _before(self, world: Federation, own: Tensor, key: rng.Key) -> Tensor:
        y = world.examples.y[own]
        present = y.unique()
        few = present[rng.permutation(key, len(present))[: self.classes]]
        return torch.cat((walk(own[torch.isin(y, few)], self.learn), own))

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = super().build(world, key)
        words = f"from the first {self.learn} samples alone, which are of {self.classes} of the client's classes"
        return replace(built, card={**built.card, "learning": words})


@dataclass(frozen=True)
class Periodic(Continual):
    """One corruption type after the other; the adapter learns from one batch in `every`, and else only answers."""

    kinds: tuple[str, ...] = ("gaussian_noise", "defocus_blur", "fog", "contrast")
    segment: int = 128
    every: int = 4

    def __post_init__(self) -> None:
        check.whole(self, "every", 1)
        super().__post_init__()

    @property
    def protocol(self) -> stream.Protocol:
        return stream.Protocol(self.batch, self.reset, self.segment, every=self.every)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = super().build(world, key)
        words = f"from the first batch of {self.batch} samples in every {self.every}"
        return replace(built, card={**built.card, "learning": words})
