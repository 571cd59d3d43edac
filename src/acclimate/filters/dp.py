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

What the epsilon assumes is in `card`. A run has a key that follows from nothing (`store.secrets`): the noise is drawn
from it, and for `CentralDP` the cohorts too, each client by a coin of its own (`core.poisson`). Sums are divided by the
expected number of clients, which no client changes. With `secret="seed"`, and in runs from before there were keys, all
follows from the seed, so that it can be repeated: whoever knows the seed takes the noise off, and no epsilon is
printed. Values and noise lie on a grid, so that their last bits tell nothing (`gaussian`).
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from typing import Any, ClassVar, Literal

import torch
from torch import Tensor

from ..core import Arrived, Filter, Gather, Mean, Rules, Sender, Tree, check, rng, tree
from ..core.limits import Limits, OwnNumber
from . import accounting, gaussian
from .accounting import Accountant
from .message_parts import as_float, clipped, map_floats, map_keyed
from .secret import SEED, noise, of_seed, of_sums, purpose_key, without

NUMBER = "id"
"""The group in which methods send the client's number."""
LEAST_STD, MOST_STD = 1e-30, 1e30
"""Standard deviations of noise whose grid and whose values 32-bit floats can hold."""
_NOTHING = "nothing: cohorts and noise follow from the seed, so no epsilon is claimed"
_WITHIN = 1 - 2.0**-30
"""Messages are clipped to this share of the norm, because a norm in double precision is not exact either."""


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
    """The accountant of epsilon: `rdp` is quick, `pld` is tighter, but slow and large for little noise, and needs a
    package."""
    secret: str = ""
    """Empty: a key that is created with the run, by whoever adds the noise. `seed`: all follows from the seed, and no
    epsilon holds. Otherwise the environment variable with the secret of whoever adds the noise, a new one each run."""

    def __post_init__(self) -> None:
        check.positive(self, "clip")
        check.positive(self, "noise")
        if not LEAST_STD <= self.std <= MOST_STD:
            raise check.FieldError(
                f"{type(self).__name__}: noise={self.noise!r} times clip={self.clip!r}, the standard deviation of the "
                f"noise, must be between {LEAST_STD:g} and {MOST_STD:g}",
                "noise",
                "clip",
            )
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
        return accounting.missing(self.accountant)

    @property
    def wants_secret(self) -> bool:
        return not self.secret

    def simulated(self) -> Filter:
        return self if self.secret else replace(self, secret=SEED)

    @property
    def std(self) -> float:
        """The noise's standard deviation."""
        return self.noise * self.clip

    def bounded(self, up: Tree) -> Tree:
        """The message with zeros for what is withheld, and the rest, in double precision, clipped together and rounded
        towards zero to the noise's grid. A message that is not finite counts as one of zeros."""
        rest = tree.map(lambda x: as_float(x).double(), tree.drop(up, self.withhold))
        sound, step = tree.finite(rest), gaussian.step_of(self.std)
        rest = tree.map(lambda x: torch.where(sound, x, 0.0), rest)
        rest = tree.map(lambda x: gaussian.on_grid(x, step), clipped(rest, self.clip * _WITHIN))
        return {**up, **tree.zeros(tree.pick(up, self.withhold)), **rest}

    def _source(self) -> str:
        if self.secret == SEED:
            return "A simulation: cohorts and noise follow from the seed, and whoever knows that can take it off."
        return "The secret that the noise is drawn from stays with whoever adds it, and serves one run."

    def _ledger(self, noise: float, rate: float, rounds: int) -> dict[str, Any]:
        if self.secret == SEED:
            return {"delta": self.delta, "noise_multiplier": noise, "compositions": rounds}
        return {
            "epsilon": accounting.epsilon(noise, rate, rounds, self.delta, self.accountant),
            "delta": self.delta,
            "accountant": "Renyi" if self.accountant == "rdp" else "dp-accounting pld",
            "noise_multiplier": noise,
            "sampling_rate": rate,
            "compositions": rounds,
        }


@dataclass(frozen=True)
class CentralDP(_Gaussian):
    """Clients clip, the server adds Gaussian noise to the sum (DP-FedAvg, McMahan et al., ICLR 2018)."""

    needs_sums: ClassVar[bool] = True
    bounds: ClassVar[bool] = True
    no_weights: ClassVar[str] = "which a client may set at will, so that the sensitivity is unbounded"

    revision: Literal[1, 2] = field(default=2, kw_only=True)
    """The revision of the cohorts: in 1, all seeds under one secret of the environment drew the same clients."""

    def refusal(self, rules: Rules) -> str | None:
        if each := sorted(g for g, rule in rules.items() if isinstance(rule, Gather)):
            return f"{each} are gathered from each client, so there is no sum to add noise to; use LocalDP"
        return super().refusal(rules)

    def cohort_key(self, secret: bytes | None, seed: int) -> bytes | None:
        key = purpose_key(self.secret, secret, "cohorts")
        return of_seed(key, seed) if self.secret and self.revision > 1 else key

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        return tree.map(lambda x: x.float() if x.dtype == torch.float64 else x, self.bounded(up))

    def arrive(self, up: Tree) -> Tree:
        return self.bounded(up)  # the promise must not hang on a client's honesty, nor on a codec's rounding

    def server(self, total: Tree, key: rng.Key, arrived: Arrived) -> Tree:
        step, by = gaussian.step_of(self.std), float(arrived.expected or arrived.asked)
        means = {g for g, rule in arrived.rules.items() if isinstance(rule, Mean)}

        def summed(name: str, part: Any) -> Any:
            count = arrived.answered if name in means else 1
            return map_floats(lambda x: torch.round(x.double() * count / step) * step + 0.0, part)

        sums = {g: summed(g, t) for g, t in total.items() if g not in self.withhold}
        secret = without(purpose_key(self.secret, arrived.secret, "noise"), arrived.absent)
        secret = of_sums(secret, sums)

        def released(x: Tensor, k: rng.Key, name: str) -> Tensor:
            noisy = x + noise(secret, k, x, self.std, exact=True)
            return (noisy / by if name in means else noisy).float()

        def group(name: str, part: Any) -> Any:
            return map_keyed(lambda x, k: released(x, k, name), part, rng.fold(key, name))

        return {**total, **{g: group(g, t) for g, t in sums.items()}}

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        sampled = cohort < clients
        if self.secret == SEED:
            sampling = ""
        elif sampled:
            sampling = (
                " Each client is in a round by a coin of its own, drawn from that secret; nobody but the server knows "
                "who was. Sums are divided by the expected number of clients."
            )
        else:
            sampling = " No sampling is counted on: a client may be in every round, and all may know it."
        return {
            "mechanism": "Gaussian noise on the sum of clipped messages",
            **self._ledger(self.noise, cohort / clients, rounds),
            "neighbours": "add or remove one client",
            "protects": _NOTHING
            if self.secret == SEED
            else "one client's whole participation (add or remove), against all but the server",
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
        secret = purpose_key(self.secret, sender.secret, "noise")

        def sent(x: Tensor, k: rng.Key) -> Tensor:
            return (x + noise(secret, k, x, self.std, exact=False)).float()

        noisy = {g: map_keyed(sent, t, rng.fold(key, g)) for g, t in bounded.items() if g not in self.withhold}
        return {**up, **bounded, **noisy, **number}

    def limits(self, limits: Limits) -> Limits:
        return {group: limit for group, limit in limits.items() if isinstance(limit, OwnNumber)}  # noise has no range

    def card(self, rules: Rules, rounds: int, cohort: int, clients: int) -> dict[str, Any]:
        # Two messages of norm C are up to 2 C apart. The server knows who takes part, so sampling hides nothing.
        return {
            "mechanism": "Gaussian noise on each clipped message",
            **self._ledger(self.noise / 2, 1.0, rounds),
            "neighbours": "replace all messages of one client",
            "protects": _NOTHING
            if self.secret == SEED
            else "the content of one client's messages (replaced by any other), against everyone",
            "assumes": "A client in every round, the worst case. Who sends is no secret. " + self._source(),
        }


def _number(up: Tree, sender: Sender) -> Tree:
    """The group with the client's number, if the message has one: the sender's, so that nothing else passes as it."""
    given = up.get(NUMBER)
    if not isinstance(given, Tensor) or given.is_floating_point() or given.shape != sender.client.shape:
        return {}
    return {NUMBER: sender.client.to(given.dtype)}
