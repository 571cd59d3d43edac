"""SHOT by value: a linear model's pseudo-labels, loss and steps against numpy and plain autograd."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acclimate.adapters.shot import SHOT, information, pseudo_labels
from acclimate.core import SGD, Out, rng
from by_hand import softmax

TASK = SimpleNamespace(body=frozenset({"w"}), num_classes=4)


def labels_by_hand(features, logits, real):
    """Eq. 4 to 6 as loops; a class that no real sample was given has no centroid."""

    def nearest(member):
        centroids = {
            k: sum(member[n, k] * features[n] for n in real) / sum(member[n, k] for n in real)
            for k in range(member.shape[1])
            if sum(member[n, k] for n in real) > 0
        }
        return [
            max(centroids, key=lambda k, f=f: f @ centroids[k] / np.linalg.norm(f) / np.linalg.norm(centroids[k]))
            for f in features
        ]

    return nearest(np.eye(logits.shape[1])[nearest(softmax(logits))])


def test_pseudo_labels_equal_a_loop():
    """Six real samples of eight classes, so that some class has no centroid in the second pass."""
    for seed in range(6):
        draw = np.random.default_rng(seed)
        features, logits = draw.normal(size=(7, 3)), 3 * draw.normal(size=(7, 8))
        ours = pseudo_labels(torch.from_numpy(features), torch.from_numpy(logits), torch.arange(7) < 6)
        assert ours.tolist() == labels_by_hand(features, logits, range(6))


def test_information_is_the_mean_entropy_less_that_of_the_mean():
    logits = 3 * np.random.default_rng(0).normal(size=(3, 4))
    p = softmax(logits)
    mean = p.mean(0)
    expected = -(p * np.log(p)).sum(-1).mean() + (mean * np.log(mean)).sum()
    assert float(information(torch.from_numpy(logits))) == pytest.approx(expected, rel=1e-9)
    assert abs(expected) > 0.1


def test_every_epoch_labels_anew_and_passes_over_the_set_once():
    """Two epochs in batches of the whole set: two steps of plain SGD on `w`, while the head `h` stays."""
    draw = np.random.default_rng(1)
    x, w, h = (torch.from_numpy(draw.normal(size=s)) for s in ((6, 3), (3, 2), (2, 4)))
    h = 2 * h

    def predict(model, x, mode="eval", key=None):
        params = model["vars"]["params"]
        features = x @ params["w"]
        return Out(features @ params["h"], features, {})

    model = {"vars": {"params": {"w": w, "h": h}, "buffers": {}}}
    adapter = SHOT(opt=SGD(lr=0.5), epochs=2, batch=6, beta=0.7)
    real = torch.ones(6, dtype=torch.bool)
    got = adapter.prepare(TASK, predict, model, adapter.init(TASK, model), x, real, rng.key(0))["vars"]["params"]
    seen = []
    for _ in range(2):
        z = (x @ w).numpy()
        seen.append(labels_by_hand(z, z @ h.numpy(), range(6)))
        own = w.clone().requires_grad_()
        p = (x @ own @ h).softmax(-1)
        mean = p.mean(0)
        certain = -(p * p.log()).sum(-1).mean() + (mean * mean.log()).sum()
        (certain - 0.7 * p[torch.arange(6), seen[-1]].log().mean()).backward()
        w = w - 0.5 * own.grad
    torch.testing.assert_close(got["w"], w, rtol=1e-9, atol=1e-12)
    assert torch.equal(got["h"], h) and seen[0] != seen[1]
    answer, state = adapter.step(TASK, predict, model, {"vars": {"params": got, "buffers": {}}}, x, rng.key(1))
    torch.testing.assert_close(answer, x @ w @ h, rtol=1e-9, atol=1e-12)
    assert state["vars"]["params"] is got
