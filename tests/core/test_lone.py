"""Layers of a client that is alone on x86: torch's own numbers, the order of weights, images that are scaled once."""

import copy

import pytest
import torch
from torch import nn
from torch.func import vmap

from acclimate.core import Task, rng, tree
from acclimate.core.agenda import arranged, plain, scaled
from acclimate.core.local import Work, train
from acclimate.core.nn import lone, many, products
from acclimate.core.nn.layers import purify
from acclimate.core.nn.modules import ties
from acclimate.core.optim import SGD
from acclimate.ops.augment import FlipCrop
from acclimate.ops.unlabelled import tuned_on_views
from support import client_data, equal, shards, task

CHAINS = {
    "pooling, then ReLU": (nn.Conv2d(3, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
    "ReLU, then pooling": (nn.Conv2d(3, 5, 3), nn.ReLU(), nn.MaxPool2d(2)),
    "pooling alone, steps of two": (nn.Conv2d(3, 5, 3, stride=2), nn.MaxPool2d(2)),
    "no bias": (nn.Conv2d(3, 5, 3, bias=False), nn.MaxPool2d(2), nn.ReLU()),
    "no pooling": (nn.Conv2d(3, 5, 3), nn.ReLU()),
}


@pytest.fixture(autouse=True)
def on_x86(monkeypatch):
    monkeypatch.setattr(products, "NATIVE", True)


def chain(name, dtype=torch.float64):
    """Layers as ours and as torch's own."""
    plain = nn.Sequential(*copy.deepcopy(CHAINS[name])).to(dtype)
    ours = copy.deepcopy(plain)
    purify(ours)
    return ours, plain


def inputs(dtype=torch.float64):
    return torch.randn(4, 3, 10, 10, dtype=dtype, generator=torch.Generator().manual_seed(1))


@pytest.mark.parametrize("name", CHAINS)
def test_values_and_gradients_of_two_orders_are_those_of_the_layers(name):
    found = []
    for net in chain(name):
        given = [inputs().requires_grad_(), *net.parameters()]
        y = net(given[0])
        first = torch.autograd.grad(y.sin().sum(), given, create_graph=True)
        found.append((y, *first, *torch.autograd.grad(sum(g.cos().sum() for g in first), given)))
    for ours, theirs in zip(*found, strict=True):
        torch.testing.assert_close(ours, theirs)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_a_bias_after_the_pooling_gives_the_same_bits(dtype):
    ours, _ = chain("pooling, then ReLU", dtype)
    with torch.no_grad():
        whole = ours(inputs(dtype))
    pooled = ours(inputs(dtype))
    assert torch.equal(pooled, whole)
    added = pooled.grad_fn.next_functions[0][0]
    assert added.name() == "AddBackward0"
    assert "MaxPool2D" in added.next_functions[0][0].name()


@pytest.mark.parametrize("why", ["ARM", "off", "frozen", "mapped", "hooked"])
def test_layers_run_one_after_the_other_elsewhere(why, monkeypatch):
    seen = []
    monkeypatch.setattr(lone, "pooled", lambda *a: seen.append(a))
    ours, theirs = chain("pooling, then ReLU")
    x = inputs()
    ours(x)
    assert len(seen) == 1
    monkeypatch.undo()
    monkeypatch.setattr(products, "NATIVE", why != "ARM")
    monkeypatch.setattr(lone, "ALONE", why != "off")
    if why == "frozen":
        ours.requires_grad_(False)
    if why == "hooked":
        ours[1].register_forward_hook(lambda *a: seen.append("hook"))
    y = vmap(ours)(x[None])[0] if why == "mapped" else ours(x)
    torch.testing.assert_close(y, theirs(x))
    assert y.grad_fn is None or "Add" not in str(y.grad_fn.next_functions)
    assert seen[1:] == (["hook"] if why == "hooked" else [])


def test_an_image_that_is_too_small_to_pool_is_refused_as_torch_refuses_it():
    ours, theirs = chain("pooling, then ReLU")
    small = inputs()[..., :1, :1]
    for net in (ours, theirs):
        with pytest.raises(RuntimeError, match="too small"):
            net(small)


def test_weights_lie_as_images_do_while_a_client_trains_alone():
    t, own, met = task("cnn-plain"), client_data(shards(), 0), []
    v = t.init(rng.key(0))

    def loss(vars, batch, key):
        met.append([p.is_contiguous(memory_format=lone.ORDER) for p in vars["params"].values() if p.dim() == 4])
        return t.loss(vars, batch, key)

    new = train(loss, v, own, SGD(lr=0.1), Work(epochs=1, batch=8), rng.key(1))
    assert len(met) > 1 and all(map(all, met))
    assert all(p.is_contiguous() for p in tree.leaves(new))
    assert any(not p.is_contiguous() for p in tree.leaves(arranged(v["params"])))
    assert equal(plain(arranged(v["params"])), v["params"])


def test_weights_lie_as_images_do_while_they_are_tuned_on_views():
    t, met = task("cnn-plain"), []

    def logits(params, x):
        met.append([p.is_contiguous(memory_format=lone.ORDER) for p in params.values() if p.dim() == 4])
        return t.apply({"params": params, "buffers": {}}, x).logits

    seen = torch.rand(2, 3, *t.shape)
    tuned_on_views(logits, t.init(rng.key(0))["params"], seen, SGD(lr=0.1))
    assert len(met) == 2 and all(map(all, met))


@pytest.mark.parametrize("on", [True, False])
def test_training_ends_with_the_same_bits_where_images_are_scaled_once(on, monkeypatch):
    t, own, met = task("cnn-plain"), client_data(shards(), 0), []
    opt, work, v = SGD(lr=0.1), Work(epochs=2, batch=8), t.init(rng.key(0))
    true = train(lambda *a: t.loss(*a), v, own, opt, work, rng.key(1))  # of another loss nobody knows what it reads
    run = Task.normalise
    monkeypatch.setattr(Task, "normalise", lambda self, x: met.append(x.dtype) or run(self, x))
    monkeypatch.setattr(lone, "ALONE", on)
    mine = train(t.loss, v, own, opt, work, rng.key(1))
    steps = work.steps(int(own["n"]))
    assert met == ([torch.uint8, *[torch.float32] * steps] if on else [torch.uint8] * steps)
    if on:
        assert equal(mine, true)


def test_images_are_scaled_once_only_where_that_changes_nothing():
    t, own = task("cnn-plain"), client_data(shards(), 0)
    n = int(own["n"])
    every, few = torch.zeros(n, 1, dtype=torch.int64), torch.zeros(n - 1, 1, dtype=torch.int64)
    loss, data = scaled(t.loss, own, every)
    assert torch.equal(data["x"], t.normalise(own["x"][own["rows"]])) and data["x"].stride(1) == 1
    assert torch.equal(data["y"], own["y"][own["rows"]]) and data["rows"].tolist() == list(range(n))
    assert loss.__self__ is not t and loss.__self__.mean == () and t.mean
    views = Task(t.model, t.shape, t.num_classes, t.mean, t.std, FlipCrop())
    floats = {**own, "x": own["x"] / 255}
    for given in ((t.loss, own, few), (views.loss, own, every), (t.loss, floats, every), (t.apply, own, every)):
        assert scaled(*given) == given[:2]


def test_a_client_with_many_images_keeps_them_as_bytes(monkeypatch):
    t, own = task("cnn-plain"), client_data(shards(), 0)
    every, numbers = torch.zeros_like(own["rows"])[:, None], len(own["rows"]) * own["x"][0].numel()
    for limit in (numbers, numbers - 1):
        monkeypatch.setattr("acclimate.core.agenda.SCALED", limit)
        assert (scaled(t.loss, own, every)[1] is own) is (limit < numbers)


def test_sums_of_a_client_alone_are_those_of_each_leaf():
    g = torch.Generator().manual_seed(0)
    a, b = ({"w": torch.randn(5, 3, generator=g), "b": torch.randn(7, generator=g)} for _ in range(2))
    assert equal(many.add(a, b, -0.3), {k: torch.add(a[k], b[k], alpha=-0.3) for k in a})


def test_a_module_says_whether_layers_share_a_weight():
    apart, same = nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3)), nn.Sequential(nn.Linear(3, 3), nn.Linear(3, 3))
    same[1].weight = same[0].weight
    assert not ties(apart) and ties(same)


def test_layers_that_share_a_weight_meet_one_value_in_a_pass():
    net = nn.Sequential(nn.Flatten(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 12), nn.ReLU(), nn.Linear(12, 4))
    net[3].weight = net[1].weight
    t, x = Task(net, (3, 2, 2), 4), torch.rand(5, 3, 2, 2)
    v = t.init(rng.key(0))
    moved = {**v, "params": tree.scale(v["params"], 1.5)}
    torch.testing.assert_close(t.apply(moved, x).logits, t.module(moved)(x)[1])
