"""EATA by value: three batches of a linear model, whose weights, average and steps are written out here."""

import math
from types import SimpleNamespace

import torch

from acclimate.adapters.eata import EATA
from acclimate.core import SGD, Out, rng

TASK = SimpleNamespace(head_weight="w", num_classes=3)


def predict(model, x, mode="eval", key=None):
    assert mode == "still"  # the batch's statistics, and none that are kept
    return Out(x @ model["vars"]["params"]["w"], x, {})


def by_hand(x, w, start, fisher, velocity, average, adapter):
    """One step on one batch: logits, the weights of its samples, and what moved."""
    own = w.clone().requires_grad_()
    p = (x @ own).softmax(-1)
    uncertain = -(p * p.log()).sum(-1)
    weights = []
    for q, h in zip(p.detach(), uncertain.tolist(), strict=True):
        room = adapter.margin * math.log(3) - h
        near = float(q @ average / q.norm() / average.norm()) if float(average.sum()) else 0.0
        weights.append(math.exp(room) if room > 0 and near < adapter.redundancy else 0.0)
    counted = [i for i, weight in enumerate(weights) if weight > 0]
    if counted:
        loss = sum(weights[i] * uncertain[i] for i in counted) / len(counted)
        (loss + adapter.alpha * (fisher * (own - start) ** 2).sum()).backward()
        velocity = own.grad + adapter.opt.momentum * velocity
        now = sum(p[i].detach() for i in counted) / len(counted)
        average = adapter.keep * average + (1 - adapter.keep) * now if float(average.sum()) else now
        return x @ w, weights, w - adapter.opt.lr * velocity, velocity, average
    return x @ w, weights, w, velocity, average


def test_three_batches_by_hand():
    g = torch.Generator().manual_seed(3)
    start, fisher = (torch.rand(3, 3, generator=g, dtype=torch.float64) for _ in range(2))
    start = 3 * torch.eye(3, dtype=torch.float64) + start
    adapter = EATA(params="all", opt=SGD(lr=0.3, momentum=0.9), margin=0.6, redundancy=0.8, keep=0.7, alpha=0.5)
    model = {"vars": {"params": {"w": start}, "buffers": {}}, "fisher": {"w": fisher}}
    batches = torch.tensor(
        [
            [[2.0, 0.1, 0.0], [0.3, 0.3, 0.3], [1.5, 0.0, 0.1], [0.4, 0.5, 0.4]],
            [[2.0, 0.0, 0.0], [0.1, 2.0, 0.2], [0.2, 0.3, 0.3], [1.5, 0.0, 0.0]],  # one that counts
            [[0.0, 0.0, 2.0], [0.0, 0.1, 1.7], [2.0, 0.0, 0.0], [0.1, 0.1, 0.1]],
            [[0.1, 0.1, 0.1], [0.2, 0.2, 0.2], [0.0, 0.1, 0.1], [0.1, 0.0, 0.1]],  # none that counts
        ],
        dtype=torch.float64,
    )
    state = adapter.init(TASK, model)
    w, velocity, average = start, torch.zeros_like(start), torch.zeros(3, dtype=torch.float64)
    counts = []
    for x in batches:
        logits, state, told = adapter.trace(TASK, predict, model, state, x, rng.key(0))
        expected, weights, w, velocity, average = by_hand(x, w, start, fisher, velocity, average, adapter)
        close = {"rtol": 1e-9, "atol": 1e-12}
        torch.testing.assert_close(logits, expected, **close)
        torch.testing.assert_close(told["weight"], torch.tensor(weights, dtype=torch.float64), **close)
        torch.testing.assert_close(state["params"]["w"], w, **close)
        torch.testing.assert_close(state["average"], average, **close)
        counts.append(sum(weight > 0 for weight in weights))
    assert counts == [2, 1, 2, 0]


def test_without_margin_and_redundancy_every_sample_counts_as_one():
    """Two plain steps down the mean entropy on one batch; the average holds both."""
    w = torch.eye(3, dtype=torch.float64)
    adapter = EATA(params="all", opt=SGD(lr=0.5), margin=None, redundancy=None, alpha=0.0, keep=0.7, steps=2)
    model = {"vars": {"params": {"w": w}, "buffers": {}}}
    x = torch.tensor([[2.0, 0.0, 0.0], [0.0, 1.0, 0.5]], dtype=torch.float64)
    logits, state, told = adapter.trace(TASK, predict, model, adapter.init(TASK, model), x, rng.key(0))
    means = []
    for _ in range(2):
        own = w.clone().requires_grad_()
        p = (x @ own).softmax(-1)
        (-(p * p.log()).sum(-1).mean()).backward()
        before, w = w, w - 0.5 * own.grad
        means.append(p.detach().mean(0))
    close = {"rtol": 1e-9, "atol": 1e-12}
    torch.testing.assert_close(logits, x @ before, **close)
    torch.testing.assert_close(state["params"]["w"], w, **close)
    torch.testing.assert_close(state["average"], 0.7 * means[0] + 0.3 * means[1], **close)
    assert told["weight"].tolist() == [1.0, 1.0]
