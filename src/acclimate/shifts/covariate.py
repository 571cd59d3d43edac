"""Streams of tables and time series that choose and order examples, and leave them as they are."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Shards, check, rng
from ..ops.layout import some
from .base import Federation, Shift, Stream, ordered

SHARES = (0.8, 0.65, 0.5, 0.35, 0.2)
"""The share of a client's examples that is left at severity 1 to 5."""
_UNORDERED = "no word is higher than another"


@dataclass(frozen=True)
class Quantile(Shift):
    """The client's own test examples with the highest values of one column: covariate shift by quantile.

    At severity 1 to 5 the highest 80, 65, 50, 35 and 20 per cent of a client's examples are left; their labels are
    theirs, so that what changes is which inputs come. For windows a sensor's mean over time counts.
    """

    severity: int = 3
    column: str = ""
    """The column of numbers, dates or times, or the sensor: its name, or an input's number from 0; empty: the one that
    varies most between clients."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "severity", 1, 5)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        x = world.examples.x
        if not x.is_floating_point() or x.dim() not in (2, 3):
            raise ValueError(
                f"Quantile: inputs of shape {tuple(x.shape[1:])} have no columns; it is for numbers, as tables "
                "and sensors have them"
            )
        values = x if x.dim() == 2 else x.mean(2)
        place, name = self._place(world, values)
        own = ordered(world, key)
        rows = [_highest(r, values[r, place], SHARES[self.severity - 1]) for r in own]
        card = {"severity": self.severity, "column": name, "share": SHARES[self.severity - 1]}
        return Stream(Shards.of(x, world.examples.y, rows), card)

    def _place(self, world: Federation, values: Tensor) -> tuple[int, str]:
        """Number and name of the column."""
        features = getattr(world.examples, "features", ())
        names = [f.column for f in features] or [str(i) for i in range(values.shape[1])]
        measured = [i for i in range(len(names)) if not features or features[i].measured]
        if not measured:
            raise ValueError(f"Quantile: all columns ({some(list(dict.fromkeys(names)))}) hold words, and {_UNORDERED}")
        places = {str(i): i for i in measured} | {names[i]: i for i in measured}
        if self.column in places:
            return places[self.column], names[places[self.column]]
        if self.column:
            numbers = ", ".join(map(str, measured[:3])) + ", ..." * (len(measured) > 3)
            raise check.FieldError(
                f"Quantile: column={self.column!r} {f'holds words, and {_UNORDERED}; it ' * (self.column in names)}"
                f"must be one of {some([names[i] for i in measured])}, or an input's number ({numbers})",
                "column",
            )
        means = torch.stack([values[r].mean(0) for r in world.train if len(r)])
        spread = values[torch.cat(list(world.train))].std(0, correction=0)
        ratio = torch.where(spread > 0, means.std(0, correction=0) / spread.clamp_min(1e-30), 0.0)
        best = measured[int(ratio[measured].argmax())]
        return best, names[best]


def _highest(rows: Tensor, values: Tensor, share: float) -> Tensor:
    """The rows with the highest values, a share of them and at least one, in the order they had."""
    count = max(round(len(rows) * share), min(len(rows), 1))
    chosen = torch.argsort(values, descending=True, stable=True)[:count]
    return rows[chosen.sort().values]


@dataclass(frozen=True)
class InOrder(Shift):
    """The client's own test examples in the order of the data, such as the order of time."""

    def build(self, world: Federation, key: rng.Key) -> Stream:
        rows = [r.sort().values for r in world.test]
        return Stream(Shards.of(world.examples.x, world.examples.y, rows), {"order": "as in the data"})
