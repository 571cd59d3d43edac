"""What results say of privacy: which noise, rate and rounds are accounted for, whatever accounts for them."""

import pytest
import torch

from acclimate.core import Arrived, Gather, Mean, Sum, rng
from acclimate.core.limits import ExampleCount, OwnNumber
from acclimate.filters import CentralDP, LocalDP, accounting

RULES = {"delta": Mean()}


@pytest.fixture
def ledger(monkeypatch):
    """A book-keeper that gives back what it was asked."""
    monkeypatch.setattr(accounting, "epsilon", lambda *asked: (asked[:3], *asked[3:]))


def test_central_noise_is_accounted_for_on_samples_of_the_clients(ledger):
    card = CentralDP(clip=3.0, noise=1.5, delta=1e-6, accountant="pld").card(RULES, rounds=7, cohort=5, clients=20)
    assert card["epsilon"] == ((1.5, 0.25, 7), 1e-6, "pld")
    assert card["noise_multiplier"] == 1.5 and card["sampling_rate"] == 0.25 and card["compositions"] == 7
    assert card["delta"] == 1e-6 and card["accountant"] == "dp-accounting pld"
    assert card["assumes"].startswith("An honest server. The secret") and "a coin of its own" in card["assumes"]
    assert card["neighbours"] == "add or remove one client"
    everyone = CentralDP(secret="X").card(RULES, rounds=7, cohort=20, clients=20)
    assert everyone["epsilon"][0] == (1.0, 1.0, 7) and "No sampling is counted on" in everyone["assumes"]
    simulated = CentralDP(secret="seed").card(RULES, rounds=7, cohort=5, clients=20)
    assert "epsilon" not in simulated and "nothing" in simulated["protects"]


def test_local_noise_covers_twice_the_clip_and_no_sampling_hides_a_client(ledger):
    card = LocalDP(noise=3.0).card(RULES, rounds=7, cohort=5, clients=20)
    assert card["epsilon"][0] == (1.5, 1.0, 7) and card["sampling_rate"] == 1.0
    assert "The secret" in card["assumes"] and card["neighbours"] == "replace all messages of one client"
    simulated = LocalDP(secret="seed").card(RULES, 7, 5, 20)
    assert simulated["assumes"].endswith("whoever knows that can take it off.") and "epsilon" not in simulated


def test_a_promise_needs_the_package(monkeypatch):
    monkeypatch.undo()
    for found, says in ((object(), None), (None, accounting.MISSING)):
        monkeypatch.setattr(accounting.importlib.util, "find_spec", lambda name, found=found: found)
        assert accounting.missing("pld") == says and accounting.missing("rdp") is None


def test_means_are_divided_by_the_expected_number_and_what_is_withheld_gets_no_noise():
    total = {"delta": torch.zeros(50_000), "sum": torch.zeros(50_000), "n": torch.zeros(50_000)}
    arrived = Arrived({"delta": Mean(), "sum": Sum(), "n": Sum()}, answered=4, asked=6, expected=5)
    noisy = CentralDP(clip=2.0, noise=0.5).server(total, rng.key(0), arrived)
    assert float(noisy["sum"].std()) == pytest.approx(1.0, rel=0.03)
    assert float(noisy["delta"].std()) == pytest.approx(0.2, rel=0.03) and not noisy["n"].any()
    quiet, three = CentralDP(clip=2.0, noise=1e-9), {"delta": torch.full((3,), 0.5)}
    for expected, by in ((5, 5), (None, 6)):
        given = Arrived({"delta": Mean()}, 4, 6, expected)
        assert quiet.server(three, rng.key(0), given)["delta"].tolist() == pytest.approx([4 * 0.5 / by] * 3)
    few = CentralDP(clip=2.0, noise=0.5).server({"sum": torch.ones(3)}, rng.key(0), Arrived({"sum": Sum()}, 4, 5))
    torch.testing.assert_close(
        few["sum"], 1 + rng.normal(rng.fold(rng.fold(rng.key(0), "sum"), 0), 3), atol=2e-6, rtol=0
    )
    reason = CentralDP().refusal({"each": Gather(), "all": Gather(), "delta": Mean()})
    assert reason.startswith("['all', 'each'] are gathered from each client")


def test_a_sum_without_other_clients_has_other_noise():
    """A round may be repeated after a crash: under one noise the difference of two sums would be a client's message."""
    total, dp = {"sum": torch.zeros(2_000)}, CentralDP(clip=1.0, noise=1.0)

    def noise(*absent, secret=b"k" * 32):
        arrived = Arrived({"sum": Sum()}, 4 - len(absent), 4, None, secret, absent)
        return dp.server(total, rng.key(0), arrived)["sum"]

    sums = [noise(), noise(3), noise(2), noise(2, 3), noise(23)]
    alike = torch.corrcoef(torch.stack(sums)) - torch.eye(5)
    assert float(alike.abs().max()) < 0.1 and all(float(x.std()) == pytest.approx(1, rel=0.1) for x in sums)
    assert noise(3, 2).equal(noise(2, 3)) and noise(3).equal(noise(3))
    assert noise(3, secret=None).equal(noise(secret=None)), "what follows from the seed stays as it was"


def test_another_sum_of_the_same_clients_has_other_noise():
    """A run that goes on from an older checkpoint repeats rounds, of another model where another client is missing."""

    def noise(value, secret=b"k" * 32):
        total = {"sum": torch.full((2_000,), value), "mean": {"w": torch.zeros(2_000)}}
        arrived = Arrived({"sum": Sum(), "mean": Mean()}, 4, 4, None, secret)
        out = CentralDP(clip=1.0, noise=1.0).server(total, rng.key(0), arrived)
        return torch.stack([out["sum"] - value, 4 * out["mean"]["w"]])

    first, second = noise(0.0), noise(0.5)
    assert float((torch.corrcoef(torch.cat([first, second])) - torch.eye(4)).abs().max()) < 0.1
    assert first.equal(noise(0.0)) and first.equal(noise(-0.0)), "the same sum has the same noise"
    torch.testing.assert_close(noise(0.0, None), noise(0.5, None), atol=1e-5, rtol=0)  # what follows from the seed


def test_local_noise_leaves_no_range_but_that_of_a_clients_own_number():
    limits = {"n": ExampleCount(), "counts": ExampleCount(), "id": OwnNumber()}
    assert LocalDP(noise=1.0).limits(limits) == {"id": OwnNumber()}
