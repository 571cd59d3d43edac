"""When the host waits for the device in a round, what it prepares meanwhile, and how it copies many tensors."""

from dataclasses import dataclass

import pytest
import torch

from acclimate.backends import Vmap
from acclimate.backends.vmap.buckets import rungs
from acclimate.backends.vmap.capture import Captured, copy_all
from acclimate.backends.vmap.lanes import Unconfirmed
from acclimate.core import NonFinite, Worker, fit, tree
from acclimate.methods import FedAvg
from support import ONE, SMALL, equal, shards, task

CPU = torch.device("cpu")
NOTED: list[str] = []


@dataclass(frozen=True)
class Noting(FedAvg):
    """Notes when its server half runs, and sends NaN from client 2 in round 1."""

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        bad = (data["id"] == 2) & (data["round"] == 1)
        return {**up, "delta": tree.map(lambda x: torch.where(bad, torch.nan, x), up["delta"])}, mine

    def server(self, task, server, total, key):
        NOTED.append("server")
        return super().server(task, server, total, key)


class Fragile(Noting):
    """Its server half fails where messages are not finite."""

    def server(self, task, server, total, key):
        if not bool(tree.finite(total)):
            raise LookupError("no such number")
        return super().server(task, server, total, key)


def opened(method):
    worker = Worker(task(), method)
    engine = Vmap().open(worker, shards(), CPU)
    return worker, engine, fit.start(worker, engine, 6).server


def test_the_host_waits_when_the_servers_half_is_in_the_queue(monkeypatch):
    wait = Unconfirmed.not_finite
    monkeypatch.setattr(Unconfirmed, "not_finite", lambda self: (NOTED.append("waited"), wait(self))[1])
    worker, engine, server = opened(Noting(work=ONE))
    NOTED.clear()
    fit.one_round(worker, engine, server, torch.arange(4), 0)
    assert NOTED == ["server", "waited"]
    NOTED.clear()
    engine.train(worker.method.download(worker.task, server), torch.arange(4), 0)
    assert NOTED == ["waited"]


@pytest.mark.parametrize("method", [Noting, Fragile])
@pytest.mark.parametrize("way", ["round", "train", "mine", "next"])
def test_a_client_that_is_not_finite_is_named_whoever_asks_first(method, way):
    worker, engine, server = opened(method(work=ONE, private=("head",)))
    server, _, _ = fit.one_round(worker, engine, server, torch.arange(6), 0)
    before, down = engine.mine, worker.method.download(worker.task, server)
    asking = {
        "round": lambda: fit.one_round(worker, engine, server, torch.arange(6), 1),
        "train": lambda: engine.train(down, torch.arange(6), 1),
        "mine": lambda: (engine.train_lanes([down], [torch.arange(6)], 1), engine.mine),
        "next": lambda: [engine.train_lanes([down], [torch.arange(6)], r) for r in (1, 2)],
    }
    with pytest.raises(NonFinite, match=r"round 1: client\(s\) 2 produced"):
        asking[way]()
    assert engine.mine is before
    fit.one_round(worker, engine, server, torch.arange(6), 2)  # the engine goes on
    assert engine.mine is not before


def test_an_expected_round_is_cut_into_groups_once_and_another_cohort_anew(monkeypatch):
    worker, engine, server = opened(FedAvg(work=ONE))
    planned, groups = [], engine.buckets.groups
    monkeypatch.setattr(engine.buckets, "groups", lambda *a: (planned.append(a[1].tolist()), groups(*a))[1])
    for r, (cohort, then) in enumerate([([0, 1], [2, 3]), ([2, 3], [4, 5]), ([1, 5], [0, 2])]):
        engine.expect(torch.tensor(then))
        _, reply, _ = fit.one_round(worker, engine, server, torch.tensor(cohort), r)
        assert sorted(reply.part.clients.tolist()) == cohort
    assert planned == [[0, 1], [2, 3], [4, 5], [1, 5], [0, 2]]


def test_groups_that_were_planned_are_cut_anew_where_memory_ran_out():
    worker, engine, server = opened(FedAvg(work=ONE))
    engine.expect(torch.arange(3))
    fit.one_round(worker, engine, server, torch.arange(3), 0)
    engine.buckets.chunk["train"] = 1
    engine._forget()
    assert [len(g.who) for g in engine._groups(torch.arange(3))] == [1, 1, 1]


def test_a_recorded_run_that_expects_its_cohorts_has_the_numbers_of_one_that_does_not():
    plan, ends = fit.RoundPlan(3, 6, 4), []
    for expects in (True, False):
        worker, engine, server = opened(FedAvg(work=SMALL))
        for r in range(3):
            if expects and r < 2:
                engine.expect(fit.sample(worker, plan, r + 1))
            server, _, _ = fit.one_round(worker, engine, server, fit.sample(worker, plan, r), r)
        ends.append(server)
    assert equal(*ends)


def test_all_tensors_are_copied_whatever_their_types_and_orders():
    given = [
        torch.arange(6.0).view(2, 3).T,
        torch.tensor([True, False]),
        torch.arange(4),
        torch.tensor(2.5),
        torch.ones(1).expand(3),
        torch.zeros(0),
        torch.arange(3, dtype=torch.float64),
    ]
    copies = [torch.empty_like(x) for x in given]
    copy_all(list(zip(copies, given, strict=True)))
    assert all(torch.equal(a, b) and a.dtype == b.dtype for a, b in zip(copies, given, strict=True))


def test_results_are_the_callers_own_and_forms_without_data_are_not_copied():
    recorded = object.__new__(Captured)
    form, value = torch.empty(3, device="meta"), torch.arange(6.0).view(2, 3).T
    recorded._outputs = ({"a": value, "n": torch.tensor(4)}, {"up": form})
    (kept, up) = recorded.results()
    assert up["up"] is form and kept["a"].stride() == value.stride()
    value.zero_()
    assert kept["a"].tolist() == [[0.0, 3.0], [1.0, 4.0], [2.0, 5.0]] and int(kept["n"]) == 4


def test_equal_clients_are_one_group_of_their_size():
    for sizes in ([7, 7, 7], [7]):
        ((members, top),) = rungs(torch.tensor(sizes), 0.25, 7)
        assert members.tolist() == list(range(len(sizes))) and top == 7
    found = [(m.tolist(), top) for m, top in rungs(torch.tensor([7, 100, 7, 75]), 0.25, 100)]
    assert found == [([1, 3], 100), ([0, 2], 8)]
