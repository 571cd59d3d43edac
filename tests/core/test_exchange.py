"""Clients that exchange while they adapt: what crosses, who counts, and that nothing changes where nothing does."""

from dataclasses import dataclass
from typing import Literal

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import BNStats, BNTogether, FedCTTA, FedTSA, Latte, NoAdapt, Tent, Together
from acclimate.backends import Serial, Vmap
from acclimate.backends.vmap.lanes import Lane
from acclimate.core import (
    SGD,
    CannotExchange,
    Exchanging,
    Gather,
    Mean,
    Protocol,
    Sum,
    Worker,
    exchange,
    rng,
    stream,
    tree,
)
from acclimate.filters import FP16, CentralDP, Clip, Krum, Masked, Median
from acclimate.methods import FedAvg
from acclimate.ops.params import with_params
from acclimate.personal import NoPersonal
from support import client_data, equal, gap, shards, small, task

CPU = torch.device("cpu")
SIZES = (40, 24, 16, 33, 17, 0)
TENT = Tent(opt=SGD(lr=0.5))
ADAPTERS = {
    "similarity": Together(TENT, temperature=1.0),
    "uniform": Together(TENT, weights="uniform", every=2),
    "fedctta": FedCTTA(TENT, noise=4, temperature=0.1),
    "latte": Latte(slots=3, neighbours=2),
    "fedtsa": FedTSA(window=2, steps=3),
    "bn-together": BNTogether(),
    "bn-together-uniform": BNTogether(weights="uniform", every=2),
}
ALONE = {
    "latte": Latte(slots=3, neighbours=0),
    **dict.fromkeys(("fedtsa", "bn-together", "bn-together-uniform"), BNStats()),
}
"""What they do without an exchange, where that is not Tent."""


def served(adapter, backend=None, filters=(), sizes=SIZES, protocol=None, seed=0, trained=SIZES):
    """The metrics of an untrained model's clients on their streams."""
    worker = Worker(task(), small(FedAvg()), filters, seed)
    engine = (backend or Serial()).open(worker, shards(trained or (1,)), CPU)
    models = engine.deploy(
        worker.method.init_server(worker.task, len(sizes), worker.key("init")), engine.mine, NoPersonal()
    )
    return engine.serve(models, shards(sizes, seed=2), adapter, protocol or Protocol(batch=8))


@dataclass(frozen=True)
class Idle(Exchanging):
    """Tent whose clients exchange, and make nothing of it. The server counts messages."""

    inner: Tent = TENT

    @property
    def uplink(self):
        return {"one": Sum(), "loud": Gather()}

    def init(self, task, model):
        return {**self.inner.init(task, model), "heard": torch.zeros(())}

    def step(self, task, predict, model, state, x, key):
        logits, new = self.inner.step(task, predict, model, state, x, key)
        return logits, {**new, "heard": state["heard"]}

    def send(self, task, predict, model, state, key):
        return {"one": torch.ones(()), "loud": state["params"]["body.1.bias"].sum() * 0}

    def exchange(self, task, server, total, key):
        assert len(total["loud"]) == int(total["one"])
        return {"all": {"count": total["one"]}, "secret": total["loud"]}

    def receive(self, task, model, state, down):
        assert set(down) == {"count"}
        return {**state, "heard": down["count"]}


def test_who_exchanges_with_nobody_has_the_bits_of_the_lone_adapter_and_sends_nothing():
    own = Together(TENT, weights="own")
    assert not exchange.exchanges(own) and exchange.exchanges(Together(TENT))
    for backend in (Serial(), Vmap(chunk=2)):
        assert equal(served(own, backend), served(TENT, backend))


@pytest.mark.parametrize(
    "protocol", [Protocol(8), Protocol(8, "batch"), Protocol(8, "shift", 16), Protocol(8, "collapse")]
)
@pytest.mark.parametrize("every", [1, 2])
def test_an_exchange_that_changes_nothing_has_the_bits_of_the_lone_adapter(protocol, every):
    ours = served(Idle(every=every), protocol=protocol)
    assert equal(tree.drop(ours, ("exchanged",)), served(TENT, protocol=protocol))


def test_a_stream_in_parts_is_the_stream():
    t, own = task(), tree.drop(client_data(shards((21,)), 0), ("y",))
    worker = Worker(t, FedAvg())
    model, predict, key = {"vars": t.init(rng.key(0))}, worker.predict(), rng.key(5)
    for protocol in (Protocol(4), Protocol(4, "shift", 8)):
        whole = stream.run(t, predict, TENT, model, own, protocol, key).logits
        fresh = state = TENT.init(t, model)
        parts = []
        for first, steps in ((0, 1), (1, 3), (torch.tensor(4), 2)):
            part = stream.Stretch(first, steps, 4)
            found, state = stream.stretch(t, predict, TENT, model, own, protocol, key, state, fresh, part)
            parts.append(found.logits)
        assert torch.equal(torch.cat(parts)[:21], whole)


def test_clients_whose_stream_has_ended_neither_send_nor_count():
    heard = []

    @dataclass(frozen=True)
    class Spy(Idle):
        def exchange(self, task, server, total, key):
            heard.append(int(total["one"]))
            return {**super().exchange(task, server, total, key)}

    found = served(Spy())
    # batches of 8: 5, 3, 2, 5, 3, 0; a message after each but the last, and one client alone has nobody to send to
    assert heard == [5, 4, 2, 2]
    assert found["exchanged"].tolist() == [4 * 12, 2 * 12, 12, 4 * 12, 2 * 12, 0]
    assert served(Idle(), sizes=(40, 8, 8))["exchanged"].tolist() == [0, 0, 0]


@dataclass(frozen=True)
class Chosen(Exchanging):
    """A user's own adapter, which checks nothing itself."""

    kind: Literal["near", "far"] = "near"


def test_choices_of_every_exchanging_adapter_are_checked():
    with pytest.raises(ValueError, match="Chosen: kind='nera' must be one of 'near', 'far'"):
        Chosen("nera")
    for record in (Together, BNTogether):
        with pytest.raises(ValueError, match=f"{record.__name__}: weights='all' must be one of"):
            record(weights="all")
        with pytest.raises(ValueError, match=f"{record.__name__}: temperature=0.0 must be a finite number above 0"):
            record(temperature=0.0)


@dataclass(frozen=True)
class Echo(Exchanging):
    """Sends a mark of its own stream and gets it back; it is unsure as long as the mark is its own."""

    @property
    def uplink(self):
        return {"mark": Gather()}

    def init(self, task, model):
        return {"mark": torch.zeros(()), "heard": torch.zeros(())}

    def step(self, task, predict, model, state, x, key):
        first = F.one_hot(torch.zeros(len(x), dtype=torch.int64), 5)
        apart = 1000 * (state["heard"] - state["mark"]).abs()
        return first * apart, {"mark": x.float().mean(), "heard": state["heard"]}

    def send(self, task, predict, model, state, key):
        return {"mark": state["mark"]}

    def exchange(self, task, server, total, key):
        return {"own": {"mark": total["mark"]}}

    def receive(self, task, model, state, down):
        return {**state, "heard": down["mark"]}


@pytest.mark.parametrize("backend", [Serial(), Vmap(chunk=2)])
def test_every_client_gets_its_own_row(backend):
    confidence = served(Echo(), backend, sizes=(17, 24, 9, 40, 33))["confidence"]
    torch.testing.assert_close(confidence, torch.full((5,), 0.2))


def test_keys_of_an_exchange_are_none_of_training():
    worker = Worker(task(), FedAvg(), (), 3)
    half = exchange.serving(worker, Together(TENT), Protocol(8))
    for purpose in ("train", "filter", "server", "adapt"):
        assert int(half.key(purpose, 0, 1)) != int(worker.key(purpose, 0, 1))


@pytest.mark.parametrize("name", ADAPTERS)
def test_vectorised_clients_agree_with_serial(name):
    a, b = (served(ADAPTERS[name], backend) for backend in (Serial(), Vmap(chunk=2)))
    assert gap(a, b) < 1e-5 and torch.equal(a["exchanged"], b["exchanged"])
    assert gap(a["loss"], served(ALONE.get(name, TENT))["loss"]) > 5e-5


def test_lanes_exchange_among_themselves():
    lanes = [Lane(Worker(task(), small(FedAvg()), (), seed), shards(SIZES)) for seed in (0, 1)]
    engine = Vmap().open_lanes(lanes, CPU)
    downs = [w.method.init_server(w.task, 6, w.key("init")) for w, _ in lanes]
    models = engine.deploy(engine.lanes.downs(downs), engine.mine, NoPersonal())
    test = engine.gather([shards(SIZES, seed=2)] * 2)
    both = engine.lanes.each(engine.serve(models, test, Together(TENT), Protocol(8)))
    for seed, found in enumerate(both):
        assert gap(found, served(Together(TENT), seed=seed)) < 1e-5


def averaged(every, sizes=(24, 24, 16)):
    """`Together(weights="uniform")` as a plain loop: every client's answers."""
    worker, data = Worker(task(), FedAvg()), shards(sizes, seed=2)
    predict, model = worker.predict(), {"vars": worker.task.init(worker.key("init"))}
    states, out = [TENT.init(worker.task, model) for _ in sizes], [[] for _ in sizes]
    for t in range(3):
        for c, n in enumerate(sizes):
            if t * 8 < n:
                x = data.x[data.own(c)[t * 8 : t * 8 + 8]]
                logits, states[c] = TENT.step(worker.task, predict, model, states[c], x, rng.key(0))
                out[c].append(logits)
        goes_on = [c for c, n in enumerate(sizes) if n > (t + 1) * 8]
        if (t + 1) % every == 0 and len(goes_on) > 1:
            mean = {k: sum(states[c]["params"][k] for c in goes_on) / len(goes_on) for k in states[0]["params"]}
            for c in goes_on:
                states[c] = {**states[c], "params": mean}
    return torch.stack([stream.score(torch.cat(o), data.y[data.own(c)], data.n[c])["loss"] for c, o in enumerate(out)])


@pytest.mark.parametrize("every", [1, 2])
def test_uniform_is_the_mean_of_adapted_parameters_in_a_plain_loop(every):
    ours = served(Together(TENT, weights="uniform", every=every), sizes=(24, 24, 16), trained=(24, 24, 16))
    assert gap(ours["loss"], averaged(every)) < 1e-5
    assert gap(averaged(1), averaged(2)) > 1e-4


def test_filters_of_the_experiment_apply_and_bytes_are_counted_after_them():
    uniform = Together(TENT, weights="uniform")
    plain, half = served(uniform)["exchanged"], served(uniform, filters=(FP16(),))["exchanged"]
    size = tree.nbytes(TENT.init(task(), {"vars": task().init(rng.key(0))})["params"])
    assert plain.tolist() == [size * 2 * k for k in (4, 2, 1, 4, 2, 0)]
    assert half.tolist() == [(size + size // 2) * k for k in (4, 2, 1, 4, 2, 0)]  # up in 16 bits, down in 32
    # with nothing left of the moves, every exchange puts the deployed parameters back
    reset = served(uniform, filters=(Clip(norm=1e-12),))
    assert gap(reset["loss"][:3], served(TENT, protocol=Protocol(8, "batch"))["loss"][:3]) < 1e-5
    assert gap(served(uniform, filters=(Median(),))["loss"], served(uniform)["loss"]) > 1e-5


@pytest.mark.parametrize(
    ("adapter", "filters", "sizes", "says"),
    [
        (Together(TENT), (Median(),), SIZES, "Median: the message has no Sum or Mean to replace"),
        (Together(TENT), (CentralDP(),), SIZES, "CentralDP is accounted for by rounds of training alone"),
        (Together(TENT), (Masked(),), SIZES, "Masked is accounted for by rounds of training alone"),
        (Together(TENT), (), (16,), "needs at least 2 clients with a stream, not 1"),
        (Together(TENT), (), (16, 0), "needs at least 2 clients with a stream, not 1"),
        (Together(TENT, weights="uniform"), (Krum(liars=2),), SIZES, "needs at least 7 clients with a stream, not 5"),
    ],
)
def test_what_cannot_be_exchanged_is_refused_in_a_sentence(adapter, filters, sizes, says):
    for backend in (Serial(), Vmap()):
        with pytest.raises(CannotExchange, match=says):
            served(adapter, backend, filters, sizes, trained=sizes)


def test_who_is_left_when_streams_end_goes_on_alone_where_a_reducer_needs_more():
    """Of five streams one ends with the second stretch, and Krum needs five clients."""
    found, alone = (served(Together(TENT, weights="uniform"), filters=(Krum(liars=1),)), served(TENT))
    bytes_ = found["exchanged"][0]
    assert int(bytes_) > 0 and found["exchanged"].tolist() == [int(bytes_)] * 5 + [0], "one exchange, of all five"
    assert bool(torch.isfinite(found["loss"]).all()) and gap(found["loss"], alone["loss"]) > 1e-5


def test_bad_settings_name_the_field():
    for make in (lambda: Together(every=0), lambda: FedCTTA(every=0), lambda: Latte(every=-1), lambda: FedTSA(every=0)):
        with pytest.raises(ValueError, match="every="):
            make()
    with pytest.raises(ValueError, match="adapter=Together exchanges"):
        Together(Together())
    model = {"vars": task().init(rng.key(0))}
    assert (
        Together(NoAdapt()).refusal(task(), model)
        == "Together mixes the parameters that an adapter tunes, and NoAdapt tunes none"
    )
    assert Together(NoAdapt(), weights="own").refusal(task(), model) is None


def test_a_client_that_diverges_is_named():
    @dataclass(frozen=True)
    class Broken(Idle):
        def send(self, task, predict, model, state, key):
            return {"one": torch.ones(()), "loud": torch.full((), torch.nan)}

    assert torch.isnan(served(Broken(), sizes=(16, 16, 8), trained=(9, 9, 9))["loss"]).tolist() == [True, True, False]


def test_rules_and_messages():
    t = task()
    worker, model = Worker(t, FedAvg()), {"vars": t.init(rng.key(0))}
    assert Together(weights="uniform").uplink == {"move": Mean()} and Together(weights="own").uplink == {}
    state = TENT.init(t, model)
    moved = {**state, "params": tree.map(lambda x: x + 0.5, state["params"])}
    up = Together(TENT).send(t, worker.predict(), model, moved, rng.key(0))
    assert set(up) == {"move"} and all(bool((x == 0.5).all()) for x in tree.leaves(up))
    back = Together(TENT).receive(t, model, moved, {"move": tree.scale(up["move"], 2.0)})
    assert back["opt"] is moved["opt"] and gap(back["params"], tree.map(lambda x: x + 1.0, state["params"])) == 0
    answers = FedCTTA(TENT, noise=3).send(t, worker.predict(), model, moved, rng.key(0))["answer"]
    noise = rng.uniform(rng.key(0), 3, 3, 10, 10)
    assert gap(answers, worker.predict()(with_params(model, moved["params"]), noise).logits.mean(0)) == 0
    other = FedCTTA(TENT, noise=3, seed=4).images(t, noise)
    assert torch.equal(other, rng.uniform(rng.key(4), 3, 3, 10, 10)) and not torch.equal(other, noise)
