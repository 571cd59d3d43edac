"""Who takes part in a round."""

from __future__ import annotations

import pytest
import torch

from acclimate.core import fit
from acclimate.core.worker import Worker
from acclimate.methods import FedAvg
from support import task

WORKER = Worker(task(), FedAvg(), seed=3)


@pytest.mark.parametrize("clients", [20, 21, 320, 5000], ids=lambda n: f"20-of-{n}")
def test_a_cohort_has_distinct_clients_in_ascending_order(clients):
    schedule = fit.Schedule(10, clients, 20)
    drawn = [fit.sample(WORKER, schedule, r) for r in range(10)]
    for cohort in drawn:
        assert len(cohort) == 20 and bool((cohort.diff() > 0).all()) and cohort[0] >= 0 and cohort[-1] < clients
        assert cohort.dtype == torch.int64
    if clients > 21:
        assert not torch.equal(drawn[0], drawn[1])
    assert torch.equal(drawn[3], fit.sample(WORKER, schedule, 3))


@pytest.mark.parametrize("clients", [30, 400])
def test_every_client_is_as_likely_as_the_others(clients):
    rounds, schedule = 2000, fit.Schedule(1, clients, 20)
    seen = torch.cat([fit.sample(WORKER, schedule, r) for r in range(rounds)]).bincount(minlength=clients)
    expected = rounds * 20 / clients
    spread = (expected * (1 - 20 / clients)) ** 0.5
    assert bool(((seen - expected).abs() < 5 * spread).all())
