"""What crosses the network: named groups, a rule per group, and how replies are combined.

A method's `uplink` gives every group of its message a rule. `Sum` and `Mean` are linear: partial results of different
clients simply add up, so they stream chunk by chunk, across workers, or under secure aggregation. `Gather` keeps each
client's reply. The cost of a message is the bytes of its tensors.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import torch
from torch import Tensor

from . import tree
from .nn import rehearsal, soundness, weighted
from .tree import Tree


@dataclass(frozen=True)
class Rule:
    """How the server may combine one group of the clients' messages."""

    linear: ClassVar[bool] = True


@dataclass(frozen=True)
class Sum(Rule):
    """The server sees the sum over clients."""


@dataclass(frozen=True)
class Mean(Rule):
    """The server sees the weighted mean; `by` names the group with the weights (None: every client counts one).

    A weight may be a number per client, or a vector that matches the leading axes (per-class counts for prototypes).
    """

    by: str | None = None


@dataclass(frozen=True)
class Gather(Rule):
    """The server sees every client's own value, stacked in cohort order."""

    linear: ClassVar[bool] = False


Rules = Mapping[str, Rule]


class Partial(NamedTuple):
    """What is known of a round so far: closed under `combine`, so any tree of workers may reduce it."""

    clients: Tensor
    """Who is in it."""
    sums: Tree
    """Weighted sums of the linear groups."""
    weights: Tree
    """Sums of the weights of the means."""
    each: Tree
    """The gathered groups, one row per client."""

    def of(self, members: slice | Tensor) -> Partial:
        """Without the clients that are no members: the sums never had them, but names and gathered rows do."""
        return self._replace(clients=self.clients[members], each=tree.take(self.each, members))


def check_message(rules: Rules, up: Mapping[str, Any], who: str) -> None:
    """Refuse a message whose groups differ from the method's `uplink`."""
    if missing := set(rules) - set(up):
        raise ValueError(f"{who}: the message lacks {sorted(missing)}, which its uplink names")
    if extra := set(up) - set(rules):
        raise ValueError(f"{who}: the message has {sorted(extra)}, which its uplink does not name; add a rule")
    for name, rule in rules.items():
        if isinstance(rule, Mean) and rule.by is not None and rule.by not in rules:
            raise ValueError(f"{who}: Mean('{rule.by}') of group '{name}' names no group of the message")
        tree.check(up[name], f"{who}: message['{name}']")


def partial(rules: Rules, clients: Tensor, ups: Tree, present: Tensor | None = None) -> Partial:
    """Reduce messages with a leading client axis. `present` (bool per client) leaves out padding clients."""
    there = torch.ones_like(clients, dtype=torch.float32) if present is None else present.to(torch.float32)
    sums, weights, each = {}, {}, {}
    for name, rule in rules.items():
        if isinstance(rule, Gather):
            each[name] = ups[name]
            continue
        weight = there
        if isinstance(rule, Mean):
            if rule.by is not None:
                given = ups[rule.by].to(torch.float32)
                weight = given * there.reshape(there.shape + (1,) * (given.dim() - 1))
            weights[name] = weight.sum(0)
        sums[name] = tree.at_once(lambda xs, w=weight: weighted.totals(xs, w), ups[name])
    if rehearsal.running():
        _foreseen(sums, weights)
    return Partial(clients, sums, weights, each)


def _foreseen(sums: Tree, weights: Tree) -> None:
    """What the server does next with these sums, for its kernels' sake: means, and whether a state of as many tensors
    is finite."""
    means = [_divided(sums[name], weight) for name, weight in weights.items()]
    for mean in means:
        if len(tree.leaves(mean)) > 1:
            soundness.finite(mean)


def combine(a: Partial, b: Partial) -> Partial:
    """Two partial results as one."""
    each = tree.map(lambda x, y: torch.cat([x, y]), a.each, b.each)
    sums, weights = (tree.at_once(torch._foreach_add, x, y) for x, y in ((a.sums, b.sums), (a.weights, b.weights)))
    return Partial(torch.cat([a.clients, b.clients]), sums, weights, each)


def finish(rules: Rules, part: Partial, cohort: Tensor) -> Tree:
    """The total that the method's server half receives; gathered rows follow the order of the cohort.

    The cohort may lie on the host: the device gets it where there is something to gather, and nobody waits for it.
    """
    out: Tree = {}
    for name, rule in rules.items():
        if isinstance(rule, Gather):
            # both sides sorted by client id, then the cohort's order undone
            order = torch.argsort(torch.argsort(cohort)).to(part.clients.device, non_blocking=True)
            rows = torch.argsort(part.clients)[order]
            out[name] = tree.take(part.each[name], rows)
        elif isinstance(rule, Mean):
            out[name] = _divided(part.sums[name], part.weights[name])
        else:
            out[name] = part.sums[name]
    return out


def _divided(sums: Any, weight: Tensor) -> Any:
    """Sums over their weights; zero where the weight is."""
    leaves = tree.leaves(sums)
    if leaves and (found := weighted.means(leaves, weight)) is not None:
        each = iter(found)
        return tree.map(lambda _: next(each), sums)
    kinds = {x.dtype: weight.to(x.dtype) for x in tree.leaves(sums)}
    nothing = {kind: w == 0 for kind, w in kinds.items()}
    safe = {kind: w.masked_fill(nothing[kind], 1) for kind, w in kinds.items()}

    def mean(total: Tensor) -> Tensor:
        shape = weight.shape + (1,) * (total.dim() - weight.dim())
        return (total / safe[total.dtype].reshape(shape)).masked_fill(nothing[total.dtype].reshape(shape), 0)

    return tree.map(mean, sums)


def describe(up: Mapping[str, Any]) -> list[dict[str, Any]]:
    """What one message is made of: group, name, shape, type and bytes of every tensor."""
    out = []
    for group, part in up.items():
        for name, t in (tree.flatten(part) if isinstance(part, Mapping) else {"": part}).items():
            bytes_ = t.numel() * t.element_size()
            kind = str(t.dtype).removeprefix("torch.")
            out.append({"group": group, "name": name, "shape": list(t.shape), "dtype": kind, "bytes": bytes_})
    return out
