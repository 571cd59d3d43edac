"""What kernels read lies in memory as they read it, also where `vmap` repeats one row with steps of zero.

That happens where one client alone has several views: its bias is one row for all of them. The first tests need no
Triton, since they look at what a launch is given; the last run as `test_implicit.py` says.
"""

import copy
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, vmap

from acclimate.core.nn import box_kernels, folded_kernels, implicit_kernels, kernels, trials
from acclimate.core.nn.cutting import Layer, Tile
from acclimate.core.nn.layers import purify
from acclimate.core.nn.mapping import led
from acclimate.models import attention, trunk_parts
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
VIEWS = 3


class Launch:
    """Stands for a kernel, and keeps what it was launched with."""

    def __init__(self) -> None:
        self.given: tuple[Any, ...] = ()

    def __getitem__(self, grid: tuple[int, ...]) -> Any:
        return lambda *given, **_: setattr(self, "given", given)


def repeated(*shape: int) -> Tensor:
    """A row of one client, as `vmap` gives it to its views: [VIEWS, ...]."""
    row = torch.arange(1.0, 1.0 + torch.Size(shape).numel()).view(1, *shape)
    (rows,) = led(VIEWS, (None,), (row,))
    assert rows.shape == (VIEWS, *shape) and rows.stride(0) == 0
    return rows


def as_read(t: Tensor) -> Tensor:
    """What a kernel finds that reads one number after the other from where t begins."""
    return torch.as_strided(t, (t.numel(),), (1,))


LAYER = Layer(3, 6, 6, 8, 4, 4, 3, 3, 1, 0, 0)
TILE = Tile(16, 32, 16, 4, 1)


@pytest.mark.parametrize(
    ("way", "kind"),
    [
        *((implicit_kernels, kind) for kind in ("convolve", "pooled")),
        *((box_kernels, kind) for kind in ("convolve", "pooled")),
        (folded_kernels, "pooled"),
    ],
)
def test_a_bias_that_views_share_is_there_for_each_of_them(way: Any, kind: str, monkeypatch: pytest.MonkeyPatch):
    launch, bias = Launch(), repeated(LAYER.outputs)
    for name in ("_convolve", "_boxes", "_shifted"):
        monkeypatch.setattr(way, name, launch if name != "_shifted" else Launch(), raising=False)
    monkeypatch.setattr(way, "_described", lambda x, block: x, raising=False)
    x, w = torch.ones(VIEWS, 2, 3, 6, 6), torch.ones(VIEWS, 8, 3, 3, 3)
    getattr(way, kind)(x, w, LAYER, TILE, "ieee", bias, True)
    assert as_read(launch.given[3]).tolist() == bias.flatten().tolist()


def test_places_of_maxima_that_views_share_are_there_for_each_of_them(monkeypatch: pytest.MonkeyPatch):
    launch = Launch()
    monkeypatch.setattr(kernels, "_pick", launch)
    which = torch.tensor([3, 0, 1, 2], dtype=torch.uint8).view(1, 2, 2, 1).expand(VIEWS, 2, 2, 1)
    kernels.pick(torch.ones(VIEWS, 4, 4, 1), which)
    assert as_read(launch.given[1]).tolist() == which.flatten().tolist()


def test_statistics_that_views_share_are_there_for_each_of_them(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.setattr(trials, "serves_rows", lambda s: True)
    monkeypatch.setattr(trials, "norm_back", lambda *given: seen.extend(given))
    mean, unit = repeated(5), 2.0 * repeated(5)[:1].expand(VIEWS, 5)
    trunk_parts._NormBack.forward(torch.ones(4), 1e-6, None, repeated(5, 4), torch.ones(VIEWS, 5, 4), mean, unit)
    assert seen[6:] == [None, None]
    for read, wanted in ((seen[4], mean), (seen[5], unit), (seen[1], repeated(5, 4))):
        assert as_read(read).tolist() == wanted.flatten().tolist()
    seen.clear()
    monkeypatch.setattr(trials, "serves_low", lambda s, rank: True)
    pair = repeated(5, 2), repeated(2, 4)
    trunk_parts._NormBack.forward(torch.ones(4), 1e-6, None, repeated(5, 4), torch.ones(VIEWS, 5, 4), mean, unit, *pair)
    for read, wanted in zip(seen[6:], pair, strict=True):
        assert as_read(read).tolist() == wanted.flatten().tolist()


def test_sums_of_attention_that_views_share_are_there_for_each_of_them(monkeypatch: pytest.MonkeyPatch):
    seen: list[Any] = []
    monkeypatch.setattr(trials, "serves_attention", lambda qkv, heads: True)
    monkeypatch.setattr(attention.by_heads, "back", lambda *given: seen.extend(given))
    g, none = torch.ones(VIEWS, 4, 2), torch.zeros(0)
    attention._Gradient.forward(g, torch.ones(VIEWS, 4, 6), g, repeated(1, 4), none, none, 1)
    assert as_read(seen[3]).tolist() == repeated(1, 4).flatten().tolist()


NETS = {
    "few channels, pooled": (3, nn.Conv2d(3, 5, 3), nn.MaxPool2d(2), nn.ReLU()),
    "sixteen channels, pooled": (16, nn.Conv2d(16, 4, 3), nn.MaxPool2d(2), nn.ReLU()),
    "whole tiles, pooled": (3, nn.Conv2d(3, 8, 3), nn.MaxPool2d(2), nn.ReLU()),
    "few channels": (3, nn.Conv2d(3, 5, 3), nn.ReLU()),
    "a linear layer": (3, nn.Flatten(), nn.Linear(3 * 6 * 6, 7), nn.ReLU()),
}


@works
@pytest.mark.parametrize("name", NETS)
def test_views_of_one_client_alone_are_answered_as_torch_does(name: str, monkeypatch: pytest.MonkeyPatch):
    """Parameters are followed by numbers that are none: what is read beyond them is seen."""
    monkeypatch.setattr("acclimate.core.nn.linear.LONG", 1)
    channels, *layers = NETS[name]
    plain = nn.Sequential(*copy.deepcopy(layers))
    ours = copy.deepcopy(plain).to(HERE)
    purify(ours)
    g = torch.Generator().manual_seed(0)
    vars = {n: followed_by_nan(torch.randn(1, *p.shape, generator=g)) for n, p in plain.named_parameters()}
    x = torch.randn(VIEWS, 2, channels, 6, 6, generator=g)
    y = vmap(lambda v: vmap(lambda x: functional_call(ours, v, (x,)))(x.to(HERE)))(vars)[0]
    one = {n: v[0].double().cpu() for n, v in vars.items()}
    torch.testing.assert_close(y.double().cpu(), vmap(lambda x: functional_call(plain, one, (x,)))(x.double()), **NEAR)


NEAR = {"rtol": 1e-4, "atol": 1e-3}


def followed_by_nan(t: Tensor) -> Tensor:
    """The same numbers at the beginning of memory that holds nothing else."""
    room = torch.full((t.numel() + 4096,), torch.nan, device=HERE)
    room[: t.numel()] = t.flatten().to(HERE)
    return room[: t.numel()].view(t.shape)
