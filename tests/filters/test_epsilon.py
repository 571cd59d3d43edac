"""That epsilon holds: secret cohorts, exact noise, an accountant that agrees with dp-accounting, and a run's key."""

import hashlib
import hmac
import math
from dataclasses import replace
from decimal import Decimal, localcontext
from statistics import NormalDist

import pytest
import torch

import acclimate as ac
from acclimate import store
from acclimate.core import Worker, fit
from acclimate.core.poisson import poisson
from acclimate.experiment.encoding import decode, encode
from acclimate.filters import CentralDP, Masked, accounting, gaussian
from acclimate.methods import FedAvg
from support import BACKENDS, shards, task

KEY = bytes(range(32))
KNOWN = [
    # python -c "from dp_accounting.rdp import *; from acclimate.filters.accounting import *;
    #   print(RdpAccountant(orders=ORDERS).compose(event(Z, Q, T)).get_epsilon(D), epsilon(Z, Q, T, D, 'pld'))"
    # of dp-accounting 0.6.0: noise, rate, rounds, delta, at the same orders, and by privacy loss distributions
    (1.2, 0.01, 100, 1e-5, 0.784010403158124, 0.44641307388097534),
    (1.1, 0.2, 10, 1e-6, 5.631098640356181, 4.960163263075491),
    (0.8, 0.05, 500, 1e-5, 14.682374534534937, 12.03524795246019),
]


@pytest.mark.parametrize(("noise", "rate", "rounds", "delta", "renyi", "tight"), KNOWN)
def test_the_accountant_agrees_with_dp_accounting(noise, rate, rounds, delta, renyi, tight):
    own = accounting.epsilon(noise, rate, rounds, delta)
    assert own == pytest.approx(renyi, rel=1e-10) and own > tight


def test_an_event_without_sampling_is_a_plain_gaussian_one():
    dp = pytest.importorskip("dp_accounting")
    plain = dp.GaussianDpEvent(1.2)
    assert accounting.event(1.2, 1.0, 5) == dp.SelfComposedDpEvent(plain, 5)
    assert accounting.event(1.2, 0.5, 5) == dp.SelfComposedDpEvent(dp.PoissonSampledDpEvent(0.5, plain), 5)


def test_with_little_noise_the_best_order_lies_between_one_and_two():
    """Without sampling the divergence at order a is a / (2 z^2); of all bounds that of 1.45 or 1.5 is the least."""

    def bound(a, noise=0.1, delta=1e-5):
        return a / (2 * noise**2) + math.log1p(-1 / a) - math.log(delta * a) / (a - 1)

    least = min(bound(1 + x / 20) for x in range(1, 40))
    assert accounting.epsilon(0.1, 1.0, 1, 1e-5) == pytest.approx(least, rel=1e-12)
    assert least == min(bound(1.45), bound(1.5)) < bound(2) - 10


def test_without_sampling_a_client_that_is_drawn_five_times_has_what_the_issue_says():
    assert accounting.epsilon(1.2, 1.0, 5, 1e-5) == pytest.approx(
        9.841616930737942, rel=2e-3
    )  # dp-accounting, its orders
    assert accounting.epsilon(1.2, 1.0, 0, 1e-5) == 0.0
    with pytest.raises(ValueError, match="rate=1.5"):
        accounting.epsilon(1.0, 1.5, 1, 1e-5)


@pytest.mark.parametrize("noise", [1e-155, 1e-170, 1e-300])
@pytest.mark.parametrize("rate", [0.5, 1.0])
def test_noise_that_is_as_good_as_none_has_no_epsilon_and_not_one_of_zero(noise, rate):
    assert accounting.epsilon(noise, rate, 10, 1e-5) == math.inf
    assert accounting.epsilon(1e200, rate, 10, 1e-5) < 0.01


def test_each_client_is_drawn_by_a_coin_of_its_own():
    drawn = torch.zeros(400, 50)
    for r in range(400):
        drawn[r, poisson(KEY, 50, 10, r)] = 1
    sizes = drawn.sum(1)
    assert float(drawn.mean()) == pytest.approx(0.2, abs=0.01)
    assert float(sizes.var()) == pytest.approx(50 * 0.2 * 0.8, rel=0.25)  # of a fixed size it would be 0
    assert torch.equal(poisson(KEY, 50, 10, 7), poisson(KEY, 50, 10, 7))
    assert not torch.equal(poisson(KEY, 50, 10, 7), poisson(bytes(32), 50, 10, 7))
    assert poisson(KEY, 6, 6, 0).tolist() == list(range(6))


def test_cohorts_follow_from_the_secret_and_not_from_the_seed_and_masks_give_them_away():
    plan, method = fit.RoundPlan(3, 50, 10), FedAvg(weights="uniform")
    worker = Worker(task(), method, (CentralDP(),), secret=KEY)
    cohorts = [[fit.sample(replace(worker, seed=s), plan, r).tolist() for r in range(3)] for s in (0, 1)]
    assert cohorts[0] == cohorts[1] != [fit.sample(Worker(task(), method), plan, r).tolist() for r in range(3)]
    assert replace(worker, secret=None).cohort_key is None
    assert replace(worker, filters=(CentralDP(), Masked())).cohort_key is None
    assert replace(worker, filters=(CentralDP(secret="seed"),)).cohort_key is None
    assert "secret=b" not in repr(worker)


def test_seeds_under_one_secret_draw_other_cohorts_and_old_runs_keep_theirs(monkeypatch):
    monkeypatch.setenv("DP_SECRET", "of all seeds of a sweep")
    plan, method = fit.RoundPlan(3, 50, 10), FedAvg(weights="uniform")
    worker = Worker(task(), method, (CentralDP(secret="DP_SECRET"),))

    def cohorts(filter, seed):
        here = replace(worker, filters=(filter,), seed=seed)
        return [fit.sample(here, plan, r).tolist() for r in range(3)]

    new, old = worker.filters[0], decode({k: v for k, v in encode(worker.filters[0]).items() if k != "revision"})
    assert cohorts(new, 0) != cohorts(new, 1) and cohorts(new, 1) == cohorts(new, 1)
    key = hashlib.sha256(b"acclimate\0cohorts\0of all seeds of a sweep").digest()
    assert cohorts(old, 0) == cohorts(old, 1) == [poisson(key, 50, 10, r).tolist() for r in range(3)]
    mixed = hmac.digest(key, b"seed\x001", "sha256")
    assert cohorts(new, 1) == [poisson(mixed, 50, 10, r).tolist() for r in range(3)]


def test_a_round_for_which_nobody_was_drawn_gets_noise_and_leaves_clients_as_they_were():
    worker = Worker(task(), FedAvg(weights="uniform"), (CentralDP(),), secret=KEY)
    plan = fit.RoundPlan(1, 6, 1)
    round = next(r for r in range(100) if not len(fit.sample(worker, plan, r)))
    engine = BACKENDS["serial"].open(worker, shards(), torch.device("cpu"))
    state = replace(fit.start(worker, engine, 6), round=round)
    (after,) = fit.rounds(worker, engine, replace(plan, rounds=round + 1), shards((5,) * 6, 1), state)
    moved = torch.cat(
        [
            (a - b).flatten()
            for a, b in zip(*(ac.tree.leaves(s.server["vars"]["params"]) for s in (after, state)), strict=True)
        ]
    )
    assert float(moved.std()) == pytest.approx(1.0, rel=0.1)  # noise times clip over one client that was expected
    assert after.cost["up"] == sum(part["bytes"] for part in after.cost["message"])  # as if one had been there


def test_the_border_between_two_steps_is_decided_exactly():
    with localcontext(prec=60):
        border = gaussian.upper_tail(Decimal("0.5") / Decimal(2**20))
        # a draw lies in the middle of its step, so the first one beyond is the border's own place rounded
        above = math.ceil(border * 2**97 - Decimal("0.5"))
        below = above - 1
    for tail, whole in ((above, 0.0), (below, 1.0)):
        words = torch.tensor([[tail >> 64], [(tail >> 32) & 0xFFFFFFFF], [tail & 0xFFFFFFFF], [0]])
        assert gaussian.rounded(words, 2.0**20).item() == whole
    far = torch.tensor([[0], [0], [0], [1]])
    assert gaussian.rounded(far, 1.0).item() == -11.0  # 5.77 was the end before
    assert math.erfc(3 / 2**0.5) / 2 == pytest.approx(float(gaussian.upper_tail(Decimal(3))), rel=1e-12)


@pytest.mark.parametrize("words", [(2**31, 5, 9), (0, 2**30, 7), (0, 0, 12345), (0, 0, 2**32 - 1)])
def test_all_ninety_six_bits_of_a_draw_count(words):
    """Each word is worth 2^-32 of the one before it, and a tail is at most one half; against Python's own quantiles."""
    high, middle, low = words
    tail = high * 2.0**-33 + middle * 2.0**-65 + (low + 0.5) * 2.0**-97
    drawn = gaussian.rounded(torch.tensor([[high], [middle], [low], [0]]), 1e4).item()
    assert drawn == round(-1e4 * NormalDist().inv_cdf(tail))


def test_a_run_goes_on_with_its_key_which_is_outside_of_its_folder(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_SECRETS", str(tmp_path / "keys"))
    work = ac.Work(epochs=1)
    e = ac.Experiment(
        data=ac.data.Digits(clients=6), model=ac.models.MLP(hidden=(4,)), rounds=3, cohort=3,
        method=FedAvg(weights="uniform", work=work), filters=(CentralDP(),), adapters=(ac.adapters.NoAdapt(),),
    )  # fmt: skip
    whole = tmp_path / "whole"
    ac.run(e, whole)
    (key,) = (tmp_path / "keys").iterdir()
    secret = key.read_bytes()
    assert key.stat().st_mode & 0o777 == 0o600 and len(secret) == 32
    for file in whole.rglob("*"):
        content = file.read_bytes() if file.is_file() else b""
        assert secret not in content and secret.hex().encode() not in content
    card = store.read_json(whole / "results.json")["cost"]["filters"][0]
    assert card["epsilon"] == accounting.epsilon(1.0, 0.5, 3, 1e-5)
    first = ac.load(whole)
    (whole / "results.json").unlink()
    again = replace(first.state, round=0)
    assert first.worker.secret == secret and again.round == 0
    key.rename(tmp_path / "elsewhere")
    with pytest.raises(store.RunError, match="cannot go on without"):
        ac.resume(whole)
    key.write_bytes(bytes(32))
    with pytest.raises(store.RunError, match="is not the key of the run"):
        ac.resume(whole)
    (whole / "secret.json").unlink()
    ac.resume(whole)  # as a run from before there were keys: it is finished, and claims nothing
    assert "epsilon" not in store.read_json(whole / "results.json")["cost"]["filters"][0]


def test_a_run_that_was_stopped_ends_with_the_same_bits(tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_SECRETS", str(tmp_path / "keys"))
    monkeypatch.setattr(store.secrets, "new", lambda: KEY)
    e = ac.Experiment(
        data=ac.data.Digits(clients=6), model=ac.models.MLP(hidden=(4,)), rounds=2, cohort=3,
        method=FedAvg(weights="uniform", work=ac.Work(epochs=1)), filters=(CentralDP(),),
    )  # fmt: skip
    whole = ac.train(e)
    half = ac.train(replace(e, rounds=1))
    half.save(tmp_path / "half")
    monkeypatch.setattr(store.secrets, "new", lambda: bytes(32))
    fit_ = ac.load(tmp_path / "half")
    end = list(
        fit.rounds(fit_.worker, fit_.engine, fit.RoundPlan(2, 6, 3, 2), fit_.world.shards(fit_.world.val), fit_.state)
    )
    assert all(map(torch.equal, *(ac.tree.leaves(s.server) for s in (whole.state, end[-1]))))
