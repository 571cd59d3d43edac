"""Epsilon from Google's dp-accounting, which the extra `privacy` installs."""

from __future__ import annotations

import importlib.util
import logging
from typing import Any, Literal

Accountant = Literal["rdp", "pld"]
MISSING = "it needs the package dp-accounting to know its epsilon: pip install 'acclimate[privacy]'"


def missing() -> str | None:
    """The sentence that refuses a promise which cannot be accounted for, or None where it can."""
    return None if importlib.util.find_spec("dp_accounting") else MISSING


def gaussian_event(noise: float, rate: float, rounds: int) -> Any:
    """dp-accounting's event for `rounds` Gaussian mechanisms, each on a Poisson sample of clients at this rate.

    `noise` is the standard deviation over the sensitivity; at rate 1 nothing is sampled.
    """
    if reason := missing():
        raise ModuleNotFoundError(reason)
    import dp_accounting

    one = dp_accounting.GaussianDpEvent(noise)
    return dp_accounting.SelfComposedDpEvent(
        one if rate >= 1 else dp_accounting.PoissonSampledDpEvent(rate, one), rounds
    )


def epsilon(event: Any, delta: float, accountant: Accountant) -> float:
    """The epsilon that the accountant proves for this event at `delta`."""
    from dp_accounting import pld, rdp

    ledger = rdp.RdpAccountant() if accountant == "rdp" else pld.PLDAccountant()
    absl, level = logging.getLogger("absl"), logging.getLogger("absl").level
    absl.setLevel(logging.ERROR)  # it reports every order that it leaves out, and the bound holds without them
    try:
        return float(ledger.compose(event).get_epsilon(delta))
    finally:
        absl.setLevel(level)
