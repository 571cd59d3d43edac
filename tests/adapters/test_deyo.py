"""DeYO by value: the patches of an image are all still there, and weights and steps are those of numpy."""

import math

import numpy as np
import pytest
import torch
from torch.func import vmap

from acclimate.adapters import DeYO
from acclimate.core import SGD, Out, rng, tree
from acclimate.ops.augment import shuffle_patches
from by_hand import TASK, W, close, entropy, model, slope, softmax

WIDE = type(TASK)(**{**vars(TASK), "shape": (1, 2, 2)})


def patches(image, side, tall, wide):
    rows, columns = range(0, side * tall, tall), range(0, side * wide, wide)
    return sorted(tuple(image[:, i : i + tall, j : j + wide].flatten().tolist()) for i in rows for j in columns)


@pytest.mark.parametrize(("height", "width", "side"), [(8, 8, 4), (8, 4, 2), (7, 11, 3)])
def test_shuffling_keeps_all_patches_and_the_rest_in_place(height, width, side):
    x = torch.arange(5 * 2 * height * width).reshape(5, 2, height, width)
    mixed, tall, wide = shuffle_patches(x, rng.key(1), side), height // side, width // side
    assert mixed.shape == x.shape and not torch.equal(mixed, x)
    for a, b in zip(x, mixed, strict=True):
        assert patches(a, side, tall, wide) == patches(b, side, tall, wide)
    assert torch.equal(mixed[..., side * tall :, :], x[..., side * tall :, :])
    assert torch.equal(mixed[..., side * wide :], x[..., side * wide :])
    moved = mixed - x
    assert any(not torch.equal(moved[0], other) for other in moved[1:])  # every image has an order of its own


def test_it_shuffles_the_same_under_vmap():
    x, keys = torch.rand(3, 4, 1, 8, 8), torch.stack([rng.key(i) for i in range(3)])
    together = vmap(lambda x, k: shuffle_patches(x, k, 4))(x, keys)
    assert torch.equal(together, torch.stack([shuffle_patches(a, k, 4) for a, k in zip(x, keys, strict=True)]))


def by_hand(z, without, adapter):
    p, q, unit = softmax(z), softmax(without), math.log(3)
    label = z.argmax(-1)
    plpd = np.array([p[i, c] - q[i, c] for i, c in enumerate(label)])
    h = entropy(z)
    counts = (h < adapter.margin * unit) & (plpd > adapter.least)
    return np.where(counts, np.exp(adapter.centre * unit - h) + np.exp(plpd), 0.0), plpd


def test_weights_by_hand():
    z = np.array([[4.0, 0.0, 0.0], [0.2, 0.1, 0.0], [0.0, 3.0, 0.0], [0.0, 0.0, 5.0]])
    without = np.array([[0.0, 1.0, 0.0], [-3.0, 1.0, 0.0], [0.0, 2.9, 0.0], [1.0, 0.0, 0.0]])
    adapter = DeYO()
    weight, plpd = adapter.weigh(torch.tensor(z), torch.tensor(without))
    wanted = by_hand(z, without, adapter)
    close(weight, wanted[0])
    close(plpd, wanted[1])
    assert [w > 0 for w in weight.tolist()] == [True, False, False, True]  # too unsure, and no shape in it


def test_both_thresholds_are_sharp():
    z, without = torch.tensor([[2.0, 0.0, 0.0]]), torch.tensor([[0.5, 0.0, 0.0]])
    share, least = float(entropy(z.numpy())[0]) / math.log(3), float(DeYO().weigh(z, without)[1][0])
    assert 0 < least < 1 and 0 < share < 1
    for margin, at, counts in ((1.001, 0.999, True), (0.999, 0.999, False), (1.001, 1.001, False)):
        adapter = DeYO(margin=margin * share, least=at * least)
        assert bool(adapter.weigh(z, without)[0] > 0) == counts


def pixels(model, x, mode="eval", key=None):
    """The class is where the light is, so that shuffled images have another."""
    assert mode == "still"  # the batch's statistics, and none that are kept
    z = 9 * x.flatten(1)[:, :3] @ model["vars"]["params"]["w"]
    return Out(z, z, {})


def test_two_steps_by_hand():
    g = np.random.default_rng(0)
    adapter = DeYO(params="all", opt=SGD(lr=0.3), patches=2, margin=0.6, least=0.05)
    start, w = model(), W
    state, counted = adapter.init(WIDE, start), []
    for t in range(3):
        x, key = g.random((6, 1, 2, 2)), rng.key(t)
        broken = shuffle_patches(torch.tensor(x), rng.fold(key, "patches", 0), 2).numpy()
        logits, state, told = adapter.trace(WIDE, pixels, start, state, torch.tensor(x), key)
        near, far = (9 * v.reshape(6, 4)[:, :3] for v in (x, broken))
        weight, plpd = by_hand(near @ w, far @ w, adapter)
        close(logits, near @ w, 1e-6)
        close(told["weight"], weight, 1e-5)
        close(told["plpd"], plpd, 1e-6)
        n = (weight > 0).sum()
        w = w - 0.3 * slope(lambda w, near=near, weight=weight, n=n: (weight * entropy(near @ w)).sum() / n, w)
        close(state["params"]["w"], w, 1e-5)
        counted.append(int(n))
    assert all(0 < n < 6 for n in counted)


def test_a_lone_sample_of_little_weight_takes_its_whole_step():
    """Below one, a weight still counts; and of one sample the mean is its own."""
    adapter = DeYO(params="all", opt=SGD(lr=0.3), patches=2, margin=1.5, centre=0.01, least=-1.0)
    start, x, found = model(), np.array([[[[0.02, 0.01], [0.01, 1.0]]]]), []
    for seed in range(12):
        key = rng.key(seed)
        broken = shuffle_patches(torch.tensor(x), rng.fold(key, "patches", 0), 2).numpy()
        near, far = (9 * v.reshape(1, 4)[:, :3] for v in (x, broken))
        weight, _ = by_hand(near @ W, far @ W, adapter)
        found.append(float(weight[0]))
        _, state = adapter.step(WIDE, pixels, start, adapter.init(WIDE, start), torch.tensor(x), key)
        moved = 0.3 * slope(lambda w, near=near, weight=weight: (weight * entropy(near @ w)).sum(), W)
        assert np.abs(moved).max() > 1e-4
        close(state["params"]["w"], W - moved, 1e-6)
    assert 0 < min(found) < 1


def test_no_step_where_no_sample_counts():
    """Nor does the momentum of a step before move anything."""
    first, adapter = (DeYO(params="all", opt=SGD(lr=0.1, momentum=0.9), patches=2, least=at) for at in (-1.0, 1.0))
    start, x = model(), torch.rand(4, 1, 2, 2, dtype=torch.float64)
    _, state = first.step(WIDE, pixels, start, first.init(WIDE, start), x, rng.key(0))
    assert not torch.equal(state["params"]["w"], start["vars"]["params"]["w"])
    _, new = adapter.step(WIDE, pixels, start, state, x, rng.key(0))
    assert all(torch.equal(a, b) for a, b in zip(tree.leaves(new), tree.leaves(state), strict=True))


def test_refusals_and_bad_fields():
    flat = type(TASK)(**{**vars(TASK), "shape": (5,)})
    assert "set params='all' or the model's norm" in DeYO().refusal(TASK, model())
    assert "DeYO needs images to cut into patches" in DeYO(params="all").refusal(flat, model())
    assert DeYO(params="all").refusal(WIDE, model()) == (
        "DeYO cuts sides into patches=4, and these inputs have shape (1, 2, 2): set fewer"
    )
    assert DeYO(params="all", patches=2).refusal(WIDE, model()) is None
    oblong = type(TASK)(**{**vars(TASK), "shape": (1, 9, 3)})  # the shorter side decides
    assert "these inputs have shape (1, 9, 3)" in DeYO(params="all").refusal(oblong, model())
    with pytest.raises(ValueError, match="patches=1"):
        DeYO(patches=1)
