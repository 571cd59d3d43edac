"""How much one client may move the model: claims within their ranges, norms bounded, shares of weights capped.

A message that passed the checks of its form (`checks.examine`) is looked at here. What it claims must lie in the ranges
that method and filters declare (`Worker.limits`). The norm of each group that is an update is compared with a running
median: of the round's messages and of the last that counted, or of the higher of the two where a method declares that
the group follows the model (`limits.Level`). Beyond `clip` times that median a message is scaled down, and far beyond
it is refused. Where messages are hidden, all this is done with their sum; where a filter bounds each by
a constant (`Filter.bounds`), as differential privacy must, that is the bound.

What it remembers is a tree of tensors, which checkpoints hold: the norms that the median is taken of, and how often
each client broke a rule.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ...core import Mean, Tree, Worker, limits, tree
from ...core.limits import Claim, ExampleCount, Level, Whole

WINDOW = 32
"""How many norms of messages that counted are remembered, per group."""
UNKNOWN = -1.0
"""Stands for a norm that is not known yet."""
FAR = 10.0
"""A norm beyond so many times its bound is no honest client's: the message is refused."""
ENOUGH = 3
"""Messages of a round whose median says what is usual by itself, whatever earlier rounds have said."""


class SumRefused(ArithmeticError):
    """The combined messages of a round may not count: they lie beyond what honest clients could send together."""


class Intake:
    """Judges messages, and makes of those that count what may be combined."""

    def __init__(self, worker: Worker, examples: Tensor, clip: float, max_share: float) -> None:
        self.hidden = any(f.hides for f in worker.filters)
        """Whether only the sum of messages can be read."""
        self.noised = any(f.bounds for f in worker.filters)
        """Whether the combined messages have noise on them, which lies in no range."""
        self._means = frozenset(g for g, rule in worker.method.uplink.items() if isinstance(rule, Mean))
        if not self.hidden and self.noised:
            clip, max_share = 0.0, 1.0  # a median would make one client's message decide about all others'
        self.limits, self.examples, self.clip, self.max_share = worker.limits, examples, clip, max_share
        self.updates = tuple(g for g in worker.method.uplink if not limits.known(self.limits.get(g)))
        """The groups that are bounded by their norm."""
        self.levels = frozenset(g for g in self.updates if isinstance(limits.said(self.limits.get(g)), Level))
        """Those of them that follow the model: a median of the round itself may say that they have grown."""
        by = {rule.by for rule in worker.method.uplink.values() if isinstance(rule, Mean)}
        self.weights = tuple(g for g in worker.method.uplink if g in by or _weighs(self.limits.get(g)))
        """The groups by which clients count."""
        norms = {g: torch.full((WINDOW,), UNKNOWN, dtype=torch.float64) for g in self.updates if clip}
        self.state: Tree = {"strikes": torch.zeros(len(examples), dtype=torch.int64), "norms": norms}

    # --- one message ----------------------------------------------------------------------------------------------

    def beyond(self, up: Mapping[str, Any], client: int, round: int, down: Tree) -> str | None:
        """Which claim of a message lies beyond its range, in words; None where none does."""
        if self.hidden:
            return None
        return limits.breach(self.limits, Claim(client, round, int(self.examples[client]), down, up))

    # --- the messages of a round ----------------------------------------------------------------------------------

    def far_off(self, ups: Mapping[int, Tree]) -> dict[int, str]:
        """Why the norms of some messages are no honest client's, by client."""
        if self.hidden or not self.clip:
            return {}
        norms = {c: self._norms(up) for c, up in ups.items()}
        bounds = self._bounds(list(norms.values()))
        out = {}
        for c, own in norms.items():
            for g in self.updates:
                if own[g] > FAR * bounds[g]:
                    bound = f"{self.clip:g} times the running median is {bounds[g]:.3g}"
                    out[c] = f"group '{g}' has norm {own[g]:.3g}, and {bound}"
        return out

    def bounded(self, ups: Mapping[int, Tree]) -> dict[int, Tree]:
        """The messages that count: norms scaled down to their bounds, shares of weights cut. Remembers the norms."""
        if self.hidden or not ups:
            return dict(ups)
        out = dict(ups)
        if self.clip:
            norms = {c: self._norms(up) for c, up in ups.items()}
            bounds = self._bounds(list(norms.values()))
            out = {c: self._scaled(up, norms[c], bounds) for c, up in ups.items()}
            self._remember([{g: min(own[g], bounds[g]) for g in self.updates} for own in norms.values()])
        return self._capped(out)

    def look_at_sum(self, total: Tree, clients: Sequence[int], down: Tree, round: int) -> None:
        """Raise `SumRefused` where the combined messages, of which none could be read, lie beyond what they may."""
        for group in (g for g in self.limits if g in total and not self.noised):
            self._check_range(group, total, clients, down, round)
        if not self.clip:
            return
        own = self._norms(total)
        sent = {str(i): x for i, x in enumerate(tree.leaves(down)) if x.is_floating_point()}  # not the cohort's numbers
        # Before there is a median, updates are held against what was sent. Zeros say nothing, and a model says nothing
        # of a group with a range of its own, such as features or importances.
        usual = self.clip * _norm(sent) or math.inf
        first = {g: usual if self.limits.get(g) is None else math.inf for g in self.updates}
        bounds = {g: bound if math.isfinite(bound) else first[g] for g, bound in self._bounds([]).items()}
        for group in self.updates:
            if own[group] > bounds[group]:
                raise SumRefused(
                    f"group '{group}' of the sum has norm {own[group]:.3g}, the bound is {bounds[group]:.3g}"
                )
        self._remember([own])

    def _check_range(self, group: str, total: Tree, clients: Sequence[int], down: Tree, round: int) -> None:
        """Raise `SumRefused` where a group lies beyond what these clients may send: in sum, or at most in a mean."""
        parts, limit = [x for x in tree.leaves(total[group]) if x.numel()], self.limits[group]
        if isinstance(limit, Whole):
            parts, limit = [x for x in parts if not x.is_floating_point()], limit.limit
        ends = [limit.range(Claim(c, round, int(self.examples[c]), down, total)) for c in clients]
        lows, highs = [low for low, _ in ends], [high for _, high in ends]
        low, high = (min(lows), max(highs)) if group in self._means else (sum(lows), sum(highs))
        for value in (x.double() for x in parts):
            most, least = float(value.sum() if limit.summed else value.max()), float(value.min())
            if least < low - limits.ROUNDING * abs(low) or most > high + limits.ROUNDING * abs(high):
                got = f"got values from {least:g} to {most:g}"
                raise SumRefused(f"group '{group}' of the sum: {got}, expected {low:g} to {high:g}")

    # --- who breaks rules -----------------------------------------------------------------------------------------

    def strike(self, clients: Sequence[int]) -> None:
        """Note clients that broke a rule in a round."""
        strikes = self.state["strikes"].clone()
        strikes[list(clients)] += 1
        self.state = {**self.state, "strikes": strikes}

    # --- parts ----------------------------------------------------------------------------------------------------

    def _norms(self, up: Mapping[str, Any]) -> dict[str, float]:
        return {g: _norm(up[g]) for g in self.updates}

    def _bounds(self, now: Sequence[Mapping[str, float]]) -> dict[str, float]:
        """The bound of each group, from the norms of this round's messages and of those that counted before."""
        out = {}
        for g in self.updates:
            before = self.state["norms"][g]
            # A zero of an earlier round says nothing: some methods send zeros at first, and then updates.
            before, here = before[before > 0], _votes([own[g] for own in now])
            apart = g in self.levels and len(here) >= ENOUGH
            medians = [float(v.median()) for v in ((before, here) if apart else (torch.cat([before, here]),)) if len(v)]
            wider = limits.APART if g in self.levels else 1.0
            out[g] = self.clip * wider * max(medians) if medians else math.inf
        return out

    def _remember(self, norms: Sequence[Mapping[str, float]]) -> None:
        kept = {
            g: torch.cat([torch.tensor([own[g] for own in norms], dtype=torch.float64), before])[:WINDOW]
            for g, before in self.state["norms"].items()
        }
        self.state = {**self.state, "norms": kept}

    def _scaled(self, up: Tree, norms: Mapping[str, float], bounds: Mapping[str, float]) -> Tree:
        large = {g: bounds[g] / norms[g] for g in self.updates if norms[g] > bounds[g]}
        return up | {g: tree.map(lambda x, f=factor: _times(x, f), up[g]) for g, factor in large.items()}

    def _capped(self, ups: dict[int, Tree]) -> dict[int, Tree]:
        for group in self.weights:
            held = torch.cat([up[group] for up in ups.values()])
            limit = limits.said(self.limits.get(group))
            together = isinstance(limit, ExampleCount) and limit.pooled
            cut = (limits.pooled if together else limits.capped)(held, self.max_share)
            ups = {c: up | {group: cut[i : i + 1]} for i, (c, up) in enumerate(ups.items())}
        return ups


def _votes(norms: Sequence[float]) -> Tensor:
    """The norms of a round that are asked for a median. Of one or two clients a zero is no majority."""
    return torch.tensor([x for x in norms if x > 0 or len(norms) > 2], dtype=torch.float64)


def _weighs(limit: limits.Limit | None) -> bool:
    limit = limits.said(limit)
    return isinstance(limit, ExampleCount) and limit.weighs


def _norm(part: Any) -> float:
    """The norm over all entries, in double precision: squares of large numbers stay finite."""
    squares = [x.double().square().sum() for x in tree.leaves(part)]
    return float(torch.stack(squares).sum().sqrt()) if squares else 0.0


def _times(x: Tensor, factor: float) -> Tensor:
    return (x.double() * factor).to(x.dtype)
