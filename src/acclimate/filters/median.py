"""Coordinate-wise median. Yin et al., ICML 2018, Option I."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Tree, tree
from .robust import Robust, ranked


@dataclass(frozen=True)
class Median(Robust):
    """Each coordinate's median over clients: right as long as fewer than half of them lie (Yin et al., ICML 2018)."""

    def reduce(self, groups: Tree, there: dict[str, Tensor]) -> Tree:
        return {g: tree.map(lambda x, t=there[g]: median(x, t), part) for g, part in groups.items()}


def median(x: Tensor, there: Tensor) -> Tensor:
    """Over the first axis, of what is there; the mean of the middle two for an even number, zero for none."""
    order, count = ranked(x, there)
    low, high = ((count - 1).clamp_min(0) // 2, (count // 2).clamp_max(len(x) - 1))
    middle = 0.5 * (order.gather(0, low[None])[0] + order.gather(0, high[None])[0])
    return torch.where(count > 0, middle, torch.zeros_like(middle))
