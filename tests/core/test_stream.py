from dataclasses import dataclass

import pytest
import torch

from acclimate.core import rng, stream
from acclimate.core.adapter import Adapter
from acclimate.core.stream import Protocol
from acclimate.methods import FedAvg
from support import client_data, fitted, shards, small


@dataclass(frozen=True)
class Counter(Adapter):
    """Answers with the number of batches seen so far; remembers what it was shown."""

    transductive = True

    def init(self, task, model):
        return {"count": torch.zeros(()), "total": torch.zeros(())}

    def prepare(self, task, predict, model, state, x, key):
        return {**state, "total": torch.tensor(float(len(x)))}

    def step(self, task, predict, model, state, x, key):
        count = state["count"] + 1
        logits = torch.zeros(len(x), task.num_classes) + count
        return logits, {**state, "count": count}


def run(protocol, n=9):
    data = shards((n,), seed=3)
    own = {k: v for k, v in client_data(data, 0).items() if k != "y"}
    from support import task

    return stream.run(task(), lambda m, x, mode="eval", key=None: None, Counter(), {}, own, protocol, rng.key(0))


def test_batches_come_in_order_and_state_carries_over():
    assert run(Protocol(batch=4))[:, 0].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3]


def test_reset_per_batch_forgets():
    assert run(Protocol(batch=4, reset="batch"))[:, 0].tolist() == [1] * 9


def test_last_batch_is_full_and_wraps_around():
    seen = []

    @dataclass(frozen=True)
    class Spy(Adapter):
        def step(self, task, predict, model, state, x, key):
            seen.append(x)
            return torch.zeros(len(x), 5), state

    data = shards((9,), seed=3)
    own = client_data(data, 0)
    assert "y" in own
    from support import task

    stream.run(
        task(), lambda *a, **k: None, Spy(), {}, {k: v for k, v in own.items() if k != "y"}, Protocol(4), rng.key(0)
    )
    assert [len(x) for x in seen] == [4, 4, 4]
    flat = torch.cat(seen)
    expected = data.x[data.own(0)]
    assert torch.equal(flat[:9], expected)
    assert torch.equal(flat[9:], expected[:3])


def test_the_worker_never_shows_labels_to_an_adapter():
    @dataclass(frozen=True)
    class Thief(Adapter):
        def step(self, task, predict, model, state, x, key):
            assert not isinstance(x, dict)
            return predict(model, x).logits, state

    worker, engine, state = fitted(small(FedAvg()), rounds=1)
    captured = {}
    original = stream.run

    def spy(task, predict, adapter, model, data, protocol, key):
        captured.update(data)
        return original(task, predict, adapter, model, data, protocol, key)

    stream.run = spy
    try:
        live = worker.method.deploy(worker.task, worker.method.download(worker.task, state.server), {})
        worker.adapt(live, client_data(engine.shards, 0), Thief(), Protocol())
    finally:
        stream.run = original
    assert "y" not in captured
    assert "x" in captured


def test_scores_by_hand_ignore_rows_beyond_n():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [5.0, 0.0], [9.0, 0.0]])
    s = stream.score(logits, torch.tensor([0, 0, 0, 1]), torch.tensor(3))
    assert float(s["accuracy"]) == pytest.approx(2 / 3)
    ce = torch.nn.functional.cross_entropy(logits[:3], torch.tensor([0, 0, 0]))
    assert float(s["loss"]) == pytest.approx(float(ce), rel=1e-6)
    assert float(s["n"]) == 3
    p = logits[:3].softmax(-1).amax(-1)
    hits = torch.tensor([1.0, 0.0, 1.0])
    expected = (hits - p).abs().sum() / 3  # three samples in three different bins
    assert float(s["ece"]) == pytest.approx(float(expected), rel=1e-5)


def test_bad_protocols_are_named():
    with pytest.raises(ValueError, match="Protocol: batch=0"):
        Protocol(batch=0)
    with pytest.raises(ValueError, match="reset='never' must be one of"):
        Protocol(reset="never")
