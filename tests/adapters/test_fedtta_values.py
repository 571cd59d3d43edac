"""FedTTA by value: its search for the step that answers, and whole adaptations of a linear model by plain autograd."""

import math

import pytest
import torch

from acclimate.adapters.fedtta import FedTTA
from acclimate.adapters.fedtta_search import ReleasedStepSearch, StepSearch
from acclimate.core import Out, rng
from acclimate.core.loops import Stepwise, driven
from acclimate.ops.memory_norms import CountedNorm
from support import CLASSES, equal, gap, images, task


def drawn(seed, *shape):
    return torch.randn(*shape, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)


def searched(form, values, patience):
    """The search over models 0, 1, ... whose entropies (or surprises) are these; each step moves to the next model."""
    zero = torch.zeros((), dtype=torch.float64)
    search = form.start({"w": zero}, zero, patience)
    for step, value in enumerate(values):
        now = {"entropy": torch.tensor(value).double(), "surprise": torch.tensor(value).double()}
        search = search.judged(step, now).moved({"w": zero + step + 1})
    return float(search.best["w"]), float(search.chosen), float(search.taken)


@pytest.mark.parametrize(
    ("values", "patience", "best", "taken"),
    [
        ([9.0, 5.0, 4.0, 3.0], 1, 3, 3),
        ([0.0, 5.0, 4.0, 6.0, 3.0], 2, 4, 4),  # the model before the first step does not compete
        ([0.0, 5.0, 4.0, 6.0, 3.0], 1, 2, 3),
        ([0.0, 5.0, 6.0, 7.0, 1.0], 2, 1, 3),
        ([0.0, 5.0, 6.0, 4.0, 5.0, 5.0, 1.0], 2, 3, 5),  # a new least starts the count again
        ([0.0, 5.0, 5.0, 1.0], 1, 1, 2),  # no less is no new least
        ([0.0, 5.0, 6.0, 7.0, 1.0], None, 4, 4),  # without patience the last one answers
    ],
)
def test_the_least_entropy_answers_and_patience_ends_the_search(values, patience, best, taken):
    assert searched(StepSearch, values, patience) == (best, best, taken)


def test_the_released_search_keeps_the_model_before_the_first_step():
    """Its value is the count times the surprise: zero at first, and never less."""
    assert searched(ReleasedStepSearch, [3.0, 2.0, 1.0, 0.5, 0.1], 2) == (0.0, 0.0, 2.0)
    assert searched(ReleasedStepSearch, [3.0, 2.0, 1.0], None) == (2.0, 2.0, 2.0)


def test_what_models_are_judged_by():
    logits, real = drawn(0, 4, 3), torch.arange(4) < 3
    log = logits.log_softmax(-1)
    entropy = [-sum(math.exp(v) * v for v in row) for row in log.tolist()[:3]]
    surprise = [-sum(row) / math.log(2) for row in log.tolist()[:3]]
    assert float(StepSearch.measured(logits, real)["entropy"]) == pytest.approx(sum(entropy) / 3, rel=1e-9)
    both = ReleasedStepSearch.measured(logits, real)
    assert float(both["entropy"]) == pytest.approx(sum(entropy) / 3, rel=1e-9)
    assert float(both["surprise"]) == pytest.approx(sum(surprise) / 3, rel=1e-9)
    assert min(surprise) > 0


W, NET, BIAS, X = drawn(1, 4, 3), drawn(2, 1, 3), drawn(3, 1), drawn(4, 6, 4)
MODEL = {
    "vars": {"params": {"w": W}, "buffers": {}},
    "net": {"0": {"weight": NET, "bias": BIAS}},
    "inner": {"lr": torch.tensor(0.3, dtype=torch.float64), "batch": torch.tensor(2.0, dtype=torch.float64)},
}


def predict(model, x, mode="eval", key=None):
    assert mode == "still" or isinstance(mode, CountedNorm)  # batch statistics, of all or of the samples that count
    return Out(x @ model["vars"]["params"]["w"], x, {})


def loss_of(w, x, norm):
    """Eq. 11: the norm of the net's outputs, of the set or of a batch of two with the set's mean square."""
    square = (x @ w @ NET.T + BIAS).square()
    return (2 * square.mean() if norm == "batch" else square.sum()).sqrt()


@pytest.mark.parametrize("norm", ["batch", "set"])
@pytest.mark.parametrize("clip", [None, 0.5])
@pytest.mark.parametrize("lr", [None, 0.1])
def test_steps_go_down_the_learned_loss(norm, clip, lr):
    adapter = FedTTA(steps=3, norm=norm, clip=clip, lr=lr)
    real = torch.arange(6) < 5
    start = adapter.init(None, MODEL)
    state = adapter.prepare(None, predict, MODEL, start, X, real, rng.key(0))
    w, losses, entropies = W, [], []
    for t in range(4):
        own = w.clone().requires_grad_()
        loss = loss_of(own, X[:5], norm)
        loss.backward()
        p = (X[:5] @ w).softmax(-1)
        losses.append(float(loss.detach()))
        entropies.append(float(-(p * p.log()).sum(-1).mean()))
        if t < 3:
            size = float(own.grad.norm())
            scale = 1.0 if clip is None else min(1.0, clip / (size + 1e-6))
            w = w - (lr or 0.3) * scale * own.grad
    torch.testing.assert_close(state["params"]["w"], w, rtol=1e-7, atol=1e-9)
    record = state["record"]
    assert record["learned_loss"].tolist() == pytest.approx(losses[:3], rel=1e-6)  # before each step
    assert record["entropy"].tolist() == pytest.approx(entropies[:3], rel=1e-6)
    assert (float(record["chosen_step"]), float(record["steps_taken"])) == (3, 3)
    assert {k: v.shape for k, v in start["record"].items()} == {k: v.shape for k, v in record.items()}
    assert not any(v.any() for v in start["record"].values())
    logits, _, told = adapter.trace(None, predict, MODEL, state, X, rng.key(1))
    torch.testing.assert_close(logits, X @ w, rtol=1e-7, atol=1e-9)
    torch.testing.assert_close(told["learned_loss"], (X @ w @ NET.T + BIAS)[:, 0].abs(), rtol=1e-6, atol=1e-8)
    turned = adapter.trace(None, predict, MODEL, state, -9 * X, rng.key(1))[2]["learned_loss"]  # of either sign
    torch.testing.assert_close(turned, (-9 * X @ w @ NET.T + BIAS)[:, 0].abs(), rtol=1e-6, atol=1e-8)
    assert told["chosen_step"].tolist() == [3.0] * 6


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_with_patience_the_least_entropy_of_the_steps_answers(variant):
    adapter = FedTTA(steps=6, patience=2, lr=0.4, clip=None, variant=variant)
    real = torch.ones(6, dtype=torch.bool)
    state = adapter.prepare(None, predict, MODEL, adapter.init(None, MODEL), X, real, rng.key(0))
    models = [W]
    for _ in range(6):
        own = models[-1].clone().requires_grad_()
        loss_of(own, X, "batch").backward()
        models.append(models[-1] - 0.4 * own.grad)
    values = [float(-((X @ w).softmax(-1) * (X @ w).log_softmax(-1)).sum(-1).mean()) for w in models]
    best, stale = 1, 0
    for step in range(2, 7):
        stale = 0 if values[step] < values[best] else stale + 1
        best = best if stale else step
        if stale == 2:
            break
    chosen = best if variant == "paper" else 0
    assert float(state["record"]["chosen_step"]) == chosen
    taken = step if variant == "paper" else 2
    assert float(state["record"]["steps_taken"]) == taken
    assert taken < 6  # the search ends early, and what is recorded stays as it was at its end
    losses = [float(loss_of(w, X, "batch")) for w in models]
    for name, each in (("entropy", values), ("learned_loss", losses)):
        expected = [*each[: taken + 1], *[each[taken]] * (6 - taken)]
        assert state["record"][name].tolist() == pytest.approx(expected, rel=1e-6)
    torch.testing.assert_close(state["params"]["w"], models[chosen], rtol=1e-7, atol=1e-9)


class Driven(Stepwise):
    """Counts the steps of loops as a recording would drive them."""

    def __init__(self):
        self.counts = []

    def repeat(self, body, state, count, like, needed=None):
        self.counts.append(count)
        return super().repeat(body, state, count, like, needed)


@pytest.mark.parametrize("fields", [{"steps": 7}, {"steps": 7, "patience": 2}, {"steps": 7, "variant": "released"}])
def test_a_recording_holds_one_step_and_gives_the_same_bits(fields):
    adapter, real = FedTTA(lr=0.4, **fields), torch.arange(6) < 5

    def prepared(w, x):
        model = {**MODEL, "vars": {"params": {"w": w}, "buffers": {}}}
        return adapter.prepare(None, predict, model, adapter.init(None, model), x, real, rng.key(0))

    clients = torch.stack((W, 2 * W, -W)), torch.stack((X, X.flip(0), 3 * X))
    plain, driver = torch.func.vmap(prepared)(*clients), Driven()
    with driven(driver):
        recorded = torch.func.vmap(prepared)(*clients)
    assert equal(plain, recorded)
    assert driver.counts == [6]  # the first step is by itself: no model competes before it


def test_repeated_samples_that_pad_a_client_count_nowhere_with_batch_norm():
    t = task("cnn-batch")
    net = {"0": {"weight": drawn(3, 4, CLASSES).float(), "bias": drawn(4, 4).float()}}
    net["1"] = {"weight": drawn(5, 1, 4).float(), "bias": drawn(6, 1).float()}
    model = {"vars": t.init(rng.key(0)), "net": net, "inner": {"lr": torch.tensor(0.3), "batch": torch.tensor(8.0)}}
    x, adapter = images(5)[0], FedTTA(steps=3, patience=2)

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    def prepared(rows):
        real, start = torch.arange(rows) < 5, adapter.init(t, model)
        return adapter.prepare(t, predict, model, start, x[torch.arange(rows) % 5], real, rng.key(1))

    alone, padded = prepared(5), prepared(9)
    assert gap(alone["params"], model["vars"]["params"]) > 1e-3
    assert gap(alone, padded) < 1e-4
