"""The base record of message filters: privacy, robustness and compression, generic over methods.

A message passes every filter's `client` half in order. At the server each single message passes the `arrive` halves
back in reverse order, messages are combined by the rules that are then in force, and the result passes the `server`
halves, again in reverse order. So a filter may change the form of a message (`arrive` undoes it), the rule by which it
is combined (`uplink` says so, `server` makes of the result what the method expects), or its values.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

from torch import Tensor

from . import rng
from .limits import Limits
from .message import Gather, Rules
from .tree import Tree


class Sender(NamedTuple):
    """What a filter's client half may know besides the message."""

    rules: Rules
    """Of the message as this filter gets it."""
    client: Tensor
    round: Tensor
    cohort: Tensor | None = None
    """Who takes part in the round; only where some filter `hides`, because telling it costs bytes."""
    secret: bytes | None = None
    """The key of the run at this place, 32 bytes that follow from nothing; None where everything follows from the
    seed."""
    mask: Callable[[int], Tensor] | None = None
    """Gives so many words of masks, on which the place has agreed with others for this message alone."""


class Arrived(NamedTuple):
    """What a filter's server half may know besides the combined messages."""

    rules: Rules
    """Of the message as this filter got it at the client: the form that `server` gives back."""
    answered: int
    """How many messages are in the total."""
    asked: int
    """How many clients the round was for."""
    expected: int | None = None
    """How many a round is for on average, a number that no client changes; None: `asked`."""
    secret: bytes | None = None
    """The key of the run at the server; None where everything follows from the seed."""
    absent: tuple[int, ...] = ()
    """Clients the round was for whose messages are not in the total."""


@dataclass(frozen=True)
class Filter:
    """Changes messages on their way. The base record changes nothing; all halves are pure tensor code under `vmap`."""

    encodes: ClassVar[bool] = False
    """Whether what is sent has another form, which `arrive` undoes. Such filters come after all others."""
    hides: ClassVar[bool] = False
    """Whether a single message tells nothing and only the sum can be read. Such a filter comes last."""
    needs_sums: ClassVar[bool] = False
    """Whether the server half relies on sums and means that really are such: no later filter may gather instead."""
    looks_back: ClassVar[bool] = False
    """Whether `refusal` is asked about the rules before all earlier filters too, the method's own among them: what a
    robust reducer gathers looks free of weights, but its server half still reads them."""
    bounds: ClassVar[bool] = False
    """Whether `arrive` bounds every message by a constant, and a promise rests on that alone: then what others send may
    not decide how much of a message counts."""
    least: ClassVar[int] = 1
    """The fewest clients in a round with which it does what it says."""

    @property
    def needs(self) -> int:
        """The fewest clients that a round may be planned for: `least`, or more where its settings ask for more."""
        return self.least

    def refusal(self, rules: Rules) -> str | None:
        """Why this filter cannot serve messages of these rules, in one sentence, or None where it can."""
        return None

    def uplink(self, rules: Rules) -> Rules:
        """The rules by which the messages that this filter gives are combined."""
        return rules

    def limits(self, limits: Limits) -> Limits:
        """The ranges of the groups that this filter gives, from those of the groups that it gets.

        They are those of a message at the server, once it has passed `arrive`.
        """
        return limits

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        """What is sent instead of `up`."""
        return up

    def arrive(self, up: Tree) -> Tree:
        """One message on its arrival, before it is combined with others."""
        return up

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        """What the method's server half receives instead of `total`."""
        return total

    def cohort_key(self, secret: bytes | None, seed: int) -> bytes | None:
        """The key from which cohorts are drawn by Poisson sampling; None: they follow from the seed, as usual.

        `secret` is the key of the run; a secret of several runs must be mixed with the `seed`.
        """
        return None

    @property
    def wants_secret(self) -> bool:
        """Whether a new run must have a key of its own."""
        return False

    def simulated(self) -> Filter:
        """The record as it is in a run without a key, whose promise then does not hold."""
        return self

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        """What results.json says about this filter in a run: plain JSON, empty where there is nothing to say."""
        return {}


def before_each(filters: Sequence[Filter], rules: Rules) -> list[Rules]:
    """The rules that each filter meets and, as the last entry, those that are in force on the wire."""
    out = [rules]
    for f in filters:
        out.append(f.uplink(out[-1]))
    return out


def refusal(filters: Sequence[Filter], rules: Rules) -> str | None:
    """Why these filters cannot serve messages of these rules in this order, naming the filter, or None."""
    met = before_each(filters, rules)
    for i, f in enumerate(filters):
        name, later = type(f).__name__, filters[i + 1 :]
        if reason := _first_reason(f, met[i::-1] if f.looks_back else [met[i]]):
            return f"{name}: {reason}"
        if f.hides and later:
            return f"{name}: it must be the last filter, because nothing can be read from what it sends"
        if f.encodes and (plain := [type(g).__name__ for g in later if not g.encodes]):
            return f"{name}: it changes the form of messages, so {plain[0]} must come before it"
        gathered = [g for g, rule in met[-1].items() if isinstance(rule, Gather)]
        if f.needs_sums and gathered:
            return f"{name}: it relies on sums, but a later filter gathers {sorted(gathered)} from each client"
    return None


def _first_reason(f: Filter, met: Sequence[Rules]) -> str | None:
    return next((reason for reason in map(f.refusal, met) if reason), None)
