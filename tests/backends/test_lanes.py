"""Several seeds together give what each gives alone."""

from __future__ import annotations

from dataclasses import dataclass, replace

import pytest
import torch

import acclimate as ac
from acclimate.adapters import MEMO
from acclimate.backends import Vmap
from acclimate.backends.vmap import capture
from acclimate.backends.vmap.lanes import Lane, LaneShards
from acclimate.core import SGD, Adapter, NonFinite, Personalizer, Protocol, Worker, fit, tree
from acclimate.core.lanes import varied
from acclimate.core.vectorised import CannotVectorise
from acclimate.methods import SCAFFOLD, Ditto, FedAvg, FedPCL, FedProx, FedTHE, PerFedAvg
from acclimate.personal import FineTune
from acclimate.running import evaluate, train
from acclimate.running import run as api
from acclimate.running.watch import Watch
from support import BRIEF, FEW, equal, fitted, gap, quick_or_slow, shards, small, task
from test_contract import METHODS

SCHEDULE = fit.RoundPlan(2, 6, 4)
VAL = (5, 9, 6, 0, 8, 7)


def together(method, seeds, data):
    lanes = [Lane(Worker(task(), method, seed=s), d) for s, d in zip(seeds, data, strict=True)]
    workers, vals = [lane.worker for lane in lanes], [shards(VAL, seed=1) for _ in lanes]
    engine = Vmap(chunk=5).open_lanes(lanes, torch.device("cpu"))
    states = fit.start_together(workers, engine, 6)
    for states in fit.rounds_together(workers, engine, SCHEDULE, vals, states):
        pass
    return states


@pytest.mark.parametrize("method", [FedAvg(private=("head",)), SCAFFOLD(), FedTHE()], ids=lambda m: type(m).__name__)
def test_each_lane_is_its_own_run(method):
    method, data = small(method, FEW), [shards(seed=0), shards(seed=4)]
    for seed, d, state in zip((0, 3), data, together(method, (0, 3), data), strict=True):
        _, _, alone = fitted(method, "vmap", rounds=2, seed=seed, data=d)
        assert gap(state.server, alone.server) < 1e-5 and gap(state.mine, alone.mine) < 1e-5
        assert state.cost == alone.cost and state.round == alone.round
        for ours, theirs in zip(state.history, alone.history, strict=True):
            assert ours["val_accuracy"] == pytest.approx(theirs["val_accuracy"], abs=1e-6)


@pytest.mark.parametrize("name", quick_or_slow(METHODS))
def test_every_method_runs_in_lanes(name):
    data = shards()
    first, second = together(METHODS[name], (1, 1), (data, data))
    assert gap(first.server, second.server) < 1e-6  # the same seed and data: the same numbers


def test_shared_examples_lie_in_memory_once():
    data, other = shards(), shards(seed=2)
    joint = LaneShards.union([data, data, other])
    assert len(joint.x) == len(data.x) + len(other.x)
    assert torch.equal(joint.x[joint.own(7)], data.x[data.own(1)])
    assert torch.equal(joint.x[joint.own(13)], other.x[other.own(1)])


def test_a_seed_that_diverges_is_named():
    method = small(FedAvg(opt=ac.optim.SGD(lr=1e30)), FEW)
    with pytest.raises(NonFinite, match=r"client\(s\) .* with seed\(s\) 4, 9 produced"):
        together(method, (4, 9), (shards(), shards()))


def test_lanes_of_different_sizes_are_refused():
    lanes = [Lane(Worker(task(), FedAvg()), shards(s)) for s in ((8, 8), (8, 8, 8))]
    with pytest.raises(ValueError, match="same number of clients"):
        Vmap().open_lanes(lanes, torch.device("cpu"))


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


@pytest.mark.parametrize(
    "personal",
    [ac.personal.NoPersonal(), pytest.param(ac.personal.FineTune(), marks=pytest.mark.slow)],
    ids=["none", "finetune"],
)
def test_what_was_trained_together_is_tested_together_with_the_same_numbers(monkeypatch, personal):
    monkeypatch.setattr(train, "can_join", lambda *_, **__: True)  # lanes are for GPUs, but run anywhere
    data = ac.data.Digits(clients=3, new_clients=3, partition=ac.data.Dirichlet(1.0), fraction=0.3)
    streams = (ac.shifts.Original(), ac.shifts.Corrupted(), ac.shifts.NewClients())
    first = ac.Experiment(data, ac.models.MLP(hidden=(16,)), FedTHE(), streams=streams, rounds=2)
    fits = api.train_together([first, replace(first, seed=4)])
    adapters = [ac.adapters.NoAdapt(), ac.adapters.THE(), ac.adapters.MEMO(views=2)]
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


SWEEPS = {
    "fedavg lr": [FedAvg(opt=SGD(lr=lr)) for lr in (0.01, 0.2)],
    "fedprox mu": [FedProx(mu=mu) for mu in (0.01, 2.0)],
    "scaffold lr": [SCAFFOLD(opt=SGD(lr=lr)) for lr in (0.02, 0.1)],
    "ditto lam and momentum": [Ditto(lam=lam, opt=SGD(lr=0.05, momentum=m)) for lam, m in ((0.1, 0.5), (1.0, 0.9))],
}


@pytest.mark.parametrize("name", SWEEPS)
def test_numbers_of_a_method_train_together_with_the_numbers_of_separate_runs(name):
    methods, data = [small(m, FEW) for m in SWEEPS[name]], shards()
    lanes = [Lane(Worker(task(), m, seed=3), data) for m in methods]
    workers, vals = [lane.worker for lane in lanes], [shards(VAL, seed=1) for _ in lanes]
    engine = Vmap(chunk=5).open_lanes(lanes, torch.device("cpu"))
    states = fit.start_together(workers, engine, 6)
    for states in fit.rounds_together(workers, engine, SCHEDULE, vals, states):
        pass
    ends = []
    for method, state in zip(methods, states, strict=True):
        _, _, alone = fitted(method, "vmap", rounds=2, seed=3, data=data)
        assert gap(state.server, alone.server) < 1e-5 and gap(state.mine, alone.mine) < 1e-5
        ends.append(alone.server)
    assert gap(*ends) > 1e-4  # the numbers matter


@dataclass(frozen=True)
class Looking(FedProx):
    """Looks at the value of its number, which is another for each client."""

    def client(self, task, down, mine, data, key):
        return super().client(task, down, mine, data, key) if self.mu > 0.5 else (down, mine)


def test_a_method_that_looks_at_its_numbers_is_refused_by_name():
    lanes = [Lane(Worker(task(), small(Looking(mu=mu))), shards()) for mu in (0.6, 0.7)]
    with pytest.raises(CannotVectorise, match="Looking cannot take mu for each client by itself"):
        Vmap().open_lanes(lanes, torch.device("cpu"))


def test_a_method_that_looks_at_its_numbers_in_its_last_phase_is_refused_before_the_first_round():
    lanes = [Lane(Worker(task(), small(PerFedAvg(alpha=a))), shards()) for a in (0.01, 0.02)]
    with pytest.raises(CannotVectorise, match="PerFedAvg cannot take alpha for each client by itself"):
        Vmap().open_lanes(lanes, torch.device("cpu"))


@dataclass(frozen=True)
class Noting(Adapter):
    """Notes the model's mean answer to the client's validation examples."""

    calibrates = True

    def calibrate(self, task, predict, model, data):
        return {"mean": predict(model, data["x"][data["rows"][:1]]).logits.mean(0)}


def test_models_are_calibrated_with_the_numbers_of_their_own_lane():
    methods, data, held = [small(FedPCL(tau=tau), FEW) for tau in (0.07, 0.5)], shards(), shards((4,) * 6, seed=1)
    noted = []
    for some in (methods, methods[:1], methods[1:]):
        lanes = [Lane(Worker(task(), m, seed=3), data) for m in some]
        engine = Vmap(chunk=5).open_lanes(lanes, torch.device("cpu"))
        states = fit.start_together([lane.worker for lane in lanes], engine, 6)
        downs = [m.download(task(), s.server) for m, s in zip(some, states, strict=True)]
        models = engine.deploy(engine.lanes.downs(downs), engine.mine, Personalizer())
        reference = engine.calibrated(models, engine.gather([held] * len(some)), Noting())["reference"]
        noted += engine.lanes.each(tree.map(torch.clone, reference))
    assert gap(noted[0], noted[2]) < 1e-4 and gap(noted[1], noted[3]) < 1e-4
    assert gap(noted[0], noted[1]) > 0.1  # the temperature matters


def test_what_differs_in_numbers_other_than_zero_joins(monkeypatch):
    monkeypatch.setattr(train, "device_of", lambda _: torch.device("cuda"))
    first = ac.Experiment(ac.data.Digits(clients=4), method=FedProx(mu=0.1), rounds=2)

    def joins(method, **others):
        return train.can_join([first, replace(first, method=method, **others)], numbers=True)

    assert joins(FedProx(mu=0.2)) and joins(FedProx(mu=0.2, opt=SGD(lr=0.01)), seed=2)
    assert not train.can_join([first, replace(first, method=FedProx(mu=0.2))])
    assert not joins(FedProx(mu=0.0)) and not joins(FedAvg()) and not joins(FedProx(mu=0.2), rounds=3)
    assert not joins(FedProx(mu=0.1, opt=SGD(momentum=0.9)))  # without momentum there is no velocity
    assert varied([FedProx(mu=0.1), FedProx(mu=0.3)]) == {("mu",): [0.1, 0.3]}


def test_seeds_that_scale_their_own_numbers_are_trained_one_by_one(monkeypatch):
    """The task of a lane would be that of the first, with the means of the first one's training rows."""
    monkeypatch.setattr(train, "can_join", lambda *_, **__: True)
    x = torch.randn(60, 3, generator=torch.Generator().manual_seed(0)) * torch.tensor([1.0, 9.0, 50.0])
    data = ac.data.of(x.numpy(), (x[:, 0] > 0).long().numpy(), clients=3, partition=ac.data.IID())
    method = FedAvg(work=ac.Work(epochs=1, batch=4))
    first = ac.Experiment(data, ac.models.MLP(hidden=(4,)), method, rounds=1, backend=Vmap(), device="cpu")
    experiments = [first, replace(first, seed=1)]
    fits = api.train_together(experiments)
    assert fits[0].worker.task.mean != fits[1].worker.task.mean
    for one, e in zip(fits, experiments, strict=True):
        assert equal(one.state.server, ac.train(e).state.server)
    lanes = [Lane(one.worker, one.world.shards(one.world.train)) for one in fits]
    with pytest.raises(ValueError, match="lanes need inputs of one form, scaled by the same numbers"):
        Vmap().open_lanes(lanes, torch.device("cpu"))
    assert api.train_together([first, first])[1].lane is not None


@dataclass(frozen=True)
class Remembers(ac.adapters.NoAdapt):
    """Keeps what the model says of a validation example, and answers with it."""

    calibrates = True

    def calibrate(self, task, predict, model, data):
        return {"said": predict(model, data["x"][data["rows"][:1]]).logits[0], "who": data["id"]}


def test_adapters_calibrate_with_the_numbers_of_their_lane():
    methods = [small(ac.methods.FedPCL(tau=tau), FEW) for tau in (0.07, 0.5)]
    held, data = shards((4,) * 6, seed=1), shards()
    lanes = [Lane(Worker(task(), m), data) for m in methods]
    engines = [
        Vmap().open_lanes(lanes, torch.device("cpu")),
        *(Vmap().open(w, d, torch.device("cpu")) for w, d in lanes),
    ]
    found = []
    for engine, some in zip(engines, (lanes, lanes[:1], lanes[1:]), strict=True):
        states = fit.start_together([w for w, _ in some], engine, 6)
        downs = [w.method.download(w.task, s.server) for (w, _), s in zip(some, states, strict=True)]
        mine = engine.lanes.mine([s.mine for s in states])
        models = engine.deploy(engine.lanes.downs(downs), mine, ac.personal.NoPersonal())
        found.append(engine.calibrated(models, engine.gather([held] * len(some)), Remembers())["reference"])
    alone = torch.cat([found[1]["said"], found[2]["said"]])
    assert gap(found[0]["said"], alone) < 1e-5 and gap(found[1]["said"], found[2]["said"]) > 1e-3
    assert found[0]["who"].tolist() == [*range(6), *range(6)]


class Ticks(Watch):
    def testing(self, label, seed, steps):
        self.steps, self.seen = steps, 0

    def tested(self):
        self.seen += 1


def _place(row):
    return tuple(str(row[k]) for k in ("adapter", "stream", "selection"))


class Replayed:
    """Stands for a recording: the function of the first call is replayed, whatever later ones close over."""

    def __init__(self, f, inputs, slot, tidy):
        self.f = f

    def __call__(self, *inputs, room=None):
        return self.f(*inputs)

    def launches(self, inputs, room):
        self.found = self.f(*inputs)
        return iter(())

    def results(self):
        return self.found


@pytest.mark.parametrize("seeds", [(0,), (0, 3)], ids=["one-lane", "two-lanes"])
def test_what_is_recorded_depends_on_its_inputs_alone(monkeypatch, seeds):
    """Streams of other clients than those that train have groups of the same shapes: a recording is replayed there."""
    monkeypatch.setattr(capture, "Captured", Replayed)
    lanes = [Lane(Worker(task(), small(FedTHE(), BRIEF), seed=s), shards((16,) * 6, seed=s)) for s in seeds]
    workers, found = [lane.worker for lane in lanes], []
    for recording in (False, True):
        engine = Vmap(chunk=4).open_lanes(lanes, torch.device("cpu"))
        engine.recorder.on, val = recording, [shards((8,) * 6, seed=1) for _ in lanes]
        for states in fit.rounds_together(workers, engine, SCHEDULE, val, fit.start_together(workers, engine, 6)):
            pass
        downs = [w.method.download(w.task, s.server) for w, s in zip(workers, states, strict=True)]
        down, mine = engine.lanes.downs(downs), engine.lanes.mine([s.mine for s in states])
        trained = engine.deploy(down, mine, FineTune(work=BRIEF))
        for _ in range(2):  # what comes a second time is recorded
            for models, clients in ((trained, 6), (engine.join(down, 4), 4)):
                test = engine.gather([shards((8,) * clients, seed=2 + s) for s in seeds])
                found.append(engine.serve(models, test, MEMO(views=2, steps=1), Protocol(4)))
        assert bool(engine.recorder.recorded) == recording
    assert all(equal(a, b) for a, b in zip(found[:4], found[4:], strict=True))
