"""Single steps of adapters on small numbers worked out by hand."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters.knn import KNNPer
from acclimate.adapters.shot import SHOT, information, pseudo_labels
from acclimate.adapters.surgical import Surgical, relative_norms
from acclimate.adapters.tent import Tent
from acclimate.core import SGD, Out, rng, tree
from support import gap, images, task

KEY = rng.key(3)


def test_a_tensor_goes_the_share_of_its_relative_gradient():
    """Steps are lr times the gradient, scaled by |g| / |p| over the largest of these: 1 for a, 1/2 for b, 0 for c."""
    grads = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0]), "c": torch.tensor([0.0])}
    params = {"a": torch.tensor([0.0, 10.0]), "b": torch.tensor([4.0]), "c": torch.tensor([2.0])}
    for rate, share in (("rgn", 0.5), ("same", 1.0)):
        adapter = Surgical(opt=SGD(lr=0.2), rate=rate)
        new, _ = adapter._update(grads, adapter.opt.init(params), params)
        assert new["a"].tolist() == pytest.approx([-0.6, 9.2])
        assert new["b"].tolist() == pytest.approx([4.0 - 0.2 * share]) and new["c"].tolist() == [2.0]
    still = relative_norms(tree.zeros(grads), params)
    assert [float(s) for s in still.values()] == [0.0, 0.0, 0.0]
    born = relative_norms(grads, tree.zeros(params))  # a parameter of zeros has the largest relative gradient
    assert float(born["a"]) == 1.0 and float(born["b"]) == pytest.approx(0.2)


def linear_model():
    t = task("cnn-plain")
    return t, {"vars": t.init(KEY)}, images(8)[0]


@pytest.mark.parametrize("beta", [0.0, 0.3, 2.0])
def test_one_epoch_of_shot_is_a_step_down_information_plus_beta_times_the_pseudo_labels(beta):
    t, model, x = linear_model()

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    adapter = SHOT(opt=SGD(lr=0.1), epochs=1, batch=8, beta=beta)
    real = torch.ones(8, dtype=torch.bool)
    new = adapter.prepare(t, predict, model, adapter.init(t, model), x, real, KEY)["vars"]["params"]
    out = t.apply(model["vars"], x)
    labels = pseudo_labels(out.features, out.logits, real)  # test_shot.py has these by hand
    leaves = {k: p.clone().requires_grad_() for k, p in model["vars"]["params"].items()}
    logits = t.apply({**model["vars"], "params": leaves}, x, "adapt").logits
    (information(logits) + beta * F.cross_entropy(logits, labels)).backward()
    want = {k: (p - 0.1 * p.grad).detach() if k in t.body else p.detach() for k, p in leaves.items()}
    assert gap(new, {k: want[k] for k in new}) < 1e-6


def knn_model(points, labels, n):
    z, y = torch.zeros(6, 2), torch.zeros(6, dtype=torch.int64)
    for i, (point, label) in enumerate(zip(points, labels, strict=True)):
        z[i], y[i] = torch.tensor(point), label
    asked = {"away": torch.zeros(1, 10)}
    return {"memory": {"z": z, "y": y, "n": torch.tensor(n), "asked": asked}}


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize(("k", "voters"), [(2, 2), (5, 3), (10, 3)])
def test_neighbours_vote_and_empty_places_of_the_store_do_not(variant, k, voters):
    """Three real points; with k = 5 or 10 there are fewer neighbours than asked for."""
    points, labels = [[0.0, 1.0], [3.0, 4.0], [6.0, 8.0]], [2, 0, 2]
    t, logits = task("cnn-plain"), torch.tensor([[1.0, 0.0, 0.0, 0.0, 2.0]])

    def predict(model, x, mode="eval", key=None):
        return Out(logits, torch.zeros(1, 2), {})

    adapter = KNNPer(k=k, sigma=2.0, lam=0.25, variant=variant)
    model = knn_model(points, labels, 3)
    got = adapter.step(t, predict, model, adapter.init(t, model), torch.zeros(1), KEY)[0].exp()[0]
    distance = np.array([1.0, 5.0, 10.0])
    weight = np.exp(-distance / 2) if variant == "paper" else np.exp(-(distance**2) / (2 * 2))
    weight[voters:] = 0
    vote = np.zeros(5)
    for w, label in zip(weight / weight.sum(), labels, strict=True):
        vote[label] += w
    own = np.exp(logits[0].numpy()) / np.exp(logits[0].numpy()).sum()
    np.testing.assert_allclose(got, 0.25 * vote + 0.75 * own, atol=1e-6)
    empty = knn_model([], [], 0)
    alone = adapter.step(t, predict, empty, adapter.init(t, empty), torch.zeros(1), KEY)[0].exp()[0]
    np.testing.assert_allclose(alone, own, atol=1e-6)


def noted(away, votes, y, logits, n):
    asked = {"away": torch.tensor(away), "votes": torch.tensor(votes), "y": torch.tensor(y), "logits": logits}
    return {"memory": {"z": torch.zeros(4, 2), "n": torch.tensor(n), "asked": asked}}


def test_the_weight_of_few_neighbours_is_tuned_on_those_that_are_there():
    """Two examples: each has one other. What stands in the noted places beyond it must not vote."""
    t = task("cnn-plain")
    wrong = torch.tensor([[0.0, 3.0, 0.0, 0.0, 0.0]] * 2)
    away, votes = [[1.0, 0.0], [1.0, 0.0]], [[0, 1], [0, 1]]
    model = noted(away, votes, [0, 0], wrong, 2)
    p = float(np.exp(3) / (np.exp(3) + 4))
    rest = (1 - p) / 4
    # the other is right: it wins once lam + (1 - lam) rest exceeds (1 - lam) p
    least = (p - rest) / (1 + p - rest)
    got = float(KNNPer(k=2, grid=101).init(t, model)["lam"])
    assert got == pytest.approx(np.ceil(100 * least) / 100)
    lone = noted(away, votes, [0, 0], wrong, 1)
    assert float(KNNPer(k=2).init(t, lone)["lam"]) == 0.0
    coarse = float(KNNPer(k=1, grid=3).init(t, model)["lam"])
    assert coarse == 0.5


@pytest.mark.parametrize("change", [{}, {"steps": 2}, {"renorm": 0.9}, {"balance": 0.9}])
def test_an_answer_of_tent_without_its_step_is_that_of_the_step(change):
    t = task("cnn-batch")
    model, x, adapter = {"vars": t.init(KEY)}, images(8)[0], Tent(opt=SGD(lr=0.5), **change)

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    state = adapter.init(t, model)
    for _ in range(2):  # the second time with parameters that differ from the model's own
        logits, new = adapter.step(t, predict, model, state, x, KEY)
        torch.testing.assert_close(adapter.answer(t, predict, model, state, x, KEY), logits)
        assert gap(new["params"], state["params"]) > 0
        state = new
