"""Clients with fewer examples than a batch: every batch that is too large is named, and a remedy that helps."""

import pytest
import torch

import acclimate as ac
from acclimate.running.build import check_sizes


def data(sizes, **settings):
    """Clients with so many examples each, of which 60 % are for training."""
    client = torch.repeat_interleave(torch.arange(len(sizes)), torch.tensor(sizes))
    x = torch.randn(len(client), 3, generator=torch.Generator().manual_seed(0))
    return ac.data.of(x, torch.arange(len(client)) % 2, client=client, **settings)


def refusal(given, method, personal=ac.personal.NoPersonal()):
    experiment = ac.Experiment(data=given, method=method, personal=personal)
    with pytest.raises(ValueError, match="fewer than a batch") as error:
        check_sizes(experiment, given.world())
    return str(error.value)


def test_all_batches_that_are_too_large_are_named_at_once():
    said = refusal(data([50, 80]), ac.methods.FedALA(work=ac.Work(batch=8)), ac.personal.FineTune())
    assert said == (
        "client 0 has 30 training examples, fewer than a batch (method.mix_work.batch=32); set "
        "method.mix_work.batch=30, personal.work.batch=30, or leave out clients of few examples "
        "(data.partition=natural-users, data.partition.floor=80)"
    )


def test_the_floor_that_is_named_leaves_clients_that_can_train():
    given = data([30, 60, 45, 90])
    said = refusal(given, ac.methods.FedAvg())
    assert said.endswith("clients of few examples (data.partition=natural-users, data.partition.floor=60)")
    kept = data([30, 60, 45, 90], partition=ac.data.NaturalUsers(floor=60))
    check_sizes(ac.Experiment(data=kept), kept.world())
    assert sorted(map(len, kept.world().train)) == [36, 54]
    low = refusal(data([30, 60, 45, 90], partition=ac.data.NaturalUsers(floor=40)), ac.methods.FedAvg())
    assert low.endswith("data.partition.floor=60)")


def test_where_every_client_is_small_no_floor_is_named():
    said = refusal(data([4] * 40), ac.methods.FedAvg())
    assert said == (
        "client 0 has 2 training examples, fewer than a batch (method.work.batch=32); set method.work.batch=2, or name "
        "clients that have more examples (data.client)"
    )
    with pytest.raises(ValueError, match="floor=20 must be at most 4, the most examples of any user"):
        data([4] * 40, partition=ac.data.NaturalUsers()).world()
