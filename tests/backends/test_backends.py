"""What backends owe beyond the numbers: buckets, chunks, failures without half-done state."""

from dataclasses import dataclass, replace

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acclimate.adapters import NoAdapt
from acclimate.backends import Auto, Serial, Vmap
from acclimate.backends.vmap.buckets import Buckets, buckets
from acclimate.core import Mean, NonFinite, Protocol, Stacked, Sum, Worker, fit, tree
from acclimate.filters import Masked
from acclimate.methods import SCAFFOLD, FedAvg
from support import BACKENDS, BRIEF, ONE, SMALL, Poison, Roll, equal, fitted, gap, shards, small, task

CPU = torch.device("cpu")


@given(st.lists(st.integers(0, 500), min_size=1, max_size=60), st.sampled_from([0.0, 0.25, 0.6]))
def test_buckets_cover_everyone_once_and_bound_the_padding(sizes, waste):
    out = buckets(torch.tensor(sizes), waste)
    assert sorted(torch.cat([m for m, _ in out]).tolist()) == list(range(len(sizes)))
    for members, top in out:
        held = [sizes[i] for i in members.tolist()]
        assert max(held) == top
        assert min(held) >= (1 - waste) * top


def test_what_is_collected_is_in_the_order_of_clients():
    """Groups are of clients of like sizes, the smallest first or the largest: never in the order of clients here."""
    clients, data, met = torch.arange(6), shards(), []
    held = Buckets(0.1, None, CPU, there=lambda numbers: numbers, short=lambda: None)

    def run(group):
        met.extend(group.who[: group.real].tolist())
        return {"id": group.ids, "n": group.n}

    found = held.collect(data, clients, run)
    assert found["id"].tolist() == clients.tolist() and found["n"].tolist() == data.sizes[clients].tolist()
    assert sorted(met) == clients.tolist() != met


@pytest.mark.parametrize("work", ["train", "test"])
def test_memory_that_runs_out_halves_what_is_run_at_once_and_nothing_else(work, monkeypatch, caplog):
    worker = Worker(task(), FedAvg(work=ONE))
    engine = Vmap().open(worker, shards(), CPU)
    whole, asked = engine.recorder.run, []

    def tight(what, f, inputs, room=None):
        own = inputs[2] if what[0] == "train" else inputs[1]
        if (what[0] == "train") == (work == "train"):
            asked.append(len(own["id"]))
            if asked[-1] > 1:
                raise torch.cuda.OutOfMemoryError("pretend")
        return whole(what, f, inputs, room)

    monkeypatch.setattr(engine.recorder, "run", tight)
    state = fit.start(worker, engine, 6)
    server, _, down = fit.one_round(worker, engine, state.server, torch.arange(6), 0)
    models = engine.join(down, 6)
    found = engine.serve(models, shards(), NoAdapt(), Protocol(batch=4))
    assert asked[-1] == 1 and engine.buckets.chunk == {"train": 32, "test": 32} | {work: 1}
    assert f"going on to {work} 1 clients at once" in caplog.text
    monkeypatch.undo()
    plain = Vmap().open(worker, shards(), CPU)
    other = fit.one_round(worker, plain, fit.start(worker, plain, 6).server, torch.arange(6), 0)[0]
    assert gap(server, other) < 1e-5
    assert torch.equal(found["accuracy"], plain.serve(models, shards(), NoAdapt(), Protocol(batch=4))["accuracy"])


@pytest.mark.parametrize(("clients", "tries"), [(1, 1), (6, 3)])
def test_clients_that_do_not_fit_one_by_one_fail_without_further_tries(clients, tries):
    buckets, asked = Vmap().open(Worker(task(), FedAvg(work=SMALL)), shards(), CPU).buckets, []

    def never():
        asked.append(min(buckets.chunk["test"], clients))
        raise torch.cuda.OutOfMemoryError("pretend")

    with pytest.raises(torch.cuda.OutOfMemoryError):
        buckets.with_fewer("test", clients, never)
    assert len(asked) == tries and asked == sorted(asked, reverse=True) and asked[-1] == 1


def test_memory_that_runs_out_while_states_are_kept_trains_nobody_twice(monkeypatch):
    worker, states = Worker(task(), small(SCAFFOLD(), ONE)), []
    for short in (False, True):
        engine, puts, put = Vmap().open(worker, shards(), CPU), [], Stacked.put
        engine.buckets.chunk["train"] = 4

        def tight(*args, puts=puts, short=short, put=put):
            puts.append(1)
            if short and len(puts) == 2:
                raise torch.cuda.OutOfMemoryError("pretend")
            return put(*args)

        monkeypatch.setattr(Stacked, "put", tight)
        fit.one_round(worker, engine, fit.start(worker, engine, 6).server, torch.arange(6), 0)
        monkeypatch.undo()
        states.append(engine.mine)
    assert len(puts) > 2 and gap(*states) < 1e-6


def scaffold(backend):
    """The state after two rounds of five clients."""
    worker = Worker(task(), small(SCAFFOLD(), BRIEF))
    engine = backend.open(worker, shards(), torch.device("cpu"))
    schedule = fit.RoundPlan(2, 6, 5)
    *_, state = fit.rounds(worker, engine, schedule, shards((4,) * 6, 1), fit.start(worker, engine, 6))
    return state


def test_chunks_do_not_change_the_result():
    one_by_one = scaffold(Serial())
    for chunk in (1, 2, 5, None):
        for backend in (Vmap(chunk=chunk), Vmap(chunk=chunk, waste=0.9)):
            state = scaffold(backend)
            assert gap(state.server, one_by_one.server) < 1e-5, backend
            assert gap(state.mine, one_by_one.mine) < 1e-5, backend


@pytest.mark.parametrize("filters", [(), (Masked(),)], ids=["open", "masked"])
@pytest.mark.parametrize("name", BACKENDS)
def test_non_finite_values_stop_the_round_by_name_and_change_nothing(name, filters):
    worker = Worker(task(), Poison(work=ONE, private=("head",)), filters)
    engine = BACKENDS[name].open(worker, shards(), torch.device("cpu"))
    state = fit.start(worker, engine, 6)
    loop = fit.rounds(worker, engine, fit.RoundPlan(3, 6, 6), shards((4,) * 6, 1), state)
    state = next(loop)
    with pytest.raises(NonFinite, match=r"round 1: client\(s\) 3 produced values that are not finite") as error:
        next(loop)
    assert error.value.clients == [3]
    assert equal(engine.mine, state.mine)


@dataclass(frozen=True)
class Exploding(FedAvg):
    """A server half that divides by zero."""

    def server(self, task, server, total, key):
        return tree.scale(super().server(task, server, total, key), float("inf"))


def test_a_server_that_explodes_is_named():
    with pytest.raises(ArithmeticError, match=r"round 0: the server's state is not finite after Exploding\.server"):
        fitted(Exploding(work=ONE), rounds=1)


def test_gathered_replies_are_the_same_on_every_backend_and_in_cohort_order():
    a, b = (fitted(Roll(work=ONE), name, rounds=2)[2].server for name in BACKENDS)
    assert a["roll"].tolist() == b["roll"].tolist() == sorted(a["roll"].tolist())
    assert gap(a["own"], b["own"]) < 1e-5


@dataclass(frozen=True)
class Signs(FedAvg):
    """Sends one byte per weight beside the difference."""

    @property
    def uplink(self):
        return {"delta": Mean("n"), "n": Sum(), "sign": Sum()}

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        return {**up, "sign": up["delta"]["params"]["head.weight"].sign().to(torch.int8)}, mine


def test_small_integers_cost_their_own_bytes_on_every_backend():
    costs = [fitted(Signs(work=ONE), name, rounds=1)[2].cost for name in BACKENDS]
    assert costs[0] == costs[1]
    sign = next(p for p in costs[0]["message"] if p["group"] == "sign")
    assert (sign["dtype"], sign["bytes"]) == ("int8", 40)


def test_a_message_that_breaks_its_uplink_is_refused_by_every_backend():
    @dataclass(frozen=True)
    class Chatty(FedAvg):
        def client(self, task, down, mine, data, key):
            up, mine = super().client(task, down, mine, data, key)
            return {**up, "gossip": torch.ones(())}, mine

    for name in BACKENDS:
        with pytest.raises(ValueError, match=r"Chatty: the message has \['gossip'\]"):
            fitted(Chatty(work=ONE), name, rounds=1)


def test_auto_follows_its_rule():
    conv, flat = Worker(task("cnn-plain"), FedAvg()), Worker(task("mlp-dropout"), FedAvg())
    assert Auto().choose(conv, shards(), torch.device("cpu")) == Serial()
    assert Auto().choose(flat, shards(), torch.device("cpu")) == Vmap()
    assert Auto().choose(conv, shards(), torch.device("cuda")) == Vmap()


def test_cohorts_are_keyed_distinct_and_cover_everyone_in_time():
    worker, schedule = Worker(task(), FedAvg()), fit.RoundPlan(50, 10, 3)
    cohorts = [fit.sample(worker, schedule, r).tolist() for r in range(50)]
    assert all(len(set(c)) == 3 for c in cohorts)
    assert {i for c in cohorts for i in c} == set(range(10))
    assert cohorts == [fit.sample(worker, schedule, r).tolist() for r in range(50)]
    other = [fit.sample(replace(worker, seed=1), schedule, r).tolist() for r in range(50)]
    assert cohorts != other


@pytest.mark.parametrize(
    ("fields", "says"),
    [
        ((0, 5, 3), "rounds=0"),
        ((3, 5, 6), "cohort=6 must be between 1 and the number of clients, 5"),
        ((3, 5, 0), "cohort=0"),
    ],
)
def test_bad_schedules_are_named(fields, says):
    with pytest.raises(ValueError, match=says):
        fit.RoundPlan(*fields)


def test_selection_keeps_the_first_best_round_and_its_states():
    _, _, state = fitted(small(FedAvg(private=("head",))), rounds=4)
    scores = [h["val_accuracy"] for h in state.history]
    assert state.best is not None
    assert state.best.score == max(scores)
    assert state.best.round == 1 + scores.index(max(scores))
    shorter = fitted(small(FedAvg(private=("head",))), rounds=state.best.round)[2]
    assert equal(shorter.server, state.best.server)
    assert equal(shorter.mine, state.best.mine)


def test_clients_outside_the_cohort_keep_their_state():
    worker, engine, state = fitted(small(SCAFFOLD(), ONE), rounds=1, cohort=2)
    cohort = fit.sample(worker, fit.RoundPlan(1, 6, 2), 0).tolist()
    for c in range(6):
        moved = float(tree.norm(tree.take(state.mine["control"], c))) > 0
        assert moved == (c in cohort)
