"""Ranges of what clients say of themselves: weights, shares, losses, counts and their own number.

A message holds updates, whose size nobody knows beforehand, and claims, whose range is known. A method declares the
range of every claim in `Method.limits`, a filter what it makes of these ranges in `Filter.limits`, and a server that
hears of clients by a network checks them (`breach`). Engines of one process trust their own clients and check nothing.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from . import tree
from .tree import Tree

ROUNDING = 1e-3
"""By what share a value may lie beyond its range: that of half precision, in which some filters send."""
LOSS = 1e4
"""The largest loss that a client may tell. Chance among n classes is log n, and a model this far off is of no use."""

APART = 2.0
"""How much wider the bound of a `Level` is than that of an update: honest clients are further apart in it."""


class Claim(NamedTuple):
    """What a server knows of a client whose message it looks at."""

    client: int
    """The number of the sender."""
    round: int
    examples: int
    """The most examples that the client may say it has."""
    down: Tree
    """What the clients of this round were sent."""
    up: Mapping[str, Any]
    """The message."""

    @property
    def data(self) -> Tree:
        """What is known of the client's data, in the words of `Holdings.tree`: how much there is, and no example."""
        n, round = torch.tensor(self.examples), torch.tensor(self.round)
        return {"n": n, "rows": torch.empty(self.examples, dtype=torch.int64, device="meta"), "round": round}


@dataclass(frozen=True)
class Limit:
    """The range of one group of a message."""

    summed: ClassVar[bool] = False
    """Whether the range is that of the sum of the group's entries, none of which may be below zero."""

    def range(self, claim: Claim) -> tuple[float, float]:
        """The lowest and the highest value that this client may send."""
        return -math.inf, math.inf


@dataclass(frozen=True)
class Within(Limit):
    """Every entry lies between two numbers. Without a highest one the group is bounded by its norm, as updates are."""

    low: float = 0.0
    high: float = math.inf

    def range(self, claim: Claim) -> tuple[float, float]:
        return self.low, self.high


@dataclass(frozen=True)
class ExampleCount(Limit):
    """Numbers of examples: together no more than the client has registered."""

    summed: ClassVar[bool] = True

    weighs: bool = True
    """Whether the client counts by them, so that its share of their sum is capped."""
    pooled: bool = False
    """Whether that is its share of all places together: each client puts its examples in one place, of its own choice,
    as the votes of clusters. Else it is capped place by place."""

    def range(self, claim: Claim) -> tuple[float, float]:
        return 0.0, float(claim.examples)


@dataclass(frozen=True)
class OwnNumber(Limit):
    """The number of the client itself: what the server knows, and never another."""

    def range(self, claim: Claim) -> tuple[float, float]:
        return float(claim.client), float(claim.client)


@dataclass(frozen=True)
class Granted(Limit):
    """At most the client's own entry of a table that the server has sent: a share that the server itself gave it."""

    table: str = ""

    def range(self, claim: Claim) -> tuple[float, float]:
        return 0.0, float(claim.down[self.table][claim.client])


@dataclass(frozen=True)
class UpTo(Limit):
    """At most what the server computes itself from what it knows of the client, and not below zero."""

    most: Callable[[Claim], Tensor]

    def range(self, claim: Claim) -> tuple[float, float]:
        return 0.0, float(self.most(claim))


@dataclass(frozen=True)
class Level(Limit):
    """What a client measures of the model as it is, such as mean features. It grows as the model learns: its norm may
    be what is usual in the same round, where three or more say so, however small earlier ones were, and `APART` times
    as far off as an update's."""


@dataclass(frozen=True)
class Whole(Limit):
    """A range that holds for whole numbers alone: a filter has put noise on the others."""

    limit: Limit = Limit()

    def range(self, claim: Claim) -> tuple[float, float]:
        return self.limit.range(claim)


Limits = Mapping[str, Limit]
COMMON: Limits = {
    "n": ExampleCount(),
    "counts": ExampleCount(),
    "id": OwnNumber(),
    "prototypes": Level(),
    "descriptor": Level(),
}
"""The claims that have the same name in every method: how many examples a client has, how many of each class, its own
number, and mean features of its examples, by class or of all."""


def known(limit: Limit | None) -> bool:
    """Whether a range has two ends. A group without such a range is bounded by its norm."""
    return not (
        limit is None or isinstance(limit, Whole | Level) or (isinstance(limit, Within) and limit.high == math.inf)
    )


def said(limit: Limit | None) -> Limit | None:
    """What a method has declared of a group, noise put on it or not."""
    return limit.limit if isinstance(limit, Whole) else limit


def breach(limits: Limits, claim: Claim) -> str | None:
    """Which group of a message lies beyond its range, in words; None where all lie within."""
    for group, limit in limits.items():
        for value in tree.leaves(claim.up[group]) if group in claim.up else ():
            if value.numel() and (reason := _beyond(limit, value, claim)):
                return f"group '{group}': {reason}"
    return None


def _beyond(limit: Limit, value: Tensor, claim: Claim) -> str | None:
    if isinstance(limit, Whole):
        return None if value.is_floating_point() else _beyond(limit.limit, value, claim)
    low, high = limit.range(claim)
    value = value.double()  # of whole numbers beyond 2^53 the last digits do not matter here
    if float(value.min()) < low - ROUNDING * abs(low):
        return f"got {float(value.min()):g}, expected at least {low:g}"
    most = float(value.sum() if limit.summed else value.max())
    if not most <= high + ROUNDING * abs(high) * value.is_floating_point():
        return f"got {most:g}, expected at most {high:g}"
    return None


def pooled(weights: Tensor, share: float) -> Tensor:
    """Weights of clients [clients, places], scaled down where a client has more than a share of all of them."""
    held = weights.double().flatten(1).sum(1)
    cut = capped(held, share)
    factor = torch.where(cut < held, cut / held.clamp_min(1e-300), torch.ones_like(held))
    scaled = weights.double() * factor.view(-1, *[1] * (weights.dim() - 1))
    new = scaled if weights.is_floating_point() else scaled.floor()
    return torch.where((factor < 1).view(-1, *[1] * (weights.dim() - 1)), new.to(weights.dtype), weights)


def capped(weights: Tensor, share: float) -> Tensor:
    """Weights of clients [clients, ...], each cut to at most a share of their sum, place by place.

    Where too few clients have a weight for that, all who have one count alike. Weights that need no cut stay as they
    are, to the bit.
    """
    rising = weights.double().sort(0).values
    most = (1.0 / (rising > 0).sum(0).clamp_min(1).double()).clamp_min(share)
    # With all from one place of the order on cut to a level t: t = most * (the sum below that place + number * t). The
    # line of a wrong place has a higher t.
    below = torch.cat([torch.zeros_like(rising[:1]), rising.cumsum(0)[:-1]])  # a difference would lose small weights
    number = torch.arange(len(rising), 0, -1, dtype=rising.dtype).reshape(-1, *[1] * (rising.dim() - 1))
    room = 1.0 - most * number
    level = most * below / room.clamp_min(1e-12)
    fits = (room > 1e-12) & (level <= rising) & (rising > 0)
    level = torch.where(fits, level, torch.full_like(level, torch.inf)).amin(0)
    new = level if weights.is_floating_point() else level.floor()
    beyond = weights.double() > level * (1 + 1e-9)
    return torch.where(beyond, torch.where(beyond, new, torch.zeros_like(new)).to(weights.dtype), weights)
