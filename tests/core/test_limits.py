"""Ranges of claims, the cap on shares, and that every method declares what its clients claim."""

import itertools

import pytest
import torch

from acclimate.core import Mean, Method, limits
from acclimate.core.limits import COMMON, Claim, ExampleCount, Granted, UpTo, Whole, Within
from acclimate.experiment import catalogue


def claim(**up):
    return Claim(2, 5, 30, {"shares": torch.tensor([0.1, 0.2, 0.4])}, up)


CASES = {
    "within": (Within(-1.0, 1.0), torch.tensor([1.0, -1.0]), None),
    "above": (Within(-1.0, 1.0), torch.tensor([0.0, 1.5]), "got 1.5, expected at most 1"),
    "below": (Within(0.0, 1.0), torch.tensor(-0.5), "got -0.5, expected at least 0"),
    "examples": (ExampleCount(), torch.tensor(30), None),
    "one example more": (ExampleCount(), torch.tensor(31), "got 31, expected at most 30"),
    "2^62 examples": (ExampleCount(), torch.tensor(2**62), "expected at most 30"),
    "classes together": (ExampleCount(), torch.tensor([20, 11]), "got 31, expected at most 30"),
    "a class below 0": (ExampleCount(), torch.tensor([40, -20]), "got -20, expected at least 0"),
    "own number": (COMMON["id"], torch.tensor(2), None),
    "other number": (COMMON["id"], torch.tensor(3), "got 3, expected at most 2"),
    "granted": (Granted("shares"), torch.tensor(0.4), None),
    "in half precision": (Granted("shares"), torch.tensor(0.4).half().float(), None),
    "not granted": (Granted("shares"), torch.tensor(1e30), "expected at most 0.4"),
    "computed": (UpTo(lambda c: c.data["n"] / 2), torch.tensor(15.5), "got 15.5, expected at most 15"),
    "noise": (Whole(ExampleCount()), torch.tensor(31.0), None),
    "no noise on whole numbers": (Whole(ExampleCount()), torch.tensor(31), "got 31"),
}


@pytest.mark.parametrize("name", CASES)
def test_a_claim_beyond_its_range_is_named(name):
    limit, value, reason = CASES[name]
    found = limits.breach({"a": limit, "absent": Within(0, 0)}, claim(a=value))
    assert (found is None) if reason is None else (found.startswith("group 'a': ") and reason in found), found


WEIGHTS = [(1, 1, 1, 97), (2**62, 10, 10, 10), (5, 5), (1, 3), (0, 0, 7), (4, 0, 9, 90), (3,) * 4]


@pytest.mark.parametrize("share", [0.1, 0.25, 0.3, 0.5, 0.9, 1.0])
@pytest.mark.parametrize("weights", WEIGHTS)
def test_no_share_of_the_weights_is_above_the_cap(weights, share):
    """Against the level that is found by halving."""
    got = limits.capped(torch.tensor(weights, dtype=torch.float64), share)
    most = max(share, 1 / sum(w > 0 for w in weights))
    low, high = 0.0, float(max(weights))
    if most * sum(weights) < max(weights) * (1 - 1e-12):
        for _ in range(200):
            middle = (low + high) / 2
            fits = middle <= most * sum(min(w, middle) for w in weights) * (1 + 1e-13)
            low, high = (middle, high) if fits else (low, middle)
    level = high if most < 1 else float(max(weights))
    assert got.tolist() == pytest.approx([min(w, level) for w in weights], rel=1e-6)


def test_the_cap_is_place_by_place_and_keeps_whole_numbers():
    votes = torch.tensor([[0, 5], [3, 5], [9, 0], [1, 90]])
    assert limits.capped(votes, 0.5).tolist() == [[0, 5], [3, 5], [4, 0], [1, 10]]
    assert limits.capped(votes, 1.0) is not votes and torch.equal(limits.capped(votes, 1.0), votes)


def test_the_cap_does_not_depend_on_the_order():
    for order in itertools.permutations([1.0, 2.0, 3.0, 50.0]):
        assert limits.capped(torch.tensor(order), 0.5).max() == pytest.approx(6.0)


def test_the_cap_is_of_one_client_and_not_of_several_together():
    """docs/security.md says so: three of ten with registered ranges that are wide outweigh the others."""
    held = limits.capped(torch.tensor([1e6] * 3 + [100.0] * 7), 0.5)
    assert float(held[:3].sum() / held.sum()) > 0.99 and float(held.max() / held.sum()) < 0.5


METHODS = {n: m for n, m in catalogue.METHODS.items() if not m.several_models}


@pytest.mark.parametrize("name", METHODS)
def test_every_weight_has_a_range(name):
    """A weight without a range would let a client say how much it counts. Fisher traces have no highest value."""
    method: Method = METHODS[name]
    for by in {rule.by for rule in method.uplink.values() if isinstance(rule, Mean) and rule.by}:
        assert by in method.limits and (limits.known(method.limits[by]) or by == "fisher")


def test_an_adapter_that_sends_claims_declares_them():
    assert set(catalogue.ADAPTERS["latte"].limits) == {"entropy"}
