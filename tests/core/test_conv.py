"""Convolutions with weights per client against a loop over clients: values, gradients, second derivatives, nesting."""

from __future__ import annotations

import platform
from collections.abc import Iterator

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, jacrev, vmap

from acclimate.core.nn import products
from acclimate.core.nn.conv import PureConv2d, fits, is_batched
from acclimate.core.nn.layers import purify
from acclimate.core.nn.pool import PureMaxPool2d

CASES = [(3, 5, 5, 1, 0), (4, 6, 3, 1, 1), (4, 5, 3, 2, 1), (2, 3, 1, 2, 0), (3, 2, 3, 2, 0)]
"""Input channels, output channels, kernel, step, padding."""


def layer(case: tuple[int, ...]) -> PureConv2d:
    i, o, k, s, p = case
    return PureConv2d(i, o, k, stride=s, padding=p).double()


def plain(conv: PureConv2d, x: Tensor, w: Tensor, b: Tensor) -> Tensor:
    return nn.functional.conv2d(x, w, b, conv.stride, conv.padding)


def tensors(case: tuple[int, ...], *lead: int) -> tuple[Tensor, Tensor, Tensor]:
    i, o, k, _, _ = case
    g = torch.Generator().manual_seed(0)
    shapes = ((2, i, 9, 8), (o, i, k, k), (o,))
    x, w, b = (torch.randn(*lead, *s, generator=g, dtype=torch.float64) for s in shapes)
    return x, w, b


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("dims", [(0, 0, 0), (0, None, None), (None, 0, 0)])
def test_values_and_gradients_are_those_of_a_loop(case: tuple[int, ...], dims: tuple[int | None, ...]) -> None:
    conv = layer(case)
    x, w, b = (t if d is not None else t[0] for t, d in zip(tensors(case, 3), dims, strict=True))

    def loss(f):  # type: ignore[no-untyped-def]
        return lambda x, w, b: f(x, w, b).sin().sum()

    ours = vmap(grad(loss(conv._conv_forward), (0, 1, 2)), in_dims=dims)(x, w, b)
    each = [[t[c] if d is not None else t for t, d in zip((x, w, b), dims, strict=True)] for c in range(3)]
    theirs = [grad(loss(lambda *a: plain(conv, *a)), (0, 1, 2))(*e) for e in each]
    for mine, loop in zip(ours, map(torch.stack, zip(*theirs, strict=True)), strict=True):
        torch.testing.assert_close(mine, loop)
    out = vmap(conv._conv_forward, in_dims=dims)(x, w, b)
    torch.testing.assert_close(out, torch.stack([plain(conv, *e) for e in each]))


@pytest.mark.parametrize("case", CASES[:3])
def test_second_derivatives_are_those_of_a_loop(case: tuple[int, ...]) -> None:
    conv = layer(case)
    x, w, b = tensors(case, 2)
    x, w = x[:, :1, :, :5, :5], w[:, :2]
    b = b[:, :2]

    def curved(f, x, w, b):  # type: ignore[no-untyped-def]
        return jacrev(grad(lambda x, w: f(x, w, b).sin().sum(), (0, 1)), (0, 1))(x, w)

    ours = vmap(lambda *a: curved(conv._conv_forward, *a))(x, w, b)
    for c in range(2):
        loop = curved(lambda *a: plain(conv, *a), x[c], w[c], b[c])
        for mine, want in zip(ours, loop, strict=True):
            for m, t in zip(mine, want, strict=True):
                torch.testing.assert_close(m[c], t)


def test_nested_maps_join_the_client_axis() -> None:
    conv, case = layer(CASES[1]), CASES[1]
    x, w, b = tensors(case, 2, 3)

    def f(x: Tensor, w: Tensor, b: Tensor) -> Tensor:
        return conv._conv_forward(x, w, b).sin().sum()

    both = vmap(vmap(grad(f, 1)))(x, w, b)
    outer = vmap(vmap(grad(f, 1), in_dims=(0, None, None)))(x, w[:, 0], b[:, 0])
    one = grad(lambda w: plain(conv, x[1, 2], w, b[1, 2]).sin().sum())(w[1, 2])
    torch.testing.assert_close(both[1, 2], one)
    one = grad(lambda w: plain(conv, x[1, 2], w, b[1, 0]).sin().sum())(w[1, 0])
    torch.testing.assert_close(outer[1, 2], one)


@pytest.fixture
def one_thread() -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.mark.usefixtures("one_thread")
@pytest.mark.parametrize("channels", [2, 4, 7])
def test_a_convolution_that_passes_over_pixels_has_right_gradients_with_few_channels(channels: int) -> None:
    """In single precision, alone, and with channels side by side, oneDNN's own end the process on some x86."""
    conv = nn.Sequential(PureConv2d(channels, 8, 1, stride=2), PureConv2d(8, 3, 3))
    g = torch.Generator().manual_seed(0)
    x = torch.randn(32, channels, 32, 32, generator=g).contiguous(memory_format=torch.channels_last)
    exact = [p.detach().double().requires_grad_() for p in conv.parameters()]
    for _ in range(4):  # what was written where it may not be can show later
        ours = torch.autograd.grad(conv(x).sin().sum(), list(conv.parameters()))
    y = nn.functional.conv2d(x[..., ::2, ::2].double(), exact[0], exact[1])
    y = nn.functional.conv2d(y, exact[2], exact[3])
    for mine, theirs in zip(ours, torch.autograd.grad(y.sin().sum(), exact), strict=True):
        torch.testing.assert_close(mine.double(), theirs, rtol=1e-4, atol=1e-3)


def test_without_a_map_torch_convolves() -> None:
    x, w, b = tensors(CASES[0])
    conv = layer(CASES[0])
    torch.testing.assert_close(conv._conv_forward(x, w, b), plain(conv, x, w, b))
    seen: list[bool] = []
    vmap(lambda t: seen.append(is_batched(t)) or t)(x)  # type: ignore[func-returns-value]
    assert seen == [True] and not is_batched(x)


@pytest.mark.parametrize("case", CASES)
@pytest.mark.parametrize("limit", ["KEPT", "LARGEST", None])
def test_one_client_alone_has_torchs_gradients(
    case: tuple[int, ...], limit: str | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "NATIVE", False)  # on x86, too
    if limit is not None:  # patches that are not kept, and none at all
        monkeypatch.setattr(products, limit, 0)
    conv = layer(case)
    given = [t.requires_grad_() for t in tensors(case)]
    mine, theirs = (f(*given).sin().sum() for f in (conv._conv_forward, lambda *a: plain(conv, *a)))
    one, other = (torch.autograd.grad(y, given, create_graph=True) for y in (mine, theirs))
    for m, t in zip((mine, *one), (theirs, *other), strict=True):
        torch.testing.assert_close(m, t)
    for m, t in zip(torch.autograd.grad(mine, given, retain_graph=True), other, strict=True):
        torch.testing.assert_close(m, t)
    second = [torch.autograd.grad(sum(g.cos().sum() for g in found), given) for found in (one, other)]
    for m, t in zip(*second, strict=True):
        torch.testing.assert_close(m, t)


@pytest.mark.parametrize("native", [True, False])
def test_a_client_alone_takes_the_convolution_that_is_quicker_on_its_kind_of_processor(
    native: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(products, "NATIVE", native)
    x, w, b = tensors(CASES[0])
    y = layer(CASES[0])._conv_forward(x, w.requires_grad_(), b)
    assert type(y.grad_fn).__name__ == ("ConvolutionBackward0" if native else "AloneBackward")


def test_torchs_own_convolutions_are_the_quicker_ones_on_x86_with_onednn(monkeypatch: pytest.MonkeyPatch) -> None:
    for machine, quicker in (("x86_64", True), ("AMD64", True), ("aarch64", False), ("arm64", False)):
        monkeypatch.setattr(platform, "machine", lambda machine=machine: machine)
        monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: True)
        assert products.native() is quicker
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(torch.backends.mkldnn, "is_available", lambda: False)
    assert products.native() is False


@pytest.mark.parametrize(
    "other",
    [
        nn.Conv2d(4, 4, 3, groups=2),
        nn.Conv2d(4, 4, 3, dilation=2),
        nn.Conv2d(4, 4, 3, padding="same"),
        nn.Conv2d(4, 4, 3, padding=1, padding_mode="reflect"),
        nn.Conv2d(4, 4, 3, stride=(1, 2)),
    ],
)
def test_other_convolutions_stay_as_they_are(other: nn.Conv2d) -> None:
    assert fits(nn.Conv2d(4, 4, 3)) and not fits(other)


def test_copies_are_spared_only_between_layers_that_do_not_mind() -> None:
    plain = nn.Sequential(nn.Conv2d(3, 4, 3), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 4, 3), nn.ReLU(), nn.Flatten())
    normed = nn.Sequential(nn.Conv2d(3, 4, 3), nn.GroupNorm(2, 4), nn.MaxPool2d(2), nn.ReLU(), nn.AdaptiveAvgPool2d(1))
    purify(plain), purify(normed)
    assert [m.loose for m in plain if hasattr(m, "loose")] == [True, True, True]
    assert [m.loose for m in normed if hasattr(m, "loose")] == [True, False]


@pytest.mark.parametrize("case", CASES)
def test_many_examples_of_clients_that_share_weights_are_those_of_a_loop(case: tuple[int, ...]) -> None:
    conv = layer(case)
    conv.turned = True
    (_, w, b), x = tensors(case), tensors(case, 3, 10)[0].flatten(1, 2)  # 3 clients of 20 examples

    def loss(f):  # type: ignore[no-untyped-def]
        return lambda x, w: f(x, w, b).sin().sum()

    out = vmap(conv._conv_forward, in_dims=(0, None, None))(x, w, b)
    assert out.stride(1) == 1  # examples lie side by side, so this is the way that is meant
    torch.testing.assert_close(out, torch.stack([plain(conv, one, w, b) for one in x]))
    ours = vmap(grad(loss(conv._conv_forward), (0, 1)), in_dims=(0, None))(x, w)
    for c, one in enumerate(x):
        for mine, loop in zip(ours, grad(loss(lambda *a: plain(conv, *a)), (0, 1))(one, w), strict=True):
            torch.testing.assert_close(mine[c], loop)


def test_a_whole_network_is_the_same_whatever_the_order_in_memory() -> None:
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.MaxPool2d(2), nn.ReLU(), nn.Conv2d(4, 2, 3))
    net = net.double()
    x = torch.randn(3, 20, 3, 11, 10, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    loop = torch.stack([net(one) for one in x])
    purify(net)
    orders: list[int] = []
    net[2].register_forward_hook(lambda _m, _x, out: orders.append(out.stride(0)))
    torch.testing.assert_close(vmap(lambda one: functional_call(net, dict(net.named_buffers()), (one,)))(x), loop)
    assert orders == [1]


def test_pooling_chooses_the_first_of_equal_numbers_and_keeps_what_is_no_number() -> None:
    draw = torch.randint(0, 3, (3, 2, 4, 7, 5), generator=torch.Generator().manual_seed(0)).double()  # many are equal
    draw[0, 0, 0, 1, 1] = draw[1, 1, 2, 2, 3] = torch.nan
    pool, weights = PureMaxPool2d(2), torch.randn(2, 4, 3, 2, dtype=torch.float64)
    for one in (pool, nn.MaxPool2d(2)):
        out = torch.stack([nn.functional.max_pool2d(x, 2) for x in draw])
        assert torch.equal(vmap(one)(draw).nan_to_num(9.0), out.nan_to_num(9.0))
    theirs = torch.stack([grad(lambda x: (nn.functional.max_pool2d(x, 2) * weights).sum())(x) for x in draw])
    assert torch.equal(vmap(grad(lambda x: (pool(x) * weights).sum()))(draw), theirs)
