"""Instance-aware batch norm by hand, and what takes the place of batch norm."""

from dataclasses import dataclass

import numpy as np
import pytest
import torch
from torch.func import grad, vmap
from torch.utils._python_dispatch import TorchDispatchMode

from acclimate.core import Blend, Normaliser, Task, rng
from acclimate.core.nn import kernels
from acclimate.core.nn.iabn import InstanceAwareBatchNorm
from acclimate.core.nn.layers import purify
from acclimate.core.nn.modules import normalising
from acclimate.models import CNN, MLP, ResNet20
from acclimate.ops.memory_norms import CountedNorm
from support import CLASSES, gap, images

SHAPE = (3, 10, 10)


def by_hand(x, mean, var, weight, bias, k=4.0, eps=1e-5):
    """Every sample and channel by itself, in float64."""
    x, size, out = x.astype(np.float64), x[0, 0].size, np.zeros(x.shape)
    for b in range(x.shape[0]):
        for c in range(x.shape[1]):
            own = x[b, c]
            away, wide = own.mean() - mean[c], own.var(ddof=1) - var[c]
            error, error_of_var = np.sqrt((var[c] + eps) / size), (var[c] + eps) * np.sqrt(2 / (size - 1))
            m = mean[c] + np.sign(away) * max(abs(away) - k * error, 0)
            v = max(var[c] + np.sign(wide) * max(abs(wide) - k * error_of_var, 0), 0)
            out[b, c] = (own - m) / np.sqrt(v + eps) * weight[c] + bias[c]
    return out


def layer_and_input():
    g = torch.Generator().manual_seed(3)
    x = torch.randn(6, 4, 9, 8, generator=g)
    x[1] *= 9.0
    x[2] += 6.0
    x[3] *= 0.01
    layer = InstanceAwareBatchNorm(4)
    with torch.no_grad():
        layer.weight.copy_(torch.rand(4, generator=g) + 0.5)
        layer.bias.copy_(torch.randn(4, generator=g))
        layer.running_mean.copy_(torch.randn(4, generator=g) * 0.1)
        layer.running_var.copy_(torch.rand(4, generator=g) + 0.5)
    return layer, x


def as_batch_norm(layer, x):
    mean, var = layer.running_mean, layer.running_var
    return torch.nn.functional.batch_norm(x, mean, var, layer.weight, layer.bias).detach()


def test_statistics_are_corrected_where_a_sample_is_unlike_them():
    layer, x = layer_and_input()
    weight, bias = layer.weight.detach().numpy(), layer.bias.detach().numpy()
    mean, var = layer.running_mean.numpy().copy(), layer.running_var.numpy().copy()
    got = layer.eval()(x).detach()
    np.testing.assert_allclose(got, by_hand(x.numpy(), mean, var, weight, bias), rtol=1e-4, atol=1e-4)
    plain = as_batch_norm(layer, x)
    like, unlike = (got - plain).abs().amax((1, 2, 3))[[0, 4, 5]], (got - plain).abs().amax((1, 2, 3))[[1, 2, 3]]
    assert float(like.max()) < 1e-4 and float(unlike.min()) > 0.01  # training-like samples are normalised as before
    data = x.numpy()
    own = data.mean((0, 2, 3)), data.var((0, 2, 3), ddof=1)
    trained = layer.train()(x)
    np.testing.assert_allclose(trained.detach(), by_hand(data, *own, weight, bias), rtol=1e-4, atol=1e-4)
    np.testing.assert_allclose(layer.running_mean, 0.9 * mean + 0.1 * own[0], rtol=1e-5)
    np.testing.assert_allclose(layer.running_var, 0.9 * var + 0.1 * own[1], rtol=1e-5)


def test_a_map_of_one_value_is_normalised_as_by_batch_norm():
    layer, x = layer_and_input()
    one = x[:, :, :1, :1]
    plain = as_batch_norm(layer, one)
    torch.testing.assert_close(layer.eval()(one).detach(), plain)


@pytest.mark.parametrize("model", [CNN(widths=(3, 4), hidden=8, kernel=3, norm="iabn"), ResNet20("iabn", width=0.25)])
def test_models_train_with_it_alone_and_side_by_side(model):
    t = Task(model, SHAPE, CLASSES)
    x, y = images(12)
    assert t.has_iabn and t.has_batch_norm and t.norm

    def loss(p, x, y):
        return t.loss({**t.init(rng.key(0)), "params": p}, {"x": x, "y": y}, rng.key(1))[0]

    params = t.init(rng.key(0))["params"]
    both = vmap(grad(loss), in_dims=(None, 0, 0))(params, x.view(2, 6, *SHAPE), y.view(2, 6))
    alone = grad(loss)(params, x[6:], y[6:])
    assert max(float(g.abs().max()) for g in alone.values()) > 0
    assert gap({k: v[1] for k, v in both.items()}, alone) < 1e-4
    assert t.apply(t.init(rng.key(0)), x, Blend(8.0)).logits.isfinite().all()


def test_it_needs_feature_maps():
    with pytest.raises(
        ValueError, match="norm='iabn' corrects feature maps, and this model has none; use norm='batch'"
    ):
        MLP(norm="iabn").build((4,), 3)


def test_one_value_has_no_statistics():
    t = Task(MLP(hidden=(4,), norm="batch"), (3,), 2)
    v = t.init(rng.key(0))
    assert t.apply(v, torch.ones(1, 3)).logits.isfinite().all()
    with pytest.raises(ValueError, match=r"shape \(1, 4\) has one: give it batches of at least 2 samples"):
        t.apply(v, torch.ones(1, 3), "adapt")


@dataclass(frozen=True)
class Shifting(Normaliser):
    """Normalises as in eval mode, and moves the statistics for the next time."""

    seen: list

    def normalise(self, layer, input):
        self.seen.append(layer)
        layer.running_mean = layer.running_mean + 2.0
        return layer.normalised(input, layer.running_mean - 2.0, layer.running_var)


def test_a_normaliser_takes_the_place_of_batch_norm_and_its_statistics_come_back():
    t = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm="batch"), SHAPE, CLASSES)
    v, x, way = t.init(rng.key(0)), images(5)[0], Shifting([])
    out = t.apply(v, x, way)
    torch.testing.assert_close(out.logits, t.apply(v, x).logits)
    assert [layer.num_features for layer in way.seen] == [3, 4]
    means = [n for n in v["buffers"] if n.endswith("mean")]
    assert len(means) == 2 and all(torch.equal(out.buffers[n], v["buffers"][n] + 2.0) for n in means)
    t.apply(v, x, "adapt")
    assert len(way.seen) == 2  # it is gone


@pytest.mark.parametrize("norm", ["batch", "iabn"])
@pytest.mark.parametrize("dtype", [None, torch.bfloat16])
def test_still_answers_as_adapt_does_and_leaves_the_running_statistics(norm, dtype):
    task = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm=norm), SHAPE, CLASSES, dtype=dtype)
    vars, x = task.init(rng.key(0)), images(6)[0]
    adapted, still = (task.apply(vars, x, mode) for mode in ("adapt", "still"))
    assert torch.equal(adapted.logits, still.logits)
    assert all(torch.equal(b, vars["buffers"][k]) for k, b in still.buffers.items())
    assert not all(torch.equal(b, vars["buffers"][k]) for k, b in adapted.buffers.items())


@pytest.mark.parametrize("norm", ["batch", "iabn"])
def test_running_statistics_that_follow_a_batch_are_not_rounded_to_the_precision_of_the_passes(norm):
    """A batch's variance, taken back from what a pass adds to the running one: in bfloat16 it came out negative."""
    model, x = CNN(widths=(3, 4), hidden=8, kernel=3, norm=norm), images(16)[0]
    found = []
    for dtype in (None, torch.bfloat16):
        task = Task(model, SHAPE, CLASSES, dtype=dtype)
        vars = task.init(rng.key(0))
        new = task.apply(vars, x, "adapt").buffers
        found.append({k: old + (new[k] - old) / 0.1 for k, old in vars["buffers"].items()})
    exact, low = found
    assert all(bool((v > 0).all()) for k, v in low.items() if k.endswith("var"))
    for name, value in exact.items():
        torch.testing.assert_close(low[name], value, rtol=0.05, atol=0.01)


def test_samples_that_do_not_count_change_nothing_for_clients_side_by_side():
    """With kernels (TRITON_INTERPRET=1 or a CUDA device) and without: values and gradients are those of the others."""
    layer, x = torch.nn.BatchNorm2d(4), layer_and_input()[1]
    purify(torch.nn.ModuleList([layer]))
    x, way = x.view(2, 3, 4, 9, 8), torch.randn(3, 4, 9, 8, generator=torch.Generator().manual_seed(0))
    weight, bias = torch.rand(2, 4, generator=torch.Generator().manual_seed(1)) + 0.5, torch.zeros(2, 4)
    counts = torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]])

    def loss(own, x, counts, way):
        with normalising(layer, CountedNorm(counts)):
            out = torch.func.functional_call(layer, own, (x,))
        return (out.sin() * way * counts.view(-1, 1, 1, 1)).sum()

    own = {"weight": weight, "bias": bias}
    found = vmap(grad(loss), in_dims=(0, 0, 0, None))(own, x, counts, way)
    for c in range(2):
        real = counts[c].bool()
        alone = grad(loss)({n: p[c] for n, p in own.items()}, x[c][real], counts[c][real], way[real])
        for name in own:
            torch.testing.assert_close(found[name][c], alone[name], rtol=1e-4, atol=1e-4)
    assert float(found["weight"].abs().min()) > 1e-3


@pytest.mark.skipif(not kernels.INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")
def test_counted_samples_are_normalised_by_kernels_alone():
    """On a GPU a pass over feature maps is what counts: torch's own operations make none."""
    layer = torch.nn.BatchNorm2d(4)
    purify(torch.nn.ModuleList([layer]))
    x, counts, seen = torch.randn(2, 3, 4, 9, 8), torch.tensor([[1.0, 1.0, 0.0], [1.0, 0.0, 1.0]]), []
    own = {"weight": torch.ones(2, 4), "bias": torch.zeros(2, 4)}

    class Passes(TorchDispatchMode):
        def __torch_dispatch__(self, func, types, args=(), kwargs=None):
            large = any(isinstance(a, torch.Tensor) and a.numel() == x.numel() for a in args)
            seen.extend([func._schema.name.removeprefix("aten::")] if large else [])
            return func(*args, **(kwargs or {}))

    def loss(own, x, counts):
        with normalising(layer, CountedNorm(counts)):
            return torch.func.functional_call(layer, own, (x,)).sum()

    with Passes():
        vmap(grad(loss, argnums=(0, 1)))(own, x, counts)
    assert [n for n in seen if n in ("mul", "add", "sub", "div", "pow", "where", "sum", "mean")] == ["sum"], seen
