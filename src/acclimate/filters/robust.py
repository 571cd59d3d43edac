"""The base record of robust reducers: every client's message is kept, and the server makes one value of them.

A rule that must see single messages cannot work on sums. So these filters turn the method's `Sum` and `Mean` groups
into gathered ones; the server half gives back one value where the method expects a mean, and that value times the
number of clients where it expects a sum. The method and the engine notice nothing. What it costs: the server sees
single messages and holds all of a round's at once, so there is no secure aggregation with it.

Clients count equally, whatever weights the method gives them: a client that may say how much it counts could outweigh
all others. A weight of zero still means that the client has no such value (a class it never saw) and leaves it out.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Arrived, Filter, Gather, Mean, Rules, Sum, Tree, rng, tree
from .message_parts import as_float


@dataclass(frozen=True)
class Robust(Filter):
    """Gathers the linear groups and reduces them by `reduce`, which is all that a robust rule writes."""

    def refusal(self, rules: Rules) -> str | None:
        if not any(rule.linear for rule in rules.values()):
            return f"the message has no Sum or Mean to replace; its rules are {dict(rules)}"
        return None

    def uplink(self, rules: Rules) -> Rules:
        return {group: Gather() if rule.linear else rule for group, rule in rules.items()}

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        linear = {g: total[g] for g, rule in arrived.rules.items() if rule.linear}
        there = {g: presence(linear, g, arrived.rules) for g in linear}
        reduced = self.reduce(linear, there)

        def as_sum(x: Tensor, like: Tensor) -> Tensor:
            return (x * arrived.answered).to(like.dtype)  # counts stay integers

        for group in linear:
            if isinstance(arrived.rules[group], Sum):
                reduced[group] = tree.map(as_sum, reduced[group], linear[group])
        return {g: reduced.get(g, total[g]) for g in arrived.rules}

    def reduce(self, groups: Tree, there: dict[str, Tensor]) -> Tree:
        """One value, in floating point, for every stacked one [clients, ...].

        `there` says per group who has a value: bool [clients], or [clients, rows] where weights are per row.
        """
        raise TypeError(f"{type(self).__name__} must define reduce(groups, there)")


def presence(groups: Tree, group: str, rules: Rules) -> Tensor:
    """Which clients, or which rows of which clients, have a value in this group: those whose weight is not zero."""
    rule = rules[group]
    if isinstance(rule, Mean) and rule.by in groups:
        weight: Tensor = groups[rule.by]
        return weight != 0
    own, every = tree.leaves(groups[group]), tree.leaves(groups)
    first = (own or every)[0]  # a group may be empty: the buffers of a model that has none
    return torch.ones(first.shape[0], dtype=torch.bool, device=first.device)


def wide(there: Tensor, x: Tensor) -> Tensor:
    """`there` with as many axes as `x`."""
    return there.reshape(there.shape + (1,) * (x.dim() - there.dim())).expand(x.shape)


def ranked(x: Tensor, there: Tensor) -> tuple[Tensor, Tensor]:
    """Each coordinate's values over clients in ascending order, absent ones last; and how many are there."""
    x, present = as_float(x), wide(there, x)
    return torch.where(present, x, torch.full_like(x, torch.inf)).sort(0).values, present.sum(0)


def masked_mean(x: Tensor, keep: Tensor) -> Tensor:
    """The mean over clients of what is kept; zero where nothing is."""
    kept = torch.where(keep, x, torch.zeros_like(x)).sum(0)
    return kept / keep.sum(0).clamp_min(1).to(x.dtype)
