"""A membership test proves no more than the card claims, and more without noise; benchmarks/epsilon.py is longer."""

import importlib.util
from pathlib import Path

import pytest

SPEC = importlib.util.spec_from_file_location("epsilon", Path(__file__).parents[2] / "benchmarks" / "epsilon.py")
attack = importlib.util.module_from_spec(SPEC)
SPEC.loader.exec_module(attack)


def test_the_confidence_bounds_are_those_of_clopper_and_pearson():
    """Of 8 in 20, by the quantiles of SciPy's beta distribution: beta.ppf(0.025, 8, 13), beta.ppf(0.975, 9, 12)."""
    assert attack.at_least(8, 20, 0.975) == pytest.approx(0.1911901, abs=1e-6)
    assert attack.at_most(8, 20, 0.975) == pytest.approx(0.6394574, abs=1e-6)
    assert attack.at_least(0, 20, 0.975) == 0.0 and attack.at_most(20, 20, 0.975) == 1.0
    assert attack.at_most(0, 20, 0.975) == pytest.approx(1 - 0.025 ** (1 / 20))


def test_what_a_membership_test_proves_is_below_the_claim_and_above_it_where_noise_is_missing():
    honest = attack.attack(400, noise=1.0, clients=4, cohort=4, rounds=1, delta=1e-5, tight=False)
    assert 0 <= honest["epsilon_at_least"] < honest["claimed"]
    silent = attack.lower_bound([1.0] * 400, [0.0] * 400, 1e-5)
    assert silent["epsilon_at_least"] == pytest.approx(3.98, abs=0.1)  # log of 0.9818 over 0.0183: 0 and 200 of 200
