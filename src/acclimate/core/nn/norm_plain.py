"""Norms of many clients in plain tensor code: the value, its gradient, and the gradient of that.

With u the normalised x, r one over the spread, g = dy * weight, and T(v) = v - mean(v) - u * mean(v * u), the gradient
is dx = r * T(g). T is symmetric, and pulls a slope of u back to x, which gives the second one in a few more means.
Where some samples count for the statistics and others do not, means are sums over the number of those that do, what
T takes away is taken from them alone, and its transpose takes away means over them.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor


@dataclass(frozen=True)
class Norm:
    """Over what is normalised: all samples ([G, B, C, P]), groups of channels (the same), or rows ([G, R, C])."""

    kind: Literal["batch", "group", "layer"]
    eps: float
    groups: int = 1
    own: bool = True
    """Whether the statistics are the input's own; else they are given."""
    relu: int = 0
    """What follows: nothing (0), ReLU (1), or ReLU6, which ends at 6 (6)."""
    counted: bool = False
    """Whether batch statistics are those of some samples; counts [G, B] then say which, by not being zero."""

    @property
    def axes(self) -> tuple[int, ...]:
        """What shares statistics, in `wide` order."""
        return {"batch": (1, 3), "group": (3, 4), "layer": (2,)}[self.kind]

    def wide(self, x: Tensor) -> Tensor:
        """x in float32 at least, with an axis of groups where there are any."""
        x = x if x.dtype == torch.float64 else x.float()
        return x.unflatten(2, (self.groups, -1)) if self.kind == "group" else x

    def narrow(self, x: Tensor, like: Tensor) -> Tensor:
        """`wide` undone."""
        return x.reshape(like.shape).to(like.dtype)

    def across(self, weight: Tensor) -> Tensor:
        """Weights [G, C] in `wide` order."""
        weight = weight if weight.dtype == torch.float64 else weight.float()
        if self.kind == "group":
            return weight.unflatten(1, (self.groups, -1))[:, None, :, :, None]
        return weight[:, None, :, None] if self.kind == "batch" else weight[:, None]

    def total(self, x: Tensor, like: Tensor) -> Tensor:
        """The transpose of `across`: sums over what shares a weight."""
        axes = {"batch": (1, 3), "group": (1, 4), "layer": (1,)}[self.kind]
        return x.sum(axes).reshape(like.shape).to(like.dtype)

    def mean(self, x: Tensor, counts: Tensor | None) -> Tensor:
        """Over what shares statistics, with axes of length one; a sum over as many as count, where some do not."""
        if counts is None:
            return x.mean(self.axes, keepdim=True)
        many = (counts != 0).sum(1).clamp_min(1) * x.shape[3]
        return x.sum(self.axes, keepdim=True) / many.view(-1, 1, 1, 1)

    def stats(self, x: Tensor, mean: Tensor | None, var: Tensor | None, counts: Tensor | None) -> tuple[Tensor, Tensor]:
        """Mean and variance of wide x with axes of length one: its own, or those given."""
        if mean is None or var is None or self.own:
            mean = self.mean(counting(x, counts), counts)
            return mean, self.mean(counting((x - mean).square(), counts), counts)
        for axis in self.axes:
            mean, var = mean.unsqueeze(axis), var.unsqueeze(axis)
        return mean, var


def counting(x: Tensor, counts: Tensor | None) -> Tensor:
    """x [G, B, C, P] of the samples that count, and zero for others."""
    return x if counts is None else torch.where(counts[:, :, None, None] != 0, x, 0.0)


def forward(
    x: Tensor, weight: Tensor, bias: Tensor, add: Tensor | None, mean: Tensor | None, var: Tensor | None,
    counts: Tensor | None, norm: Norm,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """y, mean and variance."""
    wide = norm.wide(x)
    m, v = norm.stats(wide, mean, var, counts)
    y = (wide - m) * (v + norm.eps).rsqrt() * norm.across(weight) + norm.across(bias)
    y = y if add is None else y + norm.wide(add)
    m, v = (mean, var) if mean is not None and var is not None else (s.squeeze(norm.axes) for s in (m, v))
    return norm.narrow(y.clamp(0, 6) if norm.relu == 6 else y.relu() if norm.relu else y, x), m, v


def passed(d: Tensor, y: Tensor | None, norm: Norm) -> Tensor:
    """What of a gradient goes through ReLU or ReLU6, whose result is y; all where none followed."""
    if y is None:
        return d
    return torch.where((y > 0) & (y < 6) if norm.relu == 6 else y > 0, d, 0.0)


def back(
    dy: Tensor, x: Tensor, weight: Tensor, y: Tensor | None, mean: Tensor, var: Tensor, counts: Tensor | None,
    norm: Norm,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, dweight and dbias; y where ReLU followed."""
    dy = passed(dy, y, norm)
    wide, d = norm.wide(x), norm.wide(dy)
    m, v = norm.stats(wide, mean, var, counts)
    r = (v + norm.eps).rsqrt()
    u, g = (wide - m) * r, d * norm.across(weight)
    g = _through(g, u, counts, norm) if norm.own else g
    return norm.narrow(r * g, x), norm.total(d * u, weight), norm.total(d, weight)


def back_again(
    ways: tuple[Tensor, ...], dy: Tensor, x: Tensor, weight: Tensor, y: Tensor | None, stats: tuple[Tensor, ...],
    counts: Tensor | None, norm: Norm,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """The gradients that reach dy, x and weight from those of `back`'s three results."""
    wide, d, a = norm.wide(x), norm.wide(passed(dy, y, norm)), norm.wide(ways[0])
    w, p, q = (norm.across(t) for t in (weight, ways[1], ways[2]))
    m, v = norm.stats(wide, stats[0], stats[1], counts)
    r = (v + norm.eps).rsqrt()
    u, g, some = (wide - m) * r, d * w, counting(a, counts)
    if norm.own:
        mean, au, gu = (norm.mean(v, counts) for v in (some, some * u, g * u))
        t, both = a - mean - u * au, norm.mean(a * g, counts) - mean * norm.mean(g, counts) - au * gu
        to_x = r * _through(p * d - r * (some * gu + g * au), u, counts, norm) - counting(u, counts) * r.square() * both
    else:
        t, to_x = a, r * p * d
    to_dy = passed(norm.narrow(w * r * t + p * u + q, dy), y, norm)
    return to_dy, norm.narrow(to_x, x), norm.total(d * r * t, weight)


def _through(v: Tensor, u: Tensor, counts: Tensor | None, norm: Norm) -> Tensor:
    """T of v: what of it goes through statistics that are x's own."""
    return v - counting(norm.mean(v, counts), counts) - counting(u * norm.mean(v * u, counts), counts)
