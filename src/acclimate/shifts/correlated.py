"""Streams whose order is hard for adapters: one class after the other, classes in waves, one cycle again and again."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import Shards, check, rng
from .base import Federation, Shift, Stream, ordered
from .drift import Segments, in_waves


@dataclass(frozen=True)
class LabelSorted(Shift):
    """The client's own test examples, one class after the other, in an order of classes drawn for each client."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        y, classes = world.examples.y, len(world.examples.classes)
        rows = []
        for c, own in enumerate(ordered(world, key)):
            place = torch.argsort(rng.permutation(rng.fold(key, "label-sorted", c), classes))
            rows.append(own[torch.argsort(place[y[own]], stable=True)])
        card = {"order": "one class after the other; the order of classes is drawn for each client"}
        return Stream(Shards.of(world.examples.x, y, rows), card)


@dataclass(frozen=True)
class Correlated(Segments):
    """Corrupted segments in each of which classes come in waves, as in the streams of NOTE and RoTTA.

    It joins the segments of `Continual` with the order of `LabelDrift`: the samples of a segment are cut into `slots`
    time slots, over which each class spreads in proportions drawn from Dirichlet(alpha), anew for every segment (Gong
    et al., NeurIPS 2022; Yuan et al., CVPR 2023). A slot has as many samples as a batch by default, so that batches are
    correlated too where a client has few test examples.
    """

    kinds: tuple[str, ...] = ("gaussian_noise", "defocus_blur", "fog", "contrast")
    severity: int = 5
    alpha: float | None = 0.1
    """How strongly classes come together: small gives runs of one class. None leaves the order shuffled."""
    slots: int = 4
    segment: int = 128

    def __post_init__(self) -> None:
        check.whole(self, "severity", 0, 5)
        check.whole(self, "slots", 1)
        if self.alpha is not None:
            check.positive(self, "alpha")
        super().__post_init__()

    def plan(self) -> list[tuple[str, int]]:
        return [(k, self.severity) for k in self.kinds]

    def walked(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return [self._waves(world, r, rng.fold(key, "correlated", c)) for c, r in enumerate(super().walked(world, key))]

    def _waves(self, world: Federation, rows: Tensor, key: rng.Key) -> Tensor:
        """The rows of each segment, and no others, in waves."""
        if self.alpha is None or not len(rows):
            return rows
        parts = enumerate(rows.split(self.segment))
        y = world.examples.y
        return torch.cat([in_waves(r, y[r], self.alpha, self.slots, rng.fold(key, i)) for i, r in parts])

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = super().build(world, key)
        waves = f"within each segment, classes in waves: Dirichlet({self.alpha}) over {self.slots} time slots"
        order = "shuffled" if self.alpha is None else waves
        return replace(built, card={**built.card, "order": order, "alpha": self.alpha, "slots": self.slots})


@dataclass(frozen=True)
class Repeated(Correlated):
    """One short cycle of corrupted segments `cycles` times, the same images in the same order: do adapters collapse?

    PeTTA's recurring streams (Hoang et al., NeurIPS 2024) repeat so; with `alpha` the order within segments is in
    waves, as theirs is.
    """

    kinds: tuple[str, ...] = ("gaussian_noise", "defocus_blur", "contrast")
    alpha: float | None = None
    segment: int = 32
    cycles: int = 20

    def __post_init__(self) -> None:
        check.whole(self, "cycles", 1)
        super().__post_init__()

    def build(self, world: Federation, key: rng.Key) -> Stream:
        once = super().build(world, key)
        s, card = once.shards, {**once.card, "cycles": self.cycles}
        card["order"] = f"{card['order']}; the cycle comes {self.cycles} times, with the same images in the same order"
        rows = [s.own(c).repeat(self.cycles) for c in range(s.clients)]
        return replace(once, shards=Shards.of(s.x, s.y, rows), card=card)
