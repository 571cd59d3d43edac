"""ROID by value: its loss, weights, ensembling and prior correction in numpy, on a linear model."""

import numpy as np
import pytest
import torch

from acclimate.adapters import ROID
from acclimate.adapters.roid import smoothed
from acclimate.core import SGD, rng
from acclimate.ops.augment import Views
from by_hand import TASK, Halved, W, X, close, entropy, images, model, predict, slope, softmax

BARE = ROID(params="all", opt=SGD(lr=0.5), ensemble=1.0, consistency=0.0, correct=False)


def ratio(z):
    p = np.minimum(softmax(z), 0.99)
    return -(p * np.log(p / (1 - p) + 1e-5)).sum(-1)


def weights(z, average, temperature=1 / 3):
    p = softmax(z)
    unlike = 1 - (p @ average) / np.linalg.norm(p, axis=-1) / np.linalg.norm(average)
    d, u = ((v - v.min()) / (v.max() - v.min()) for v in (unlike, -entropy(z)))
    return np.where(d < d.mean(), 0.0, np.exp(d * u / temperature))


def served(adapter, start=None, batches=X):
    start = start or model()
    state, out = adapter.init(TASK, start), []
    for t, x in enumerate(batches):
        logits, state, told = adapter.trace(TASK, predict, start, state, images(x), rng.key(t))
        out.append((logits, told["weight"], state))
    return out


def by_hand(average, w=W, lr=0.5, ensemble=1.0, view=None):
    for x in X:
        z = x @ w
        weight = weights(z, average)

        def loss(w, x=x, weight=weight):
            value = ratio(x @ w)
            if view is not None:
                a, b = x @ w, (view * x) @ w
                logs = [v - np.log(np.exp(v).sum(-1, keepdims=True)) for v in (a, b)]
                value = value - 0.5 * (softmax(a) * logs[1] + softmax(b) * logs[0]).sum(-1)
            return (weight * value).mean()

        w = ensemble * (w - lr * slope(loss, w)) + (1 - ensemble) * W
        average = 0.9 * average + 0.1 * softmax(z).mean(0)
        yield z, weight, w, average


def test_with_a_uniform_prior_and_no_ensembling_it_is_weighted_tent_of_its_loss():
    """Two batches: the second meets the moving average that the first left."""
    dropped = 0
    for (logits, weight, state), hand in zip(served(BARE), by_hand(np.full(3, 1 / 3)), strict=True):
        close(logits, hand[0])
        close(weight, hand[1])
        close(state["params"]["w"], hand[2], 1e-6)
        close(state["average"], hand[3])
        dropped += int((hand[1] == 0).sum())
    assert 0 < dropped < X.shape[0] * X.shape[1]


def test_the_average_may_start_at_the_clients_prior():
    prior = np.array([0.7, 0.2, 0.1])
    ours = served(ROID(**{**vars(BARE), "prior": "client"}), model(prior=torch.tensor(prior)))
    for (_, weight, state), hand in zip(ours, by_hand(prior), strict=True):
        close(weight, hand[1])
        close(state["average"], hand[3])
    assert not np.allclose(ours[0][1].numpy(), served(BARE)[0][1].numpy())


def test_parameters_go_back_to_the_source_after_every_step():
    ours = served(ROID(**{**vars(BARE), "ensemble": 0.8}))
    for (_, _, state), hand in zip(ours, by_hand(np.full(3, 1 / 3), ensemble=0.8), strict=True):
        close(state["params"]["w"], hand[2], 1e-6)


def test_answers_to_a_view_are_drawn_to_those_to_the_sample():
    ours = served(ROID(**{**vars(BARE), "consistency": 1.0, "views": Halved()}))
    for (_, _, state), hand in zip(ours, by_hand(np.full(3, 1 / 3), view=0.5), strict=True):
        close(state["params"]["w"], hand[2], 1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_answers_are_weighed_by_the_smoothed_prior_of_the_batch(variant):
    logits = served(ROID(**{**vars(BARE), "correct": True, "variant": variant}))[0][0]
    z = X[0] @ W
    pi = softmax(z).mean(0)
    g = max(1 / 4, 1 / 3) / pi.max()
    prior = (pi + g) / (1 + 3 * g)
    assert prior.sum() == pytest.approx(1.0)
    close(logits, z + np.log(prior) if variant == "paper" else z * prior)


def test_a_batch_of_fewer_samples_than_classes_says_less_of_the_prior():
    prior = np.array([0.7, 0.2, 0.1])
    for batch, g in ((1, 1 / 0.7), (2, 0.5 / 0.7), (3, 1 / 2.1), (200, 1 / 2.1)):
        close(smoothed(torch.tensor(prior), batch), (prior + g) / (1 + 3 * g))


def test_one_sample_counts_as_one_and_is_answered_with_numbers():
    (logits, weight, state), *_ = served(ROID(params="all", views=Views(flip=False)), batches=X[:1, :1])
    assert weight.tolist() == [1.0]
    assert bool(torch.isfinite(logits).all() and torch.isfinite(state["params"]["w"]).all())


def test_refusals_and_bad_fields():
    flat = type(TASK)(**{**vars(TASK), "shape": (5,)})
    assert "set params='all' or the model's norm" in ROID().refusal(TASK, model())
    assert ROID(params="all").refusal(flat, model()).endswith("set consistency=0")
    assert ROID(params="all", consistency=0.0).refusal(flat, model()) is None
    missing = ROID(params="all", prior="client").refusal(TASK, model())
    assert missing == (
        "ROID with prior='client' needs prior in the deployed model: personalise with ClassPrior (personal=prior)"
    )
    other = ROID(params="all", prior="client").refusal(TASK, model(prior=torch.ones(7) / 7))
    assert "the shares of 7 classes, and this model has 3" in other
    with pytest.raises(ValueError, match="ensemble=2"):
        ROID(ensemble=2.0)
