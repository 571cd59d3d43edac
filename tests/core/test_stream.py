from dataclasses import dataclass
from typing import ClassVar

import pytest
import torch

from acclimate.adapters import MEMO, T3A, THE, TSA, NoAdapt, Tent, THEPlus
from acclimate.core import rng, stream
from acclimate.core.adapter import Adapter
from acclimate.core.optim import SGD
from acclimate.core.stream import Protocol
from acclimate.methods import FedAvg, FedTHE
from acclimate.personal import NoPersonal
from support import BACKENDS, client_data, equal, fitted, gap, shards, small


@dataclass(frozen=True)
class Counter(Adapter):
    """Answers with the number of batches seen so far; remembers what it was shown."""

    transductive = True

    def init(self, task, model):
        return {"count": torch.zeros(()), "total": torch.zeros(())}

    def prepare(self, task, predict, model, state, x, real, key):
        return {**state, "total": real.sum().float()}

    def step(self, task, predict, model, state, x, key):
        count = state["count"] + 1
        logits = torch.zeros(len(x), task.num_classes) + count
        return logits, {**state, "count": count}


def run(protocol, n=9):
    data = shards((n,), seed=3)
    own = {k: v for k, v in client_data(data, 0).items() if k != "y"}
    from support import task

    return stream.run(task(), lambda m, x, mode="eval", key=None: None, Counter(), {}, own, protocol, rng.key(0)).logits


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

    def spy(task, predict, adapter, model, data, *rest):
        captured.update(data)
        return original(task, predict, adapter, model, data, *rest)

    stream.run = spy
    try:
        live = worker.method.deploy(worker.task, worker.method.download(worker.task, state.server), {})
        worker.adapt(live, client_data(engine.shards, 0), Thief(), Protocol())
    finally:
        stream.run = original
    assert "y" not in captured
    assert "x" in captured


# --- traces ---------------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Recorder(Counter):
    """Tells the batch number and the inputs' first pixel; a plain `step` tells nothing."""

    traces: ClassVar = {"count": "batches so far", "pixel": "two pixels"}

    def trace(self, task, predict, model, state, x, key):
        logits, state = self.step(task, predict, model, state, x, key)
        return logits, state, {"count": state["count"].expand(len(x)), "pixel": x[:, 0, 0, :2].float()}


def traced(n, protocol, adapter=None):
    data = shards((n,), seed=3)
    own = {k: v for k, v in client_data(data, 0).items() if k != "y"}
    from support import task

    return data, stream.run(task(), lambda *a: None, adapter or Recorder(), {}, own, protocol, rng.key(0), trace=True)


def test_traces_are_per_sample_in_stream_order_and_follow_resets():
    data, served = traced(9, Protocol(batch=4))
    assert served.trace["count"].tolist() == [1, 1, 1, 1, 2, 2, 2, 2, 3]
    assert torch.equal(served.trace["pixel"], data.x[data.own(0), 0, 0, :2].float())
    assert traced(9, Protocol(batch=4, reset="batch"))[1].trace["count"].tolist() == [1] * 9


def test_an_adapter_without_traces_tells_nothing():
    assert traced(9, Protocol(batch=4), Counter())[1].trace == {}


def test_nothing_is_traced_unless_asked():
    @dataclass(frozen=True)
    class Expensive(Recorder):
        def trace(self, task, predict, model, state, x, key):
            raise AssertionError("trace was not asked for")

    assert equal(run(Protocol(batch=4)), traced(9, Protocol(batch=4))[1].logits)
    with pytest.raises(AssertionError, match="not asked for"):
        traced(9, Protocol(batch=4), Expensive())
    worker, engine, state = fitted(small(FedAvg()), rounds=1)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    assert "trace" not in engine.serve(models, shards(seed=5), Expensive(), Protocol(4))


# Adam would blow rounding up where a sample has next to no gradient: hence SGD in TSA per sample
TOLD = [
    THE(),
    THE(history=False),
    THEPlus(steps=1, views=2),
    TSA(),
    TSA(per="sample", opt=SGD(lr=1.0)),
    Tent(),
    MEMO(steps=1, views=2),
]
UNEVEN = (5, 9, 6, 0, 8, 20)


@pytest.fixture(scope="module")
def served_models():
    """FedTHE after a round, on both engines: models, and a test federation with padding and an empty client."""
    worker, serial, state = fitted(small(FedTHE()), rounds=1)
    engines = {"serial": serial, "vmap": BACKENDS["vmap"].open(worker, shards(), torch.device("cpu"))}
    down = worker.method.download(worker.task, state.server)
    return {name: (e, e.deploy(down, state.mine, NoPersonal())) for name, e in engines.items()}, shards(UNEVEN, seed=7)


@pytest.mark.parametrize("adapter", [NoAdapt(), *TOLD], ids=lambda a: type(a).__name__)
def test_tracing_changes_no_answer_and_engines_tell_the_same(served_models, adapter):
    engines, test = served_models
    told = {}
    for name, (engine, models) in engines.items():
        plain = engine.serve(models, test, adapter, Protocol(batch=4))
        told[name] = engine.serve(models, test, adapter, Protocol(batch=4), trace=True)
        trace = told[name].pop("trace")
        assert equal(plain, told[name])
        assert set(trace) == set(adapter.traces)
        real = torch.arange(20) < test.n[:, None]
        told[name] = {k: v[real] for k, v in trace.items()}
        assert all(v.shape[:2] == (6, 20) for v in trace.values())
        assert all(len(v) == sum(UNEVEN) for v in told[name].values())
    assert gap(told["serial"], told["vmap"]) < 1e-4


def test_the_traces_of_the_are_its_weights_and_features(served_models):
    engine, models = served_models[0]["serial"]
    test = served_models[1]
    trace = engine.serve(models, test, THE(), Protocol(batch=4), trace=True)["trace"]
    x = test.x[test.own(1)]
    features = engine.worker.predict()(models[1], x).features
    torch.testing.assert_close(trace["feature"][1, :9], features)
    history, smooth = features[0], []
    for n, h in enumerate(features):  # Eq. 4, sample by sample
        history = 0.1 * features[n - 1] + 0.9 * history if n else history
        smooth.append(0.3 * h + 0.7 * history)
    torch.testing.assert_close(trace["smoothed_feature"][1, :9], torch.stack(smooth), rtol=1e-4, atol=1e-5)
    e, _ = THE().weigh(
        models[1],
        THE().init(engine.worker.task, models[1]),
        features,
        engine.worker.predict()(models[1], x).logits,
        torch.nn.functional.linear(features, models[1]["head"]["weight"], models[1]["head"].get("bias")),
    )
    torch.testing.assert_close(trace["personal_weight"][1, :9], 1 - e[:, 0], rtol=1e-4, atol=1e-5)


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


def test_what_is_not_finite_shows_in_the_loss_unless_it_lies_beyond_n():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [torch.nan, 0.0]])
    whole, part = (stream.score(logits, torch.tensor([0, 1, 0]), torch.tensor(n)) for n in (3, 2))
    assert not torch.isfinite(whole["loss"])
    assert float(part["accuracy"]) == 1 and all(bool(torch.isfinite(v)) for v in part.values())


def test_bad_protocols_are_named():
    with pytest.raises(ValueError, match="Protocol: batch=0"):
        Protocol(batch=0)
    with pytest.raises(ValueError, match="reset='never' must be one of"):
        Protocol(reset="never")


@pytest.mark.parametrize("adapter", [NoAdapt(), THE(), MEMO(views=2, steps=1), T3A(2, "sample")])
def test_a_batch_free_adapter_answers_the_same_in_larger_batches(adapter, monkeypatch):
    assert adapter.batch_free and not THE(per="batch").batch_free and not Tent().batch_free
    _, engine, state = fitted(small(FedTHE()), rounds=1, model="cnn-plain")
    models = engine.deploy(state.server, state.mine, NoPersonal())
    large = engine.serve(models, shards(seed=5), adapter, Protocol(4))
    monkeypatch.setattr(stream, "LARGE", 1)
    assert gap(large, engine.serve(models, shards(seed=5), adapter, Protocol(4))) < 1e-5


def test_an_adapter_that_answers_with_more_than_logits_is_told_so():
    @dataclass(frozen=True)
    class Whole(Counter):
        def step(self, task, predict, model, state, x, key):
            return {"logits": torch.zeros(len(x), 2)}, state

    from support import task

    own = {k: v for k, v in client_data(shards((9,), seed=3), 0).items() if k != "y"}
    with pytest.raises(TypeError, match=r"Whole.step must return \(logits, state\); its logits are a dict"):
        stream.run(task(), lambda *_: None, Whole(), {}, own, Protocol(batch=4), rng.key(0))
