"""Shifts of numbers: vectors [N, features] and windows [N, sensors, time], in five severities.

Sizes are in deviations of the training rows, so that a shift means the same for every column. Columns of zeros and ones
(words) are not numbers: they can go missing, and nothing else happens to them. A mark of what is missing is no column
of its own: it is set where its column goes missing, and stays where it was set. What drifts or breaks does so alike for
all clients and samples: which way, and which sensors, is drawn from one key per experiment.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import torch
from torch import Tensor

from ..core import rng


class Units(NamedTuple):
    """What the training rows say of every column or sensor."""

    mean: Tensor
    std: Tensor
    fill: Tensor
    """What stands where a value is missing: the median of a number, else 0."""
    numbers: Tensor
    """True for columns of numbers."""
    marks: Tensor
    """The column that is 1 where this one is missing, or -1."""


def units(examples: Any, train: Tensor) -> Units:
    """The units of a world: of the training rows of all clients."""
    rows = examples.x[train]
    flat = rows if rows.dim() == 2 else rows.transpose(1, 2).flatten(0, 1)
    two = ((flat == 0) | (flat == 1)).all(0)
    features = getattr(examples, "features", ())
    numbers = torch.tensor([f.measured for f in features]) if features else ~two
    marks = torch.full((flat.shape[1],), -1)
    at = {f.column: i for i, f in enumerate(features) if f.kind == "missing"}
    for i, f in enumerate(features):
        marks[i] = at.get(f.column, -1) if f.measured else -1
    std = flat.std(0, correction=0)
    return Units(flat.mean(0), std, torch.where(numbers, flat.median(0).values, 0.0), numbers, marks)


class Sample(NamedTuple):
    """What a shift may use: one key per example, one for all, and the units as they broadcast over the inputs."""

    keys: Tensor
    common: rng.Key
    units: Units

    def wide(self, values: Tensor, like: Tensor) -> Tensor:
        """Values per column, for inputs of this shape."""
        return values.view(-1, *[1] * (like.dim() - 2))

    def each(self, draw: Callable[[rng.Key], Tensor]) -> Tensor:
        """A draw for every example."""
        return torch.vmap(draw)(self.keys)

    def signs(self, columns: int) -> Tensor:
        """Up or down for every column, the same for all examples."""
        return torch.where(rng.uniform(rng.fold(self.common, "signs"), columns) < 0.5, -1.0, 1.0)


def noise(x: Tensor, size: float, s: Sample) -> Tensor:
    """Gaussian noise on every number."""
    drawn = s.each(lambda k: rng.normal(k, *x.shape[1:]))
    return x + s.wide(s.units.std * s.units.numbers, x) * size * drawn


def missing(x: Tensor, share: float, s: Sample) -> Tensor:
    """A share of the values of each example is missing: columns of a vector, or a stretch of time of a window."""
    if x.dim() == 2:
        gone = s.each(lambda k: rng.uniform(k, x.shape[1])) < share
        return _without(x, gone, s)
    length = max(round(share * x.shape[2]), 1)
    start = s.each(lambda k: rng.randint(k, 0, x.shape[2] - length + 1))
    at = torch.arange(x.shape[2])
    return torch.where(((at >= start[:, None]) & (at < start[:, None] + length))[:, None], s.wide(s.units.fill, x), x)


def scale(x: Tensor, log: float, s: Sample) -> Tensor:
    """Every number is stretched about its mean, or pressed together, by one factor for all examples."""
    factor = torch.where(s.units.numbers, torch.exp(log * s.signs(x.shape[1])), 1.0)
    mean = s.wide(s.units.mean, x)
    return mean + (x - mean) * s.wide(factor, x)


def offset(x: Tensor, size: float, s: Sample) -> Tensor:
    """Every number is higher, or lower, by one amount for all examples."""
    return x + s.wide(size * s.signs(x.shape[1]) * s.units.std * s.units.numbers, x)


def dropped(x: Tensor, share: float, s: Sample) -> Tensor:
    """A share of the columns or sensors says nothing any more, the same ones for all examples."""
    order = rng.permutation(rng.fold(s.common, "dropped"), x.shape[1])
    order = order[~torch.isin(order, s.units.marks)]
    gone = torch.zeros(x.shape[1], dtype=torch.bool)
    gone[order[: max(round(share * len(order)), 1)]] = True
    return _without(x, gone.expand(len(x), -1), s)


def rotated(x: Tensor, degrees: float, s: Sample) -> Tensor:
    """Three sensors each are turned in space by one turn for all examples, as of a device that is worn otherwise."""
    turn, out = rotation(rng.fold(s.common, "axis"), degrees), x.clone()
    for first in range(0, x.shape[1] - 2, 3):
        out[:, first : first + 3] = torch.einsum("ij,bjt->bit", turn, x[:, first : first + 3])
    return out


def rotation(key: rng.Key, degrees: float) -> Tensor:
    """The turn [3, 3] by an angle about an axis that the key draws (Rodrigues' formula)."""
    axis = rng.normal(key, 3)
    a, b, c = (axis / axis.norm()).tolist()
    cross = torch.tensor([[0.0, -c, b], [c, 0.0, -a], [-b, a, 0.0]])
    angle = math.radians(degrees)
    return torch.eye(3) + math.sin(angle) * cross + (1.0 - math.cos(angle)) * cross @ cross


def _without(x: Tensor, gone: Tensor, s: Sample) -> Tensor:
    """x without some columns of each example: filled, and marked where the table has a column that says so."""
    gone = gone & ~torch.isin(torch.arange(x.shape[1]), s.units.marks)
    wide = gone.view(*gone.shape, *[1] * (x.dim() - 2))
    out, marks = torch.where(wide, s.wide(s.units.fill, x), x), s.units.marks
    for i in (marks >= 0).nonzero().flatten().tolist():
        own = out[:, int(marks[i])]
        out[:, int(marks[i])] = torch.where(gone[:, i], 1.0, own)
    return out


NUMBERS: dict[str, tuple[Callable[[Tensor, float, Sample], Tensor], tuple[float, ...]]] = {
    "noise": (noise, (0.1, 0.25, 0.5, 0.75, 1.0)),
    "offset": (offset, (0.2, 0.4, 0.7, 1.0, 1.5)),
    "missing": (missing, (0.05, 0.1, 0.2, 0.35, 0.5)),
    "scale": (scale, (0.1, 0.2, 0.4, 0.7, 1.0)),
    "dropped": (dropped, (0.1, 0.2, 0.3, 0.4, 0.5)),
    "rotated": (rotated, (10.0, 20.0, 40.0, 60.0, 90.0)),
}
"""Kind to its function and its sizes at severity 1 to 5. `rotated` is for windows of three sensors or more."""


def kinds_for(x: Tensor) -> tuple[str, ...]:
    """The kinds of shift that fit these inputs; none where they are no vectors or windows of numbers."""
    if not x.is_floating_point() or x.dim() not in (2, 3):
        return ()
    turns = x.dim() == 3 and x.shape[1] >= 3
    return tuple(k for k in NUMBERS if k != "rotated" or turns)


def change_each(
    x: Tensor, kinds: Tensor, severities: int | Tensor, keys: Tensor, names: Sequence[str], of: Units, common: rng.Key
) -> Tensor:
    """Example b under `names[kinds[b]]` at `severities` (one for all, or [B]), with the draws of `keys[b]`."""
    levels = torch.full_like(keys, severities) if isinstance(severities, int) else severities.to(keys)
    out = x.clone()
    for kind, level in torch.unique(torch.stack((kinds.to(keys), levels), 1), dim=0).tolist():
        rows = ((kinds == kind) & (levels == level)).nonzero().flatten()
        function, sizes = NUMBERS[names[kind]]
        sample = Sample(rng.fold(keys[rows], names[kind]), rng.fold(common, names[kind]), of)
        out[rows] = function(x[rows], sizes[level - 1], sample)
    return out
