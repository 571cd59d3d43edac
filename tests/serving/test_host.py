"""A host's clients answer as their live models do one after the other."""

import random
from dataclasses import replace

import pytest
import torch
from federation import lives, same, stream

from acclimate.adapters import KNNPer
from acclimate.core import tree
from acclimate.serving.host import Call, Host


def schedule(seed: int, steps: int, clients: int = 4, most: int = 20):
    """Per step, requests of some clients with so many samples."""
    draw, place = random.Random(seed), [0] * clients
    for _ in range(steps):
        calls = []
        for client in sorted(draw.sample(range(clients), draw.randint(1, clients))):
            n = draw.choice([1, 1, 1, 2, 5, most])
            calls.append(Call(client, stream(client, 400)[place[client] : place[client] + n]))
            place[client] += n
        yield calls


@pytest.mark.parametrize(
    ("name", "guard", "window"),
    [("Tent", True, 8), ("T3A", False, 8), ("NoAdapt", False, 8), ("SHOT", False, 32)],
)
def test_answers_and_states_are_those_of_live_models_alone(name, guard, window):
    alone, host = lives(name, guard, window), Host(lives(name, guard, window))
    for i, calls in enumerate(schedule(3, 9, most=20 if window < 32 else 70)):
        if i == 4:
            for client in (1, 2):
                alone[client].freeze()
                live = host.live(client)
                live.freeze()
                host.put(live)
        for call, got in zip(calls, host(calls), strict=True):
            want = alone[call.client](call.x)
            torch.testing.assert_close(got.probabilities, want.probabilities, atol=2e-5, rtol=1e-4)
            assert (got.ids, got.adapted, got.step, got.note) == (want.ids, want.adapted, want.step, want.note)
            assert got.guard == pytest.approx(want.guard, abs=1e-3, nan_ok=True)
            assert got.estimate == pytest.approx(want.estimate, abs=1e-3)
    for client, live in enumerate(alone):
        mine = host.live(client)
        same(mine.session, live.session, 1e-4)
        assert [step for step, _ in mine.snapshots] == [step for step, _ in live.snapshots]
        assert list(mine.recent) == list(live.recent)
        for (_, a), (_, b) in zip(mine.snapshots, live.snapshots, strict=True):
            same(a, b, 1e-4)


@pytest.mark.parametrize("window", [8, 32])
def test_a_guarded_adapter_is_prepared_on_a_request_that_windows_cut(window):
    """32 samples of one request are enough, wherever the window of the guard ends within them."""
    alone, host = lives("EM", True, window), Host(lives("EM", True, window))
    for call in (Call(0, stream(0, 5)), Call(0, stream(0, 37)[5:]), Call(0, stream(0, 40)[37:])):
        want, (got, other) = alone[0](call.x), host([call, Call(1, stream(1, 31))])
        torch.testing.assert_close(got.probabilities, want.probabilities, atol=2e-5, rtol=1e-4)
        assert (got.step, got.adapted, got.note) == (want.step, want.adapted, want.note)
        assert other.note.startswith("Guarded waits for 32 samples")
        assert alone[0].prepared is host.shells[0].prepared is (call.x.shape[0] != 5)
    same(host.live(0).session, alone[0].session, 1e-4)
    whole = lives("EM", True, window)[0]
    whole.prepare(stream(0, 37)[5:])
    same(alone[0].state["fresh"], whole.state["fresh"])
    assert want.note == "the guard holds the adapted answer back"


def test_a_client_alone_has_the_bits_of_its_live_model(monkeypatch):
    """Without `vmap`, which costs a lone client half of its time."""
    alone, host = lives()[2], Host(lives())
    monkeypatch.setattr("acclimate.serving.host.torch.func.vmap", None)
    for part in stream(2, 60).split([1] * 20 + [20, 3, 17]):
        assert torch.equal(host([Call(2, part)])[0].probabilities, alone(part).probabilities)
    assert alone.step == 7 and host.digest(2) == Host([alone]).digest(2)


@pytest.mark.parametrize("captured", [False, True])
def test_clients_share_what_is_the_same_and_keep_what_is_not(captured):
    """Also in the form that is captured on a GPU: rows are tensors, and a group is filled up to a power of two."""
    alone, mine = lives(), lives()
    params = mine[1].model["vars"]["params"]
    own = {**params, "head.weight": 1.5 * params["head.weight"]}
    for live in (alone[1], mine[1]):
        live.model = {**live.model, "vars": {**live.model["vars"], "params": own}}
    host = Host(mine)
    axes = tree.flatten(host.axes)
    assert [name for name, axis in axes.items() if axis == 0] == ["vars/params/head.weight"]
    if captured:
        host.recorder.on, host.recorder.run = True, lambda what, f, inputs: f(*inputs)
    for i in range(4):
        parts = [stream(c, 40)[10 * i : 10 * i + 10] for c in range(4)]
        got = host([Call(c, parts[c]) for c in range(4)]) if i < 3 else [host([Call(c, parts[c])])[0] for c in range(4)]
        for answer, live, part in zip(got, alone, parts, strict=True):
            torch.testing.assert_close(answer.probabilities, live(part).probabilities, atol=2e-5, rtol=1e-4)


def test_reset_and_restore_go_back():
    alone, host = lives(), Host(lives())
    for part in stream(1, 80).split(10):
        alone[1](part)
        host([Call(1, part)])
    for live in (alone[1], taken := host.live(1)):
        live.restore(live.snapshots[-3][0])
    host.put(taken)
    same(host.live(1).session, alone[1].session, 1e-4)
    got, want = host([Call(1, stream(1, 90)[80:])])[0], alone[1](stream(1, 90)[80:])
    torch.testing.assert_close(got.probabilities, want.probabilities, atol=2e-5, rtol=1e-4)
    for live in (alone[1], taken := host.live(1)):
        live.reset()
    host.put(taken)
    same(host.live(1).session, alone[1].session)


def test_what_is_computed_changes_nothing_until_it_is_kept():
    host = Host(lives())
    before = {c: host.digest(c) for c in host.clients}
    for rows in ([0, 1, 2, 3], [2]):
        done = host.compute([Call(c, stream(c, 20)) for c in rows])
        assert {c: host.digest(c) for c in host.clients} == before
    host.keep(done)
    assert [c for c in host.clients if host.digest(c) != before[c]] == [2]


@pytest.mark.parametrize("name", ["Tent", "T3A"])
def test_a_warm_host_has_computed_every_kind_of_step(name, monkeypatch):
    met, host = [], Host(lives(name))
    before, run = host.digest(0), Host._run
    monkeypatch.setattr(
        Host, "_run", lambda self, rows, *more: met.append((len(rows), more[-1])) or run(self, rows, *more)
    )
    host.warm()
    kinds = {(1, True), (2, True)} | ({(1, False), (2, False)} if host.size else set())
    assert set(met) == kinds and host.digest(0) == before


def test_a_host_has_one_federation():
    with pytest.raises(ValueError, match="client 1 has another experiment than client 0"):
        Host([lives("Tent")[0], lives("T3A")[1]])
    with pytest.raises(ValueError, match="client 1 has another session than client 0"):
        Host([lives()[0], lives(window=16)[1]])
    with pytest.raises(ValueError, match="two live models are of the same client"):
        Host([lives()[0], lives()[0]])
    bare = lives()
    bare[1].experiment = bare[0].experiment = replace(bare[0].experiment, adapters=(KNNPer(),))
    with pytest.raises(ValueError, match="client 0: KNNPer needs memory in the deployed model.*; deploy it again with"):
        Host(bare[:2])
    with pytest.raises(ValueError, match="no live model"):
        Host([])
    with pytest.raises(KeyError, match="client=9 must be one of 0, 1, 2, 3"):
        Host(lives()).live(9)
    with pytest.raises(ValueError, match="at most one request of each client"):
        Host(lives())([Call(0, stream(0, 1))] * 2)
