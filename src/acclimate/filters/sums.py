"""A message whose groups are all plain sums: what secure aggregation can carry.

A weighted mean becomes the sum of the weighted values; the sum of the weights is in the message anyway, because the
group that holds them must itself be a sum.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Arrived, Mean, Partial, Rules, Sum, Tree, message, tree


def refusal(rules: Rules) -> str | None:
    """Why messages of these rules are not sums, or None where they are."""
    if not rules:
        return "the method sends nothing"
    if each := sorted(g for g, rule in rules.items() if not rule.linear):
        return f"{each} are gathered from each client, and only sums can be hidden"
    for group, rule in rules.items():
        if isinstance(rule, Mean) and rule.by is not None and not isinstance(rules[rule.by], Sum):
            return f"'{group}' is weighted by '{rule.by}', whose own rule must be Sum()"
    return None


def to_sums(up: Tree, rules: Rules) -> Tree:
    """A client's message with every weighted group multiplied by its weights."""

    def weighted(x: Tensor, by: str) -> Tensor:
        weight: Tensor = up[by]
        return x * weight.reshape(weight.shape + (1,) * (x.dim() - weight.dim())).to(x.dtype)

    out = dict(up)
    for group, rule in rules.items():
        if isinstance(rule, Mean) and rule.by is not None:
            out[group] = tree.map(lambda x, by=rule.by: weighted(x, by), up[group])
    return out


def from_sums(total: Tree, arrived: Arrived) -> Tree:
    """What the method expects, from the sums over clients."""
    first = tree.leaves(total)[0]
    clients = torch.full((), float(arrived.answered), device=first.device)
    weights = {
        g: clients if rule.by is None else total[rule.by].to(torch.float32)
        for g, rule in arrived.rules.items()
        if isinstance(rule, Mean)
    }
    nobody = torch.zeros(0, dtype=torch.int64, device=first.device)
    return message.finish(arrived.rules, Partial(nobody, total, weights, {}), nobody)
