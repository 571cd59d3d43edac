"""Corruptions that come and go while the mix of classes drifts on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import check, rng
from .base import Federation, Stream, ordered
from .drift import Gradual, Recurring, Segments


@dataclass(frozen=True)
class LabelClock(Segments):
    """The base of both: every `period` samples the client's mix reaches another one, drawn from Dirichlet(alpha) over
    the classes that it has; between two, it moves evenly from the one to the other. A class's own examples come in
    turn, again and again."""

    alpha: float = 0.5
    period: int = 50

    def __post_init__(self) -> None:
        check.positive(self, "alpha")
        check.whole(self, "period", 1)
        super().__post_init__()

    def walked(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return clocked(world, key, self.segment * len(self.plan()), self.alpha, self.period)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        built = super().build(world, key)
        order = f"the mix of classes drifts, to another one of Dirichlet({self.alpha}) every {self.period} samples"
        return replace(built, card={**built.card, "order": order, "alpha": self.alpha, "period": self.period})


@dataclass(frozen=True)
class GradualLabels(LabelClock, Gradual):
    """One corruption that grows and fades, under a mix of classes that drifts: images and labels change at different
    times."""


@dataclass(frozen=True)
class RecurringLabels(LabelClock, Recurring):
    """A few corruptions that come back, with clean segments between, under a mix of classes that drifts: what comes
    back has other labels than before."""


def clocked(world: Federation, key: rng.Key, length: int, alpha: float, period: int) -> list[Tensor]:
    """Every client's rows in an order in which its mix of classes drifts; nothing for a client that has none."""
    y, own = world.examples.y, enumerate(ordered(world, key))
    return [drifting(r, y[r], length, alpha, period, rng.fold(key, "label clock", c)) if len(r) else r for c, r in own]


def drifting(rows: Tensor, classes: Tensor, length: int, alpha: float, period: int, key: rng.Key) -> Tensor:
    """`length` of the rows, each of a class drawn from the mix of its time; a class's rows come in turn."""
    present, at = classes.unique(), torch.arange(length)
    turns = [
        rng.dirichlet(rng.fold(key, "mix", i), alpha, 1, len(present))[0] for i in range((length - 1) // period + 2)
    ]
    mixes, turn, share = torch.stack(turns), at // period, ((at % period) / period).double()[:, None]
    mix = (1.0 - share) * mixes[turn] + share * mixes[turn + 1]
    draws = rng.uniform(rng.fold(key, "class"), length).double()[:, None]
    drawn = (draws >= mix.cumsum(-1)).sum(-1).clamp_max(len(present) - 1)
    out = torch.empty(length, dtype=rows.dtype)
    for i, c in enumerate(present.tolist()):
        mine, own = (drawn == i).nonzero().flatten(), rows[classes == c]
        out[mine] = own[torch.arange(len(mine)) % len(own)]
    return out
