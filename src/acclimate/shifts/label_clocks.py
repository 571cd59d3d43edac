"""Corruptions that come and go while the mix of classes drifts on a clock of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core import check, rng
from .base import Federation, Stream, ordered
from .drift import Gradual, Recurring


@dataclass(frozen=True)
class GradualLabels(Gradual):
    """One corruption that grows and fades, under a mix of classes that drifts.

    Every `period` samples the client's mix reaches another one, drawn from Dirichlet(alpha) over the classes that it
    has; between two, it moves evenly from the one to the other. So images and labels change at different times. A
    class's own examples come in turn, again and again.
    """

    alpha: float = 0.5
    period: int = 50

    def __post_init__(self) -> None:
        _check(self)
        super().__post_init__()

    def walked(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return clocked(world, key, self.segment * len(self.plan()), self.alpha, self.period)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return _told(super().build(world, key), self.alpha, self.period)


@dataclass(frozen=True)
class RecurringLabels(Recurring):
    """A few corruptions that come back, with clean segments between, under a mix of classes that drifts.

    The mix drifts as in `GradualLabels`: what comes back has other labels than before.
    """

    alpha: float = 0.5
    period: int = 50

    def __post_init__(self) -> None:
        _check(self)
        super().__post_init__()

    def walked(self, world: Federation, key: rng.Key) -> list[Tensor]:
        return clocked(world, key, self.segment * len(self.plan()), self.alpha, self.period)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        return _told(super().build(world, key), self.alpha, self.period)


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


def _check(record: Any) -> None:
    check.positive(record, "alpha")
    check.whole(record, "period", 1)


def _told(stream: Stream, alpha: float, period: int) -> Stream:
    order = f"the mix of classes drifts, to another one of Dirichlet({alpha}) every {period} samples"
    return replace(stream, card={**stream.card, "order": order, "alpha": alpha, "period": period})
