"""Coordinate-wise trimmed mean. Yin et al., ICML 2018, Option II."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Tree, check, tree
from .robust import Robust, masked_mean, ranked


@dataclass(frozen=True)
class TrimmedMean(Robust):
    """Each coordinate's mean without its largest and smallest values (Yin et al., ICML 2018)."""

    share: float = 0.2
    """The share that is cut from each end, floor(share * clients) values. The mean bears as many clients who lie."""

    def __post_init__(self) -> None:
        if not 0 <= self.share < 0.5:
            check.within(self, "share", 0.0, 0.5)
            raise check.FieldError(
                f"TrimmedMean: share={self.share!r} must be below 0.5: something must be left", "share"
            )

    def reduce(self, groups: Tree, there: dict[str, Tensor]) -> Tree:
        return {g: tree.map(lambda x, t=there[g]: trimmed_mean(x, t, self.share), part) for g, part in groups.items()}


def trimmed_mean(x: Tensor, there: Tensor, share: float) -> Tensor:
    """Over the first axis, of what is there."""
    order, count = ranked(x, there)
    cut = (count.double() * share + 1e-9).floor()  # 0.2 * 5 must be 1 in floating point too
    rank = torch.arange(len(x), device=x.device).reshape(-1, *[1] * (x.dim() - 1))
    return masked_mean(order, (rank >= cut) & (rank < count - cut))
