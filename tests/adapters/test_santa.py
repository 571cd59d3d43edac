"""SANTA by value: both parts of its loss and two steps, in numpy, on a linear model."""

import numpy as np
import pytest
import torch

from acclimate.adapters import SANTA
from acclimate.core import SGD, rng
from by_hand import TASK, Halved, W, X, close, images, model, predict, slope, softmax

PROTOTYPES = np.array([[2.0, 0.1, 0.4], [5.0, 5.0, 5.0], [0.3, 0.2, 1.5]])
MEANS = {"prototypes": torch.tensor(PROTOTYPES), "counts": torch.tensor([4.0, 0.0, 2.0], dtype=torch.float64)}
BASE = SANTA(params="all", opt=SGD(lr=0.2), anchor=0.7, align=0.4, temperature=0.5, project=None, views=Halved())


def anchored(z, seen, source):
    logs = source - np.log(np.exp(source).sum(-1, keepdims=True))
    return -((softmax(z) + softmax(seen)) * logs).sum(-1).mean()


def contrasted(views, temperature):
    """The mean over all anchors of what separates an anchor's two other views from everything but itself."""
    z = np.concatenate(views)
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    n, scores = len(views[0]), z @ z.T / temperature
    total = 0.0
    for i in range(len(z)):
        others = [k for k in range(len(z)) if k != i]
        norm = np.log(np.exp(scores[i, others]).sum())
        total -= np.mean([scores[i, k] - norm for k in others if k % n == i % n])
    return total / len(z)


def nearest(z):
    """The prototype of greatest cosine; that of class 1 would often be it, and the client has none."""
    known = [0, 2]
    alike = [(z @ PROTOTYPES[c]) / np.linalg.norm(z, axis=-1) / np.linalg.norm(PROTOTYPES[c]) for c in known]
    return PROTOTYPES[np.array(known)[np.argmax(alike, 0)]]


def loss_of(x, w, nets=None, anchor=0.7, align=0.4):
    z, seen = x @ w, 0.5 * x @ w
    views = [nearest(x @ w), z, seen]
    if nets is not None:
        (a, b), (c, d) = nets
        views = [np.maximum(v @ a.T + b, 0) @ c.T + d for v in views]
    return anchor * anchored(z, seen, x @ W) + align * contrasted(views, 0.5)


def test_two_steps_by_hand():
    start, w = model(means=MEANS), W
    state = BASE.init(TASK, start)
    for x in X:
        logits, state = BASE.step(TASK, predict, start, state, images(x), rng.key(0))
        close(logits, x @ w)
        w = w - 0.2 * slope(lambda w, x=x: loss_of(x, w), w)
        close(state["params"]["model"]["w"], w, 1e-6)


def test_the_projector_is_tuned_along():
    adapter, start = SANTA(**{**vars(BASE), "project": 2, "seed": 3}), model(means=MEANS)
    state = adapter.init(TASK, start)
    state = {**state, "params": {k: _double(v) for k, v in state["params"].items()}}
    nets = [[state["params"]["projector"][i][k].numpy() for k in ("weight", "bias")] for i in ("0", "1")]
    assert nets[0][0].shape == (2, 3) and nets[1][0].shape == (2, 2)
    _, new = adapter.step(TASK, predict, start, state, images(X[0]), rng.key(0))
    close(new["params"]["model"]["w"], W - 0.2 * slope(lambda w: loss_of(X[0], w, nets), W), 1e-5)
    first = nets[0][0]
    moved = first - 0.2 * slope(lambda a: loss_of(X[0], W, [[a, nets[0][1]], nets[1]]), first)
    close(new["params"]["projector"]["0"]["weight"], moved, 1e-5)


def _double(part):
    return {k: _double(v) if isinstance(v, dict) else v.double() for k, v in part.items()}


def test_a_client_without_examples_is_only_anchored():
    nobody = {**MEANS, "counts": torch.zeros(3, dtype=torch.float64)}
    alone = SANTA(**{**vars(BASE), "align": 0.0})
    ways = []
    for adapter, start in ((BASE, model(means=nobody)), (alone, model())):
        _, state = adapter.step(TASK, predict, start, adapter.init(TASK, start), images(X[0]), rng.key(0))
        ways.append(state["params"]["model"]["w"])
    close(ways[0], ways[1].numpy())
    close(ways[1], W - 0.2 * slope(lambda w: loss_of(X[0], w, align=0.0), W), 1e-6)


def test_refusals_and_bad_fields():
    flat = type(TASK)(**{**vars(TASK), "shape": (5,)})
    assert "set params='all' or the model's norm" in SANTA().refusal(TASK, model(means=MEANS))
    assert "SANTA needs images to take views of" in BASE.refusal(flat, model(means=MEANS))
    assert BASE.refusal(TASK, model()) == (
        "SANTA needs means in the deployed model, which has only vars; personalise with ClassMeans (personal=means), "
        "or set align=0"
    )
    assert SANTA(params="all", align=0.0).refusal(TASK, model()) is None
    with pytest.raises(ValueError, match="temperature=0"):
        SANTA(temperature=0.0)
