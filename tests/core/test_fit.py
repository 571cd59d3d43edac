"""Who takes part in a round, what is looked at, and what the client half hands on."""

from __future__ import annotations

import math
from dataclasses import dataclass

import pytest
import torch

from acclimate.backends import Serial
from acclimate.core import fit, rng, tree
from acclimate.core.private import Stacked
from acclimate.core.variances import not_below_zero as variances_of
from acclimate.core.worker import Worker
from acclimate.filters import CentralDP, Noise
from acclimate.methods import FedAvg
from support import client_data, equal, shards, task

WORKER = Worker(task(), FedAvg(), seed=3)


@pytest.mark.parametrize("clients", [20, 21, 320, 5000], ids=lambda n: f"20-of-{n}")
def test_a_cohort_has_distinct_clients_in_ascending_order(clients):
    schedule = fit.RoundPlan(10, clients, 20)
    drawn = [fit.sample(WORKER, schedule, r) for r in range(10)]
    for cohort in drawn:
        assert len(cohort) == 20 and bool((cohort.diff() > 0).all()) and cohort[0] >= 0 and cohort[-1] < clients
        assert cohort.dtype == torch.int64
    if clients > 21:
        assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[3], fit.sample(WORKER, schedule, 3))


@pytest.mark.parametrize("clients", [30, 400])
def test_every_client_is_as_likely_as_the_others(clients):
    rounds, schedule = 2000, fit.RoundPlan(1, clients, 20)
    seen = torch.cat([fit.sample(WORKER, schedule, r) for r in range(rounds)]).bincount(minlength=clients)
    expected = rounds * 20 / clients
    spread = (expected * (1 - 20 / clients)) ** 0.5
    assert bool(((seen - expected).abs() < 5 * spread).all())


def test_the_last_round_is_looked_at_whatever_the_distance_between_looks():
    schedule = fit.RoundPlan(3, 2, 2, 2)
    assert [r + 1 for r in range(3) if schedule.evaluates(r)] == [2, 3]


def test_a_client_that_forgets_its_private_state_is_told_so():
    @dataclass(frozen=True)
    class Forgetful(FedAvg):
        def client(self, task, down, mine, data, key):
            return super().client(task, down, mine, data, key)[0]

    worker = Worker(task(), Forgetful())
    server = worker.method.init_server(worker.task, 1, rng.key(0))
    data = {**client_data(shards((4,), seed=3), 0), "round": torch.tensor(0), "id": torch.tensor(0)}
    with pytest.raises(TypeError, match=r"Forgetful.client must return \(message, private state\), it returned a dict"):
        worker.train(worker.method.download(worker.task, server), {}, data)


def test_noise_of_the_server_is_new_in_every_round():
    worker = Worker(task(), FedAvg(weights="uniform"), (CentralDP(),))
    total = worker.method.download(worker.task, worker.method.init_server(worker.task, 1, rng.key(0)))
    sums = {"delta": tree.map(torch.zeros_like, total["vars"])}
    first, again, later = (worker.receive(sums, r, 1, 1, torch.tensor(0))["delta"] for r in (0, 0, 1))
    assert equal(first, again) and not equal(first, later)


def test_no_round_is_the_best_where_nobody_holds_validation_data():
    """It was the first one, by a score of zero, and tables showed its model as the one that validation had selected."""
    state = fit.State(1, {}, Stacked({}), cost={"up": 0, "down": 0, "message": []})

    def metrics(accuracy, n):
        return {"accuracy": torch.tensor(accuracy), "loss": torch.ones(2), "n": torch.tensor(n)}

    blind = fit.judge(state, metrics([0.0, 0.0], [0, 0]))
    assert blind.best is None and [(row["round"], row["val_accuracy"]) for row in blind.history] == [(1, None)]
    seen = fit.judge(state, metrics([0.0, 0.9], [4, 0]))  # the other's answers count for nothing
    assert seen.best is not None and (seen.best.round, seen.best.score) == (1, 0.0)


def test_a_running_variance_below_zero_counts_as_zero_and_a_rate_of_that_name_stays():
    """Noise on a small variance, or a client that lies about its own, made every answer of every client NaN."""
    worker = Worker(task(), FedAvg(weights="uniform"), (Noise(kind="gaussian", s=3.0, p=0.0),), seed=4)
    engine = Serial().open(worker, shards(), torch.device("cpu"))
    plan, val = fit.RoundPlan(1, 6, 6), shards((5, 9, 6, 0, 8, 7), seed=1)
    for state in fit.rounds(worker, engine, plan, val, fit.start(worker, engine, 6)):
        variances = [v for k, v in tree.flatten(state.server).items() if k.endswith("running_var")]
        assert min(float(v.min()) for v in variances) == 0.0 and math.isfinite(state.history[-1]["val_loss"])
    one, rate = torch.tensor([0.25, -0.5]), {"buffers": {"bn.running_var": torch.tensor([-0.5])}}
    held = {"params": {"running_var": -one}, "buffers": {"bn.running_var": one, "bn.running_mean": -one}}
    found = variances_of({"models": {"0": held}, "buffers": {"running_var": -one}, "rates": rate})
    assert found["models"]["0"]["buffers"]["bn.running_var"].tolist() == [0.25, 0.0]
    assert found["models"]["0"]["buffers"]["bn.running_mean"].tolist() == [-0.25, 0.5]
    assert found["models"]["0"]["params"]["running_var"].tolist() == [-0.25, 0.5]
    assert found["buffers"]["running_var"].tolist() == [0.0, 0.5] and found["rates"] is rate
