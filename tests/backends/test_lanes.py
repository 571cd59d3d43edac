"""Several seeds together give what each gives alone."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

import acclimate as ac
from acclimate.backends import Vmap
from acclimate.backends.vmap.lanes import Lane, Lanes, union
from acclimate.core import NonFinite, Worker, fit
from acclimate.methods import SCAFFOLD, FedAvg, FedTHE
from acclimate.running import evaluate, train
from acclimate.running import run as api
from acclimate.running.watch import Watch
from support import fitted, gap, quick_or_slow, shards, small, task
from test_contract import METHODS

SCHEDULE = fit.Schedule(2, 6, 4)
VAL = (5, 9, 6, 0, 8, 7)


def together(method, seeds, data):
    lanes = [Lane(Worker(task(), method, seed=s), d, shards(VAL, seed=1)) for s, d in zip(seeds, data, strict=True)]
    joint = Lanes(lanes, torch.device("cpu"), Vmap(chunk=5))
    states = joint.start()
    for states in joint.rounds(SCHEDULE, states):
        pass
    return states


@pytest.mark.parametrize("method", [FedAvg(private=("head",)), SCAFFOLD(), FedTHE()], ids=lambda m: type(m).__name__)
def test_each_lane_is_its_own_run(method):
    method, data = small(method), [shards(seed=0), shards(seed=4)]
    for seed, d, state in zip((0, 3), data, together(method, (0, 3), data), strict=True):
        _, _, alone = fitted(method, "vmap", rounds=2, seed=seed, data=d)
        assert gap(state.server, alone.server) < 1e-5 and gap(state.mine, alone.mine) < 1e-5
        assert state.cost == alone.cost and state.round == alone.round
        for ours, theirs in zip(state.history, alone.history, strict=True):
            assert ours["val_accuracy"] == pytest.approx(theirs["val_accuracy"], abs=1e-6)


@pytest.mark.parametrize("name", quick_or_slow(METHODS))
def test_every_method_runs_in_lanes(name):
    data = shards()
    first, second = together(small(METHODS[name]), (1, 1), (data, data))
    assert gap(first.server, second.server) < 1e-6  # the same seed and data: the same numbers


def test_shared_examples_lie_in_memory_once():
    data, other = shards(), shards(seed=2)
    joint = union([data, data, other])
    assert len(joint.x) == len(data.x) + len(other.x)
    assert torch.equal(joint.x[joint.own(7)], data.x[data.own(1)])
    assert torch.equal(joint.x[joint.own(13)], other.x[other.own(1)])


def test_a_seed_that_diverges_is_named():
    method = small(FedAvg(opt=ac.optim.SGD(lr=1e30)))
    with pytest.raises(NonFinite, match=r"client\(s\) .* with seed\(s\) 4, 9 produced"):
        together(method, (4, 9), (shards(), shards()))


def test_lanes_of_different_sizes_are_refused():
    lanes = [Lane(Worker(task(), FedAvg()), shards(s), shards(s)) for s in ((8, 8), (8, 8, 8))]
    with pytest.raises(ValueError, match="same number of clients"):
        Lanes(lanes, torch.device("cpu"), Vmap())


def test_experiments_join_where_they_differ_in_seed_or_who_has_what_alone(monkeypatch):
    monkeypatch.setattr(train, "device_of", lambda _: torch.device("cuda"))
    data = ac.data.Digits(clients=4, partition=ac.data.Dirichlet(0.1))
    first = ac.Experiment(data, rounds=2)
    other = replace(data, partition=ac.data.Dirichlet(1.0))
    assert train.can_join([first, replace(first, seed=1), replace(first, data=other, seed=2)])
    assert train.can_join([first, replace(first, data=replace(data, held_out=("noise",)))])
    assert not train.can_join([first, replace(first, rounds=3)])
    assert not train.can_join([first, replace(first, data=replace(data, clients=5))])
    assert not train.can_join([first, replace(first, data=replace(data, partition=ac.data.IID()))])


@pytest.mark.parametrize("personal", [ac.personal.NoPersonal(), ac.personal.FineTune()], ids=["none", "finetune"])
def test_what_was_trained_together_is_tested_together_with_the_same_numbers(monkeypatch, personal):
    monkeypatch.setattr(train, "can_join", lambda _: True)  # lanes are for GPUs, but run anywhere
    data = ac.data.Digits(clients=3, new_clients=3, partition=ac.data.Dirichlet(1.0), fraction=0.3)
    streams = (ac.shifts.Original(), ac.shifts.Corrupted(), ac.shifts.NewClients())
    first = ac.Experiment(data, ac.models.MLP(hidden=(16,)), FedTHE(), streams=streams, rounds=3)
    fits = api.train_together([first, replace(first, seed=4)])
    adapters = [ac.adapters.NoAdapt(), ac.adapters.THE(), ac.adapters.MEMO(views=4)]
    ticks = Ticks()
    together = api.evaluate_together(fits, adapters, personal=personal, watch=ticks)
    assert ticks.seen == ticks.steps > 0
    assert evaluate._shared(fits) is not None
    assert evaluate._shared(fits[::-1]) is None and evaluate._shared(fits[:1]) is None  # tested one by one
    for one, table in zip(fits, together, strict=True):
        alone = api.evaluate(one, adapters, personal=personal)
        assert table.refused == alone.refused and len(table.rows) == len(alone.rows)
        for ours, theirs in zip(sorted(table.rows, key=_place), sorted(alone.rows, key=_place), strict=True):
            numbers = ("accuracy", "loss", "std", "ece")
            assert {k: v for k, v in ours.items() if k not in (*numbers, "per_client")} == {
                k: v for k, v in theirs.items() if k not in (*numbers, "per_client")
            }
            assert [ours[k] for k in numbers] == pytest.approx([theirs[k] for k in numbers], abs=1e-4)


class Ticks(Watch):
    def testing(self, label, seed, steps):
        self.steps, self.seen = steps, 0

    def tested(self):
        self.seen += 1


def _place(row):
    return tuple(str(row[k]) for k in ("adapter", "stream", "selection"))
