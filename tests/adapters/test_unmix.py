"""UnMix-TNS by value: two batches through one layer in numpy, and one component, which is instance normalisation."""

import numpy as np
import pytest
import torch
from torch import nn

from acclimate.adapters import UnMixTNS
from acclimate.core import PureBatchNorm, Task, rng
from acclimate.methods import FedAvg
from acclimate.models import MLP
from acclimate.ops.statistics import Unmix, components, running_of
from by_hand import close, softmax
from support import SMALL, fitted, gap, shards, task


class Net(nn.Module):
    """A batch norm over maps and one over features."""

    def __init__(self, norm=nn.BatchNorm2d):
        super().__init__()
        self.conv, self.maps, self.flat = nn.Conv2d(3, 4, 3), norm(4), nn.BatchNorm1d(4)
        self.head = nn.Linear(4, 5)

    def forward(self, x):
        z = self.flat(self.maps(self.conv(x)).relu().square().mean((2, 3)))
        return z, self.head(z)


def filled(net):
    """Weights and statistics that are not those of a fresh layer."""
    g = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for values in (*net.parameters(), *(b for b in net.buffers() if b.is_floating_point())):
            values.copy_(torch.rand(values.shape, generator=g) + 0.2)
    return net


def live(net):
    made = Task(net, (3, 6, 6), 5)
    return made, {"vars": made.init(rng.key(0))}


def apply(made):
    return lambda model, x, mode="eval", key=None: made.apply(model["vars"], x, mode, key)


def test_one_component_is_instance_normalisation_and_features_keep_their_statistics():
    made, model = live(filled(Net()))
    other = filled(Net(lambda width: nn.InstanceNorm2d(width, affine=True)))
    kept = {k: v for k, v in model["vars"]["buffers"].items() if not k.startswith("maps.")}
    other.load_state_dict({**model["vars"]["params"], **kept}, strict=False)
    x, adapter = torch.rand(7, 3, 6, 6), UnMixTNS(components=1)
    state = adapter.init(made, model)
    for part in (x[:4], x[4:6], x[6:]):  # whatever the components have met before
        logits, state = adapter.step(made, apply(made), model, state, part, rng.key(0))
        torch.testing.assert_close(logits, other.eval()(part)[1], rtol=1e-4, atol=1e-5)


def by_hand(x, means, variances, weight, bias, eps, rate):
    """One batch [B, C, L]: the output, and where the components go."""
    m, v = x.mean(-1), x.var(-1)
    unit = [a / np.linalg.norm(a, axis=-1, keepdims=True) for a in (m, means)]
    share = softmax(unit[0] @ unit[1].T / 0.07)
    out = np.zeros_like(x)
    for b in range(len(x)):
        centres = [(1 - q) * mu + q * m[b] for q, mu in zip(share[b], means, strict=True)]
        spreads = [(1 - q) * var + q * v[b] for q, var in zip(share[b], variances, strict=True)]
        centre = np.mean(centres, 0)
        spread = np.mean(spreads, 0) + np.mean(np.square(centres), 0) - centre**2
        out[b] = (x[b] - centre[:, None]) / np.sqrt(spread[:, None] + eps) * weight[:, None] + bias[:, None]
    go = [
        np.mean([share[b][:, None] * (now[b] - old) for b in range(len(x))], 0)
        for now, old in ((m, means), (v, variances))
    ]
    return out, means + rate * go[0], variances + rate * go[1]


@pytest.mark.parametrize(("full", "rates"), [(64, [1 - 0.9 ** (3 / 64), 1 - 0.9 ** (2 / 64)]), (None, [0.1, 0.1])])
def test_two_batches_through_one_layer_by_hand(full, rates):
    g = np.random.default_rng(2)
    means, variances, (weight, bias) = g.normal(size=(3, 4)), g.random((3, 4)) + 0.2, g.normal(size=(2, 4))
    layer = PureBatchNorm(4, eps=1e-3).double()
    layer.weight.data, layer.bias.data = torch.tensor(weight), torch.tensor(bias)
    own = torch.full((1, 4), 7.0, dtype=torch.float64)
    layer.running_mean, layer.running_var = (torch.cat((own, torch.tensor(a))) for a in (means, variances))
    layer.normaliser = Unmix(full=full)
    for batch, rate in zip((g.normal(size=(3, 4, 6)), g.normal(size=(2, 4, 6)) + 1), rates, strict=True):
        out = layer(torch.tensor(batch).reshape(-1, 4, 2, 3))
        wanted, means, variances = by_hand(batch, means, variances, weight, bias, 1e-3, rate)
        close(out.flatten(2), wanted)
        close(layer.running_mean, np.concatenate([own, means]))
        close(layer.running_var, np.concatenate([own, variances]))


def test_components_start_around_the_training_statistics():
    running = {"n.running_mean": torch.tensor([1.0, -2.0]), "n.running_var": torch.tensor([4.0, 0.25])}
    start = components(running, 5, rng.key(3))
    draws = rng.normal(rng.fold(rng.key(3), "n.running_mean"), 5, 2).numpy()
    wanted = np.array([1.0, -2.0]) + np.sqrt(0.5 * 5 / 4) * np.array([2.0, 0.5]) * draws
    close(start["n.running_mean"], np.concatenate([[[1.0, -2.0]], wanted]), 1e-6)
    close(start["n.running_var"], np.concatenate([[[4.0, 0.25]], np.tile([2.0, 0.125], (5, 1))]), 1e-6)
    two = components(running, 2, rng.key(3))  # half of the variance is that of the two means
    assert two["n.running_var"].tolist() == [[4.0, 0.25], [2.0, 0.125], [2.0, 0.125]]
    alone = components(running, 1, rng.key(3))
    assert (
        alone["n.running_mean"].tolist() == [[1.0, -2.0]] * 2 and alone["n.running_var"].tolist() == [[4.0, 0.25]] * 2
    )


def test_the_adapter_keeps_components_and_leaves_the_model_alone():
    worker, _, state = fitted(FedAvg(work=SMALL), rounds=1)
    model, adapter, x = {"vars": state.server["vars"]}, UnMixTNS(), shards(seed=4).x
    start = adapter.init(worker.task, model)
    assert set(start["buffers"]) == set(running_of(worker.task, model["vars"]["buffers"]))
    assert all(v.shape[0] == 17 for v in start["buffers"].values())
    first, new = adapter.step(worker.task, worker.predict(), model, start, x[:1], rng.key(0))
    again, _ = adapter.step(worker.task, worker.predict(), model, new, x[:1], rng.key(0))
    assert bool(torch.isfinite(first).all()) and gap({"l": first}, {"l": again}) > 0
    for name, source in running_of(worker.task, model["vars"]["buffers"]).items():
        assert torch.equal(new["buffers"][name][0], source)
    other = UnMixTNS(seed=1).init(worker.task, model)
    assert gap(other["buffers"], start["buffers"]) > 0


def test_refusals_and_bad_fields():
    assert "build it with norm='batch'" in UnMixTNS().refusal(task("cnn-group"), {})
    flat = Task(MLP(hidden=(4,), norm="batch"), (5,), 3)
    assert "UnMixTNS needs batch norm over feature maps" in UnMixTNS().refusal(flat, {})
    assert UnMixTNS().refusal(task("cnn-batch"), {}) is None
    with pytest.raises(ValueError, match="components=0"):
        UnMixTNS(components=0)
    with pytest.raises(ValueError, match="must be 'train', 'eval', 'adapt', 'still', a Blend"):
        task().apply(task().init(rng.key(0)), torch.zeros(1, 3, 10, 10), "unmix")


def test_components_start_from_the_seed_alone():
    """The same seed gives the same start, with draws of its own: a deployed adapter answers alike on every machine."""
    made, model = live(filled(Net()))[:2]
    running = running_of(made, model["vars"]["buffers"])
    for seed in (0, 3):
        expected = components(running, 4, rng.fold(rng.key(seed), "unmix"))
        found = UnMixTNS(components=4, seed=seed).init(made, model)["buffers"]
        assert found.keys() == expected.keys() and all(torch.equal(found[n], expected[n]) for n in expected)
