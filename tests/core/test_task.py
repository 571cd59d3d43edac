import pickle

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from acclimate.core import rng
from acclimate.core.task import Blend, Task
from acclimate.models import CNN, MLP
from support import CLASSES, MODELS, equal, images, task


class Net(nn.Module):
    """A user's own module, with torch's own batch norm and dropout."""

    def __init__(self, num_classes=CLASSES):
        super().__init__()
        self.conv = nn.Conv2d(3, 4, 3)
        self.bn = nn.BatchNorm2d(4, momentum=0.3)
        self.drop = nn.Dropout2d(0.5)
        self.register_buffer("table", torch.arange(4))
        self.head = nn.Linear(4 * 64, num_classes)

    def forward(self, x):
        z = self.drop(self.bn(self.conv(x)).relu())[:, self.table].flatten(1)
        return z, self.head(z)


def test_batch_norm_equals_torch_in_output_statistics_and_gradient():
    net = Net()
    net.drop.p = 0.0
    t = Task(net, (3, 10, 10), CLASSES)
    v, (x, y) = t.init(rng.key(0)), images(12)
    x = x.float() / 255
    net.train()
    out = net(x)
    ours = t.apply(v, x, "train", rng.key(1))
    torch.testing.assert_close(ours.logits, out[1])
    torch.testing.assert_close(ours.buffers["bn.running_mean"], net.bn.running_mean)
    torch.testing.assert_close(ours.buffers["bn.running_var"], net.bn.running_var)
    F.cross_entropy(out[1], y).backward()
    g = grad(lambda p: F.cross_entropy(t.apply({**v, "params": p}, x, "train", rng.key(1)).logits, y))(v["params"])
    for name, p in net.named_parameters():
        torch.testing.assert_close(g[name], p.grad)
    net.eval()
    torch.testing.assert_close(t.apply({**v, "buffers": ours.buffers}, x).logits, net(x)[1])


def test_adapt_mode_uses_batch_statistics_and_no_dropout():
    t = Task(Net(), (3, 10, 10), CLASSES)
    v, (x, _) = t.init(rng.key(0)), images(12)
    adapted = t.apply(v, x, "adapt").logits
    assert torch.equal(adapted, t.apply(v, x, "adapt").logits)
    assert not torch.allclose(adapted, t.apply(v, x, "eval").logits, atol=1e-3)
    moved = {**v, "buffers": {k: b + 5 for k, b in v["buffers"].items()}}
    torch.testing.assert_close(t.apply(moved, x, "adapt").logits, adapted)


def test_blend_runs_from_running_to_batch_statistics():
    t = task("cnn-batch")
    v, (x, _) = t.init(rng.key(0)), images(12)
    torch.testing.assert_close(t.apply(v, x, Blend(1e9)).logits, t.apply(v, x, "eval").logits, rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(t.apply(v, x, Blend(1e-6)).logits, t.apply(v, x, "adapt").logits, rtol=1e-4, atol=1e-5)


def test_second_order_gradients_go_through_batch_norm():
    t = task("cnn-batch")
    v, (x, y) = t.init(rng.key(0)), images(12)

    def inner(p):
        return F.cross_entropy(t.apply({**v, "params": p}, x, "train").logits, y)

    def outer(p):
        g = grad(inner)(p)
        return inner({k: p[k] - 0.5 * g[k] for k in p})

    ours = grad(outer)(v["params"])
    twins = {k: p.clone().requires_grad_() for k, p in v["params"].items()}
    first = dict(zip(twins, torch.autograd.grad(inner(twins), list(twins.values()), create_graph=True), strict=True))
    theirs = torch.autograd.grad(inner({k: twins[k] - 0.5 * first[k] for k in twins}), list(twins.values()))
    for name, expected in zip(twins, theirs, strict=True):
        torch.testing.assert_close(ours[name], expected, rtol=1e-4, atol=1e-6)


def test_dropout_is_keyed_scaled_and_equal_under_vmap():
    t = task("mlp-dropout")
    v, (x, _) = t.init(rng.key(0)), images(40)
    keys = rng.fold(rng.key(1), torch.arange(3))
    alone = torch.stack([t.apply(v, x, "train", k).logits for k in keys])
    together = vmap(lambda k: t.apply(v, x, "train", k).logits)(keys)
    torch.testing.assert_close(alone, together)
    assert not torch.allclose(alone[0], alone[1])
    with pytest.raises(ValueError, match="has dropout: pass a key"):
        t.apply(v, x, "train")
    flat = Task(MLP(hidden=(4000,), dropout=0.5), (3, 10, 10), CLASSES)
    w = flat.init(rng.key(0))
    kept = flat.apply(w, x, "train", keys[0]).features / flat.apply(w, x, "eval").features.clamp_min(1e-9)
    shares = kept[flat.apply(w, x, "eval").features > 1e-3]
    assert set(shares.round(decimals=3).unique().tolist()) == {0.0, 2.0}
    assert float((shares > 1).float().mean()) == pytest.approx(0.5, abs=0.02)


def test_uint8_and_float_pixels_are_the_same_input():
    t, (x, _) = task(), images(4)
    v = t.init(rng.key(0))
    torch.testing.assert_close(t.apply(v, x).logits, t.apply(v, x.float() / 255).logits)
    plain = Task(MODELS["cnn-batch"], (3, 10, 10), CLASSES)
    torch.testing.assert_close(plain.apply(v, (x.float() / 255 - 0.5) / 0.5).logits, t.apply(v, x).logits)


def test_init_is_keyed_and_leaves_the_global_generator_alone():
    t = task()
    torch.manual_seed(0)
    expected = torch.rand(3)
    torch.manual_seed(0)
    a, b = t.init(rng.key(1)), t.init(rng.key(2))
    assert torch.equal(torch.rand(3), expected)
    assert equal(a, t.init(rng.key(1)))
    assert not equal(a, b)


def test_a_module_instance_starts_from_its_own_weights_and_pickles():
    net = Net()
    t = Task(net, (3, 10, 10), CLASSES)
    assert torch.equal(t.init(rng.key(5))["params"]["head.weight"], net.head.weight)
    copy, (x, _) = pickle.loads(pickle.dumps(t)), images(4)
    assert torch.equal(copy.apply(t.init(rng.key(0)), x).logits, t.apply(t.init(rng.key(0)), x).logits)


def test_roles_and_patterns():
    t = task("cnn-batch")
    assert t.select("head") == {"head.weight", "head.bias"}
    assert "body.1.running_mean" in t.select("norm")
    assert t.select("body") | t.select("head") == t.select("all")
    assert t.select(("body.0.*", "head")) == {"body.0.weight", "body.0.bias", "head.weight", "head.bias"}
    assert t.dim == 8
    with pytest.raises(ValueError, match=r"no parameter matches 'bodi\.\*'; allowed are head, norm"):
        t.select("bodi.*")
    with pytest.raises(ValueError, match="'norm' selects nothing"):
        task("cnn-plain").select("norm")
    with pytest.raises(ValueError, match="'body' selects nothing, because this model is a head alone.* model=mlp"):
        Task(nn.Linear(4, 2), (4,), 2).select("body")


@pytest.mark.parametrize(
    ("model", "says"),
    [
        (Net(num_classes=7), "its head 'head' has 7 outputs but the data has 5 classes; build it with 5"),
        (nn.Sequential(nn.Flatten()), "model Sequential calls no linear layer"),
        (CNN(kernel=9), "too small"),
    ],
)
def test_models_that_do_not_fit_are_refused(model, says):
    with pytest.raises(ValueError, match=says):
        Task(model, (3, 10, 10), CLASSES)


def test_an_activation_that_layers_share_is_no_stage():
    class Shared(nn.Module):
        def __init__(self):
            super().__init__()
            self.one, self.two, self.act = nn.Conv2d(3, 4, 3), nn.Conv2d(4, 4, 3), nn.ReLU()
            self.head = nn.Linear(4, 2)

        def forward(self, x):
            features = self.act(self.two(self.act(self.one(x)))).mean((2, 3))
            return features, self.head(features)

    assert Task(Shared(), (3, 8, 8), 2).stages == ("one", "two")
