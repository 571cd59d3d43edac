"""Differential privacy for clients: the Gaussian mechanism, at the server or at each client, with its epsilon.

`CentralDP` is DP-FedAvg (McMahan et al., ICLR 2018): messages are clipped to norm C, the server sums them and adds
noise of standard deviation z C to the sum. It protects against everyone but the server. `LocalDP` adds the noise at
the client, so the server needs no trust, and needs far more noise for the same epsilon.

Both need every client to count the same. Under a mean by example counts one client can have any share of the result,
and the counts themselves would leave the client: no noise is enough, and such methods are refused. A robust reducer
before `LocalDP` changes nothing about that: it gathers the mean, and still reads a weight of zero as no value. Groups
that nobody needs then (`withhold`, the counts) are sent as zeros. Everything else is clipped together and gets noise,
integers too. Only the client's own number, by which some methods file what they gather, is sent as it is: who sends is
known to the server in any case.

What the epsilon assumes is in `card`. In simulations the noise follows from the run's seed, so that it can be repeated;
whoever knows the seed can take it off again. A real federation names a `secret`. Floating-point noise is not protected
against attacks on its last bits (Mironov, CCS 2012).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, ClassVar

from torch import Tensor

from ..core import Arrived, Filter, Gather, Mean, Rules, Sender, Tree, check, rng, tree
from ..core.limits import Limits, OwnNumber
from . import accounting
from .accounting import Accountant
from .message_parts import as_float, clipped, map_keyed
from .secret import normal

NUMBER = "id"
"""The group in which methods send the client's number."""


@dataclass(frozen=True)
class _Gaussian(Filter):
    """What central and local DP share: clipping, what is withheld, and which messages are refused."""

    no_weights: ClassVar[str] = ""
    """Why a weight is refused, as the end of a sentence about it."""

    clip: float = 1.0
    """C: the Euclidean norm, over all groups together, to which a message is scaled down."""
    noise: float = 1.0
    """z: the noise's standard deviation over C."""
    delta: float = 1e-5
    """The probability for which epsilon need not hold; it should be well below one over the number of clients."""
    withhold: tuple[str, ...] = ("n",)
    """Groups that are sent as zeros: what a method with uniform weights sends and does not need."""
    accountant: Accountant = "rdp"
    """The accountant of epsilon: `rdp` is quick, `pld` is tighter, but slow and large for little noise."""
    secret: str = ""
    """The environment variable with the secret of whoever adds the noise, a new one each run; empty in simulations."""

    def __post_init__(self) -> None:
        check.positive(self, "clip")
        check.positive(self, "noise")
        if not 0 < self.delta < 1:
            raise check.FieldError(f"{type(self).__name__}: delta={self.delta!r} must be above 0 and below 1", "delta")
        check.choices(self)

    def refusal(self, rules: Rules) -> str | None:
        for group, rule in rules.items():
            if isinstance(rule, Mean) and rule.by is not None:
                return (
                    f"'{group}' is a mean weighted by '{rule.by}', {self.no_weights}; count every client as one "
                    "(method.weights=uniform, if the method has it)"
                )
        return accounting.missing()

    def bounded(self, up: Tree) -> Tree:
        """The message with zeros for what is withheld, and the rest, in floating point, clipped together."""
        rest = tree.map(as_float, tree.drop(up, self.withhold))
        return {**up, **tree.zeros(tree.pick(up, self.withhold)), **clipped(rest, self.clip)}

    def noised(self, part: Any, std: float, key: rng.Key) -> Any:
        """A group with Gaussian noise of this standard deviation on every entry."""
        return map_keyed(lambda x, k: x + std * normal(self.secret, k, x), part, key)

    def _source(self) -> str:
        if self.secret:
            return "The secret that the noise is drawn from stays with whoever adds it, and serves one run."
        return "A simulation: the noise follows from the seed, and whoever knows that can take it off."

    def _ledger(self, noise: float, rate: float, rounds: int) -> dict[str, Any]:
        event = accounting.gaussian_event(noise, rate, rounds)
        return {
            "epsilon": accounting.epsilon(event, self.delta, self.accountant),
            "delta": self.delta,
            "accountant": f"dp-accounting {self.accountant}",
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "compositions": rounds,
        }


@dataclass(frozen=True)
class CentralDP(_Gaussian):
    """Clients clip, the server adds Gaussian noise to the sum (DP-FedAvg, McMahan et al., ICLR 2018)."""

    needs_sums: ClassVar[bool] = True
    no_weights: ClassVar[str] = "which a client may set at will, so that the sensitivity is unbounded"

    def refusal(self, rules: Rules) -> str | None:
        if each := sorted(g for g, rule in rules.items() if isinstance(rule, Gather)):
            return f"{each} are gathered from each client, so there is no sum to add noise to; use LocalDP"
        return super().refusal(rules)

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        return self.bounded(up)

    def arrive(self, up: Tree) -> Tree:
        return self.bounded(up)  # the promise must not hang on a client's honesty, nor on a codec's rounding

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        def std(group: str) -> float:
            share = arrived.answered if isinstance(arrived.rules[group], Mean) else 1
            return self.noise * self.clip / share

        noisy = {g: self.noised(t, std(g), rng.fold(key, g)) for g, t in total.items() if g not in self.withhold}
        return {**total, **noisy}

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        ledger = self._ledger(self.noise, cohort / clients, rounds)
        sampling = "" if cohort == clients else " Cohorts have a fixed size; they are accounted for as Poisson samples."
        return {
            "mechanism": "Gaussian noise on the sum of clipped messages",
            **ledger,
            "protects": "one client's whole participation (add or remove), against all but the server",
            "assumes": "An honest server. " + self._source() + sampling,
        }


@dataclass(frozen=True)
class LocalDP(_Gaussian):
    """Every client clips its message and adds the noise itself: no trust in the server."""

    looks_back: ClassVar[bool] = True
    no_weights: ClassVar[str] = "which leaves a client only as zeros or under noise"

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        number = _number(tree.drop(up, self.withhold), sender)
        bounded = self.bounded(tree.drop(up, tuple(number)))
        std = self.noise * self.clip
        noisy = {g: self.noised(t, std, rng.fold(key, g)) for g, t in bounded.items() if g not in self.withhold}
        return {**up, **bounded, **noisy, **number}

    def limits(self, limits: Limits) -> Limits:
        return {group: limit for group, limit in limits.items() if isinstance(limit, OwnNumber)}  # noise has no range

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        # Two messages of norm C are up to 2 C apart. The server knows who takes part, so sampling hides nothing.
        return {
            "mechanism": "Gaussian noise on each clipped message",
            **self._ledger(self.noise / 2, 1.0, rounds),
            "protects": "the content of one client's messages (replaced by any other), against everyone",
            "assumes": "A client in every round, the worst case. Who sends is no secret. " + self._source(),
        }


def _number(up: Tree, sender: Sender) -> Tree:
    """The group with the client's number, if the message has one: the sender's, so that nothing else passes as it."""
    given = up.get(NUMBER)
    if not isinstance(given, Tensor) or given.is_floating_point() or given.shape != sender.client.shape:
        return {}
    return {NUMBER: sender.client.to(given.dtype)}
