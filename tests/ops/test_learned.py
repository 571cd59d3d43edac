"""Learned losses, hypernetworks and rates per tensor, against plain numpy."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from torch.func import grad

from acclimate.core import Out, Work, rng, tree
from acclimate.core.optim import StepDecay
from acclimate.ops import atp, hyper, learned, nets
from support import gap, images, task

NET = {
    "0": {"weight": torch.tensor([[1.0, -2.0], [0.5, 1.0]]), "bias": torch.tensor([0.0, -1.0])},
    "1": {"weight": torch.tensor([[2.0, -3.0]]), "bias": torch.tensor([0.25])},
}
LOGITS = torch.tensor([[1.0, 0.0], [0.0, 2.0], [3.0, 1.0]])
# by hand: relu(W z + b) is (1, 0), (0, 1), (1, 1.5), so the scores are 2.25, -2.75, -2.25
SCORES = np.array([2.25, -2.75, -2.25])


def test_the_learned_loss_is_the_norm_of_the_scores():
    assert learned.scores(NET, LOGITS).tolist() == pytest.approx(SCORES.tolist())
    assert float(learned.learned_loss(NET, LOGITS)) == pytest.approx(np.sqrt((SCORES**2).sum()))
    real = torch.tensor([True, False, True])
    two = (SCORES[[0, 2]] ** 2).sum()
    assert float(learned.learned_loss(NET, LOGITS, real)) == pytest.approx(np.sqrt(two))
    batch = torch.tensor(8.0)
    assert float(learned.learned_loss(NET, LOGITS, real, batch)) == pytest.approx(np.sqrt(two * 8 / 2))
    assert float(learned.learned_loss(NET, LOGITS, batch=batch)) == pytest.approx(np.sqrt((SCORES**2).sum() * 8 / 3))
    one = learned.learned_loss(NET, LOGITS, torch.arange(3) == 1, batch)
    assert float(one) == pytest.approx(2.75 * np.sqrt(8))
    nobody = learned.learned_loss(NET, LOGITS, real & False, batch)
    assert float(nobody) == pytest.approx(1e-6)  # the root of TINY, and finite
    zero = tree.scale(NET, 0.0)
    assert bool(torch.isfinite(grad(lambda z: learned.learned_loss(zero, z))(LOGITS)).all())


def case(name="mlp-dropout"):
    t = task(name)
    vars = t.init(rng.key(0))
    net = nets.init(rng.key(1), (t.num_classes, 8, 1))
    return t, {"params": {"base": vars["params"], "net": net}, "buffers": vars["buffers"]}, images(6)[0], rng.key(2)


def stepped(t, both, x, key, lr, batch=None):
    """The base parameters after one step down the learned loss, by autograd of torch itself."""
    leaves = {k: p.clone().requires_grad_() for k, p in both["params"]["base"].items()}
    logits = t.apply({"params": leaves, "buffers": both["buffers"]}, x, "train", key).logits
    squares = nets.apply(both["params"]["net"], logits)[:, 0] ** 2
    total = squares.sum() if batch is None else squares.mean() * batch
    slopes = torch.autograd.grad((total + 1e-12).sqrt(), list(leaves.values()))
    return {k: (p - lr * g).detach() for (k, p), g in zip(leaves.items(), slopes, strict=True)}, logits.detach()


@pytest.mark.parametrize("order", ["first", "second"])
@pytest.mark.parametrize("batch", [None, 24])
def test_an_inner_step_leads_to_the_adapted_model(order, batch):
    t, both, x, key = case()
    logits, out = learned.adapted(t, both, x, key, 0.3, order, batch)
    params, before = stepped(t, both, x, key, 0.3, batch)
    want = t.apply({"params": params, "buffers": both["buffers"]}, x, "train", key)
    assert gap({"l": logits}, {"l": before}) < 1e-6
    assert gap({"l": out.logits, "b": out.buffers}, {"l": want.logits, "b": want.buffers}) < 1e-5
    assert gap({"l": out.logits}, {"l": logits}) > 1e-3


def test_one_sample_has_an_inner_step_too():
    t, both, x, key = case("cnn-plain")
    _, out = learned.adapted(t, both, x[:1], key, 0.3, "second", 24)
    params, _ = stepped(t, both, x[:1], key, 0.3, 24)
    assert gap({"l": out.logits}, {"l": t.apply({"params": params, "buffers": {}}, x[:1]).logits}) < 1e-5


def test_without_a_net_there_is_no_step():
    t, both, x, key = case()
    bare = {**both, "params": {"base": both["params"]["base"]}}
    logits, out = learned.adapted(t, bare, x, key, 0.3, "first")
    assert logits is out.logits
    assert gap({"l": logits}, {"l": learned.adapted(t, both, x, key, 0.3, "first")[0]}) < 1e-6


def test_what_a_gradient_goes_through_in_first_and_second_order():
    t, both, x, key = case()

    def slope(order, counts, which):
        def value(base):
            here, options = (
                {**both, "params": {**both["params"], "base": base}},
                {"base_counts": True} if counts else {},
            )
            logits, out = learned.adapted(t, here, x, key, 0.3, order, **options)
            return (logits if which == "logits" else out.logits).square().sum()

        return grad(value)(both["params"]["base"])

    zero = tree.zeros(both["params"]["base"])
    assert gap(slope("first", False, "logits"), zero) == 0  # a constant
    assert gap(slope("first", True, "logits"), slope("second", False, "logits")) < 1e-4
    assert gap(slope("second", False, "logits"), zero) > 1e-3
    moved, _ = stepped(t, both, x, key, 0.3)

    def after(params):
        return t.apply({"params": params, "buffers": both["buffers"]}, x, "train", key).logits.square().sum()

    first = slope("first", False, "out")
    assert gap(first, grad(after)(moved)) < 1e-3  # the step's gradient is a constant
    assert gap(slope("second", False, "out"), first) > 1e-2


def test_inner_settings_are_those_of_the_last_round():
    record = SimpleNamespace(inner_lr=0.4, inner_schedule=StepDecay(every=2, gamma=0.5), work=Work(batch=20))
    for rounds, rate in ((0, 0.4), (1, 0.4), (2, 0.4), (3, 0.2), (6, 0.1)):  # rounds count from 0, so the third is 2
        got = learned.inner_settings(record, torch.tensor(float(rounds)))
        assert {k: v.item() for k, v in got.items()} == pytest.approx({"lr": rate, "batch": 20})
        assert learned.last_of(torch.tensor(rounds)).item() == max(rounds - 1, 0)
    assert float(learned.inner_rate(record, torch.tensor(2))) == pytest.approx(0.2)


# a hypernetwork


def test_a_description_is_the_mean_over_real_samples_of_normalised_inputs():
    t = task("cnn-plain")
    assert hyper.inputs(t) == 300
    encoder, x = nets.init(rng.key(3), (300, 4, 2)), images(5)[0]
    flat = ((x.double() / 255 - 0.5) / 0.5).reshape(5, 300).numpy()
    w, v = encoder["0"], encoder["1"]
    hidden = np.maximum(flat @ w["weight"].numpy().T + w["bias"].numpy(), 0)
    each = hidden @ v["weight"].numpy().T + v["bias"].numpy()
    np.testing.assert_allclose(hyper.describe(encoder, t, x), each.mean(0), atol=1e-5)
    real = torch.tensor([True, False, True, True, False])
    np.testing.assert_allclose(hyper.describe(encoder, t, x, real), each[[0, 2, 3]].mean(0), atol=1e-5)


def made():
    g = torch.Generator().manual_seed(0)
    params = {"w": torch.randn(3, 2, generator=g), "b": torch.randn(4, generator=g)}
    return params, hyper.init(rng.key(0), params, 5, 6), torch.randn(7, 5, generator=g)


def test_a_hypernetwork_starts_near_the_models_initial_values():
    params, makers, _ = made()
    assert makers["trunk"]["weight"].shape == (6, 5)
    for i, (name, p) in enumerate(params.items()):
        head = makers["heads"][name]
        drawn = nets.layer(rng.fold(rng.key(0), "head", i), 6, p.numel())["weight"]
        torch.testing.assert_close(head["weight"], 0.1 * p.numpy().std() * drawn.reshape(*p.shape, 6))
        assert torch.equal(head["bias"], p) and head["bias"] is not p
    one = hyper.init(rng.key(0), {"s": torch.tensor([2.0])}, 5, 6)["heads"]["s"]
    assert not one["weight"].any()  # a single value has no spread


def test_parameters_of_a_description_and_the_pull_on_the_hypernetwork():
    params, makers, descriptions = made()
    d = descriptions[0].numpy()
    wide = np.maximum(makers["trunk"]["weight"].numpy() @ d + makers["trunk"]["bias"].numpy(), 0)
    got = hyper.generate(makers, descriptions[0])
    for name in params:
        head = makers["heads"][name]
        want = np.einsum("...h,h->...", head["weight"].numpy(), wide) + head["bias"].numpy()
        np.testing.assert_allclose(got[name], want, atol=1e-5)
    missed = tree.map(lambda p: torch.stack([(i + 1) * p for i in range(7)]), params)
    pulled = hyper.pull(makers, descriptions, missed)
    for name, p in params.items():  # the bias of a head gets the mean of what was missed
        torch.testing.assert_close(pulled["heads"][name]["bias"], 4.0 * p, rtol=1e-5, atol=1e-5)
    hidden = np.maximum(descriptions.numpy() @ makers["trunk"]["weight"].numpy().T + makers["trunk"]["bias"].numpy(), 0)
    want = np.einsum("nij,nh->ijh", missed["w"].numpy(), hidden) / 7
    np.testing.assert_allclose(pulled["heads"]["w"]["weight"], want, atol=1e-5)


# rates per tensor


def test_directions_are_the_entropys_gradient_and_the_way_to_the_batch():
    w, old = torch.tensor([[1.0, 0.0], [0.5, -1.0]]), {"a.running_mean": torch.tensor([3.0]), "b": torch.tensor([5.0])}
    met, modes = {"a.running_mean": torch.tensor([2.0]), "b": torch.tensor([1.0], requires_grad=True)}, []

    def predict(model, x, mode="eval", key=None):
        modes.append(mode)
        return Out(x @ model["vars"]["params"]["w"], x, met)

    model, x = {"vars": {"params": {"w": w}, "buffers": old}}, torch.tensor([[1.0, 2.0], [0.0, -1.0]])
    way = atp.directions(predict, model, x, {"a": 0.1})
    assert way["buffers"]["a.running_mean"].tolist() == pytest.approx([10.0])
    assert way["buffers"]["b"].tolist() == [4.0] and not way["buffers"]["b"].requires_grad
    z = x.double().numpy() @ w.double().numpy()
    p = np.exp(z) / np.exp(z).sum(-1, keepdims=True)
    h = -(p * np.log(p)).sum(-1, keepdims=True)
    np.testing.assert_allclose(way["params"]["w"], x.numpy().T @ (-p * (np.log(p) + h)) / 2, atol=1e-6)
    assert sorted(modes) == ["adapt", "eval"]
    none = {"vars": {"params": {"w": w}, "buffers": {}}}
    assert atp.directions(predict, none, x, {})["buffers"] == {} and modes.count("adapt") == 1


def test_slopes_by_statistics_are_those_of_finite_differences():
    t = task("cnn-batch")
    vars, (x, y), g = t.init(rng.key(0)), images(6), torch.Generator().manual_seed(1)
    vars = tree.map(lambda p: p.double() + torch.rand(p.shape, generator=g), vars)  # nothing is zero or one by chance
    x = x.double() / 255

    def loss(vars):
        return torch.nn.functional.cross_entropy(t.apply(vars, x).logits, y)

    by = atp.slopes(loss, vars, t.norm_eps)
    assert gap(by["params"], grad(lambda p: loss({**vars, "params": p}))(vars["params"])) == 0
    assert len(by["buffers"]) == 4
    for name, slope in by["buffers"].items():
        for i in range(2):
            ends = []
            for sign in (1, -1):
                moved = {**vars["buffers"], name: vars["buffers"][name].clone()}
                moved[name][i] += sign * 1e-5
                ends.append(float(loss({**vars, "buffers": moved})))
            assert float(slope[i]) == pytest.approx((ends[0] - ends[1]) / 2e-5, rel=1e-6)
            assert abs(float(slope[i])) > 1e-4


def test_layers_without_weights_keep_a_slope_of_zero_and_variances_stay_above_it():
    vars = {
        "params": {"w": torch.tensor(2.0)},
        "buffers": {"n.running_var": torch.tensor(1.0), "n.count": torch.tensor(4.0)},
    }
    by = atp.slopes(lambda v: v["params"]["w"] ** 2, vars, {})
    assert by["params"]["w"].item() == 4.0 and [b.item() for b in by["buffers"].values()] == [0.0, 0.0]
    rates, way = tree.map(lambda v: torch.tensor(0.5), vars), tree.map(lambda v: torch.tensor(10.0), vars)
    new = atp.moved(vars, rates, way)
    assert new["params"]["w"].item() == -3.0
    assert {k: b.item() for k, b in new["buffers"].items()} == {"n.running_var": 0.0, "n.count": -1.0}
