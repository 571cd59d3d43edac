"""Krum and multi-Krum. Blanchard et al., NeurIPS 2017, Section 4.

With n clients of whom f may lie, a client's score is the sum of squared distances from its message to the n - f - 2
nearest others. Krum takes the message with the lowest score, multi-Krum the mean over the `select` lowest. Distances
are over all linear groups together that hold floating-point numbers; counts and other integers do not vote, but are
taken from the same clients. The paper's guarantee needs 2 f + 2 < n; rounds for fewer clients are refused, because a
sum of few distances proves nothing. Where a round was for enough and fewer answered, as in a fleet that has suspended
liars, the round goes on with each coordinate's median, which bears f liars among 2 f + 1 clients or more.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Arrived, Tree, check, rng, tree
from .median import Median
from .message_parts import as_float, floats
from .robust import Robust, masked_mean, wide


@dataclass(frozen=True)
class Krum(Robust):
    """The message, or the mean of `select` messages, nearest to its neighbours (Blanchard et al., NeurIPS 2017)."""

    liars: int = 1
    """f: how many clients of a round may lie."""
    select: int = 1
    """How many messages are averaged: 1 is Krum, more is multi-Krum."""

    def __post_init__(self) -> None:
        check.at_least(self, "liars", 0)
        check.at_least(self, "select", 1)

    @property
    def needs(self) -> int:
        return self.liars + 2 + max(self.liars + 1, self.select)

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        self._enough(arrived.asked)
        return super().server(total, key, arrived)

    def reduce(self, groups: Tree, there: dict[str, Tensor]) -> Tree:
        count = len(tree.leaves(groups)[0])
        if count <= 2 * self.liars + 2:
            return Median().reduce(groups, there)
        best = scores(groups, self.liars).argsort(stable=True)[: min(self.select, count - self.liars - 2)]
        return {g: tree.map(lambda x, t=there[g]: _mean_of(as_float(x), t, best), part) for g, part in groups.items()}

    def _enough(self, clients: int) -> None:
        if clients < self.needs:
            raise ValueError(
                f"Krum: a round of {clients} clients with liars={self.liars} and select={self.select}: it needs more "
                f"than 2 * liars + 2 = {2 * self.liars + 2} clients and select at most clients - liars - 2 = "
                f"{clients - self.liars - 2}; lower liars or select, or raise cohort"
            )


def scores(groups: Tree, liars: int) -> Tensor:
    """Krum's score of every client: squared distances to the nearest others, summed in float64."""
    flat = torch.cat([x.reshape(len(x), -1) for x in floats(groups)], 1).double()  # a scalar of each client too
    # Distances from differences: |a|^2 + |b|^2 - 2ab would lose the small ones, which are those that count.
    apart = torch.stack([(flat - row).square().sum(1) for row in flat])
    apart = apart + torch.diag(torch.full_like(apart[0], torch.inf))
    return apart.sort(1).values[:, : len(flat) - liars - 2].sum(1)


def _mean_of(x: Tensor, there: Tensor, who: Tensor) -> Tensor:
    return masked_mean(x[who], wide(there, x)[who])
