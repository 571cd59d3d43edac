"""Epsilon of the Gaussian mechanism over rounds: own Renyi accounting, or Google's dp-accounting for the tighter one.

`rdp` is Renyi differential privacy at whole orders, for noise on everyone or on a Poisson sample (Mironov, Talwar and
Zhang, 2019, Section 3.3), turned into epsilon as in Canonne, Kamath and Steinke (NeurIPS 2020, Proposition 12). It is a
bound that holds; fractional orders could only make it smaller. `pld` needs the package of the extra `privacy`.
"""

from __future__ import annotations

import importlib.util
import logging
import math
from typing import Any, Literal

Accountant = Literal["rdp", "pld"]
MISSING = "accountant=pld needs the package dp-accounting: pip install 'acclimate[privacy]', or use accountant=rdp"
FRACTIONS = tuple(1 + x / 20 for x in range(1, 200))
ORDERS = (*range(2, 65), *range(72, 257, 8), 320, 384, 512, 768, 1024)


def missing(accountant: Accountant) -> str | None:
    """The sentence that refuses a promise which cannot be accounted for, or None where it can."""
    return None if accountant == "rdp" or importlib.util.find_spec("dp_accounting") else MISSING


def epsilon(noise: float, rate: float, rounds: int, delta: float, accountant: Accountant = "rdp") -> float:
    """The epsilon at `delta` of `rounds` Gaussian mechanisms, each on a Poisson sample of the clients at this rate.

    `noise` is the standard deviation over the sensitivity; at rate 1 nothing is sampled. Neighbours differ by one
    client, who is added or removed.
    """
    if not (noise > 0 and 0 < rate <= 1 and rounds >= 0 and 0 < delta < 1):
        raise ValueError(f"noise={noise}, rate={rate}, rounds={rounds}, delta={delta} are no Gaussian mechanism")
    if rounds == 0:
        return 0.0
    if accountant == "pld":
        return _pld(noise, rate, rounds, delta)
    orders = ORDERS if rate < 1 else (*FRACTIONS, *ORDERS)
    return max(0.0, min(_converted(rounds * renyi(a, noise, rate), a, delta) for a in orders))


def renyi(order: float, noise: float, rate: float) -> float:
    """The Renyi divergence of a Gaussian mechanism, at a whole order where it is on a Poisson sample.

    It is infinite where the noise is so little that double precision cannot hold it.
    """
    spread = 2 * (noise * noise)
    if spread == 0 or math.isinf(order * order / spread):
        return math.inf
    if rate >= 1:
        return order / spread
    order = int(order)
    terms = [
        math.lgamma(order + 1)
        - math.lgamma(k + 1)
        - math.lgamma(order - k + 1)
        + k * math.log(rate)
        + (order - k) * math.log1p(-rate)
        + (k * k - k) / spread
        for k in range(order + 1)
    ]
    top = max(terms)
    return (top + math.log(math.fsum(math.exp(t - top) for t in terms))) / (order - 1)


def _converted(divergence: float, order: float, delta: float) -> float:
    return divergence + math.log1p(-1 / order) - math.log(delta * order) / (order - 1)


def _pld(noise: float, rate: float, rounds: int, delta: float) -> float:
    if reason := missing("pld"):
        raise ModuleNotFoundError(reason)
    absl, level = logging.getLogger("absl"), logging.getLogger("absl").level
    absl.setLevel(logging.ERROR)  # it reports its own settings
    try:
        from dp_accounting import pld

        return float(pld.PLDAccountant().compose(event(noise, rate, rounds)).get_epsilon(delta))
    finally:
        absl.setLevel(level)


def event(noise: float, rate: float, rounds: int) -> Any:
    """The same as an event of dp-accounting."""
    import dp_accounting

    one = dp_accounting.GaussianDpEvent(noise)
    sampled = one if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, one)
    return dp_accounting.SelfComposedDpEvent(sampled, rounds)
