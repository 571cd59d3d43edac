"""Norms of clients with scales and shifts of their own, against torch's in double precision: values, gradients of two
orders, maps. With plain code everywhere; with kernels on a CUDA device, or interpreted on a CPU:
`TRITON_INTERPRET=1 PYTHONPATH=src:tests python -m pytest --noconftest tests/core/test_norms.py`.
"""

from contextlib import nullcontext

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.nn import functional as F

from acclimate.core.nn import kernels, norm_kernels, norms, rehearsal, sample_kernels
from acclimate.core.nn.layers import PureBatchNorm, PureGroupNorm, PureLayerNorm, norm_relu, purify
from acclimate.core.nn.norm_plain import Norm

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
KERNELS = kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)
works = pytest.mark.skipif(not KERNELS, reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1")
CLIENTS = 3
SHAPES = [(4, 6, 5, 7), (3, 20, 4, 4), (5, 6)]
"""Samples, channels, places."""
KINDS = ["batch", "given", "counted", "group", "layer"]


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    """Several programs and parts, though shapes are small."""
    monkeypatch.setattr(norm_kernels, "TILE", 256)
    monkeypatch.setattr(sample_kernels, "TILE", 64)
    monkeypatch.setattr(norm_kernels, "LEAST", 16)


def near(ours: Tensor, true: Tensor, share: float = 5e-6) -> None:
    assert ours.shape == true.shape
    ours, true = ours.detach().double(), true.detach()
    assert float((ours - true).norm()) <= share * float(true.norm())


def made(shape: tuple[int, ...], last: bool = False) -> tuple[Tensor, ...]:
    """Inputs, weights, biases, a tensor to add, means, variances of every client; channels side by side if `last`."""
    g, c = torch.Generator().manual_seed(0), shape[1]
    draw = [torch.randn(CLIENTS, *s, generator=g).to(HERE) for s in (shape, (c,), (c,), shape, (c,), (c,))]
    x, weight, bias, add, mean, var = draw
    if last and len(shape) > 2:
        x = x.movedim(2, -1).contiguous().movedim(-1, 2)
    return 2 * x + 3, weight, bias, add, mean + 3, var.abs() + 1


def counts(x: Tensor, mean: Tensor) -> Tensor:
    """Which samples count: all but the first, and the last of clients with a small mean."""
    place = torch.arange(x.shape[0], device=x.device)
    return ((place > 0) & ((place + 1 < x.shape[0]) | (mean[0] > 3))).to(x.dtype)


def counted(x: Tensor, w: Tensor, b: Tensor, some: Tensor) -> Tensor:
    """Batch norm with the statistics of samples that count, one client's, by choosing them."""
    axes, shape = [d for d in range(x.dim()) if d != 1], (1, -1, *[1] * (x.dim() - 2))
    var, mean = torch.var_mean(x[some.bool()], axes, correction=0)
    return (x - mean.view(shape)) / (var.view(shape) + 1e-3).sqrt() * w.view(shape) + b.view(shape)


def ours(kind: str, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    if kind == "group":
        return norms.group(x, w, b, 2, 1e-3)
    if kind == "layer":
        return norms.layer(x.movedim(1, -1), w, b, 1e-3).movedim(-1, 1)
    if kind == "counted":
        return norms.batch(x, w, b, 1e-3, counts=counts(x, mean))[0]
    return norms.batch(x, w, b, 1e-3, (mean, var) if kind == "given" else None)[0]


def theirs(kind: str, x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor) -> Tensor:
    if kind == "group":
        return F.group_norm(x, 2, w, b, 1e-3)
    if kind == "layer":
        return F.layer_norm(x.movedim(1, -1), w.shape, w, b, 1e-3).movedim(-1, 1)
    if kind == "counted":
        return counted(x, w, b, counts(x, mean))
    own = kind == "batch"
    return F.batch_norm(x, None if own else mean, None if own else var, w, b, own, 0.0, 1e-3)


def derivatives(f, kind: str):  # type: ignore[no-untyped-def]
    """Value, gradient and a product with the second derivative."""

    def all(x: Tensor, w: Tensor, b: Tensor, mean: Tensor, var: Tensor, way: Tensor) -> tuple:
        first = grad(lambda x, w, b: (f(kind, x, w, b, mean, var).sin()).sum(), (0, 1, 2))
        slope, back = vjp(first, x, w, b)
        return f(kind, x, w, b, mean, var), slope, back((way, w.cos(), b.cos()))

    return all


def flat(out: tuple) -> list[Tensor]:
    return [out[0], *out[1], *out[2]]


def compare(kind: str, shape: tuple[int, ...], last: bool, dims: tuple[int | None, int | None]) -> None:
    x, w, b, way, mean, var = made(shape, last)
    at_x, at_w = dims
    x, way = (x, way) if at_x is not None else (x[0], way[0])
    w, b = (w, b) if at_w is not None else (w[0], b[0])
    args, axes = (x, w, b, mean, var, way), (at_x, at_w, at_w, 0, 0, at_x)
    mine = flat(vmap(derivatives(ours, kind), in_dims=axes)(*args))
    for c in range(CLIENTS):
        one = [(t if d is None else t[c]).double() for t, d in zip(args, axes, strict=True)]
        for m, t in zip(mine, flat(derivatives(theirs, kind)(*one)), strict=True):
            near(m[c], t, 2e-5)


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
def test_plain_code_has_values_and_gradients_of_two_orders(kind: str, shape: tuple, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(norms, "_works", lambda x, norm: False)
    compare(kind, shape, False, (0, 0))
    compare(kind, shape, False, (0, None))


@works
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("last", [False, True])
def test_kernels_have_values_and_gradients_of_two_orders(kind: str, shape: tuple, last: bool) -> None:
    compare(kind, shape, last, (0, 0))


@works
@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("dims", [(0, None), (None, 0)])
def test_kernels_where_clients_share_weights_or_inputs(kind: str, dims: tuple) -> None:
    compare(kind, SHAPES[0], False, dims)


@works
@pytest.mark.parametrize("kind", KINDS)
def test_nested_maps_join_the_client_axis(kind: str) -> None:
    x, w, b, _, mean, var = (t[:2].unsqueeze(1).expand(2, 2, *t.shape[1:]) for t in made(SHAPES[1]))
    x = x * torch.tensor([1.0, 3.0], device=HERE).view(1, 2, *[1] * (x.dim() - 2))

    def f(g):  # type: ignore[no-untyped-def]
        return grad(lambda x, w, b, m, v: g(kind, x, w, b, m, v).sin().sum(), (0, 1))

    both = vmap(vmap(f(ours)))(x, w, b, mean, var)
    inner = vmap(vmap(f(ours), in_dims=(0, None, None, None, None)))(x, w[:, 0], b[:, 0], mean[:, 0], var[:, 0])
    for i, j in ((0, 1), (1, 0)):
        true = f(theirs)(*(t[i, j].double() for t in (x, w, b, mean, var)))
        for found in (both, inner):
            for m, t in zip(found, true, strict=True):
                near(m[i, j], t)


@pytest.mark.parametrize(("kind", "relu"), [("batch", 1), ("given", 1), ("group", 1), ("batch", 6), ("given", 6)])
@pytest.mark.parametrize("add", [False, True])
def test_a_sum_and_relu_follow_in_the_same_pass(kind: str, relu: int, add: bool) -> None:
    x, w, b, other, mean, var = made(SHAPES[0], last=True)
    w = w if relu == 1 else 4 * w  # so that some reach 6

    def fused(x: Tensor, w: Tensor, b: Tensor, other: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        more = (other if add else None, relu)
        if kind == "group":
            return norms.group(x, w, b, 2, 1e-3, *more)
        return norms.batch(x, w, b, 1e-3, (mean, var) if kind == "given" else None, *more)[0]

    def apart(x: Tensor, w: Tensor, b: Tensor, other: Tensor, mean: Tensor, var: Tensor) -> Tensor:
        return (F.relu6 if relu == 6 else F.relu)(theirs(kind, x, w, b, mean, var) + (other if add else 0.0))

    def slopes(f):  # type: ignore[no-untyped-def]
        return grad(lambda x, w, b, o, m, v: f(x, w, b, o, m, v).sin().sum(), (0, 1, 2, 3) if add else (0, 1, 2))

    def twice(f):  # type: ignore[no-untyped-def]
        # slopes of about a hundred: a cosine of them as they are would make a hundred of every rounding
        return grad(lambda *a: sum((s / 100).cos().sum() for s in slopes(f)(*a)), (0, 1))

    args = (x, w, b, other, mean, var)
    got = (vmap(fused)(*args), *vmap(slopes(fused))(*args), *vmap(twice(fused))(*args))
    assert bool((got[0] == 6).any()) == (relu == 6)
    for c in range(CLIENTS):
        one = [t[c].double() for t in args]
        for m, t in zip(got, (apart(*one), *slopes(apart)(*one), *twice(apart)(*one)), strict=True):
            near(m[c], t, 2e-5)


def test_statistics_are_handed_back_and_have_no_gradient() -> None:
    x, w, b, *_ = made(SHAPES[0])
    _, mean, var = vmap(lambda x, w, b: norms.batch(x, w, b, 1e-3))(x, w, b)
    near(mean, x.double().mean((1, 3, 4)))
    near(var, x.double().var((1, 3, 4), correction=0))
    slope = vmap(grad(lambda x, w, b: norms.batch(x, w, b, 1e-3)[1].sum()))(x, w, b)
    assert not slope.any()


@works
def test_layers_use_the_kernels_and_running_statistics_follow(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)  # torch's own convolutions are the reference
    net = nn.Sequential(nn.Conv2d(3, 4, 3), nn.BatchNorm2d(4), nn.ReLU(), nn.Conv2d(4, 6, 3), nn.GroupNorm(2, 6))
    net.append(nn.Flatten(2)).append(nn.LayerNorm(9)).to(HERE)
    vars = {n: t.detach().clone() for n, t in (*net.named_parameters(), *net.named_buffers()) if t.is_floating_point()}
    stacked = {n: torch.stack([t, t + 0.1, t - 0.1]) for n, t in vars.items()}
    stacked["1.running_var"] = stacked["1.running_var"].abs()
    x = torch.randn(CLIENTS, 2, 3, 7, 7, generator=torch.Generator().manual_seed(0)).to(HERE)
    plain = [nn.Sequential(*net)]
    told, left = [], []
    for c in range(CLIENTS):
        own = {n: t[c].clone() for n, t in stacked.items()}
        told.append(functional_call(plain[0], own, (x[c],)))
        left.append(own["1.running_var"])
    purify(net)
    assert [type(net[i]) for i in (1, 4, 6)] == [PureBatchNorm, PureGroupNorm, PureLayerNorm]
    seen, run = [], norms._forward

    def one(vars: dict, x: Tensor) -> tuple[Tensor, Tensor]:
        own = dict(vars)
        return functional_call(net, own, (x,)), own["1.running_var"]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(norms, "_forward", lambda *a: (seen.append(a[-1].kind), run(*a))[1])
        vmap(one)(stacked, x)  # on a GPU kernels are tried when they are first asked for
        seen.clear()
        out, var = vmap(one)(stacked, x)
        assert seen == ["batch", "group", "layer"]
        torch.testing.assert_close(out, torch.stack(told), rtol=1e-4, atol=1e-4)
        torch.testing.assert_close(var, torch.stack(left), rtol=1e-4, atol=1e-4)
        patch.setenv("ACCLIMATE_WITHOUT", "norms")
        again, _ = vmap(one)(stacked, x)
        assert len(seen) == 3
    torch.testing.assert_close(again, out, rtol=1e-4, atol=1e-4)


@pytest.mark.parametrize("kind", [nn.BatchNorm2d(6), nn.GroupNorm(3, 6), nn.Identity()], ids=lambda k: type(k).__name__)
def test_relu_after_a_norm_is_the_same_with_and_without_a_map_and_with_hooks(kind: nn.Module) -> None:
    x, _, _, add, *_ = made((4, 6, 5, 5))
    kind = kind.to(HERE)
    true = torch.stack([F.relu(kind(a) + b) for a, b in zip(x, add, strict=True)])
    purify(nn.ModuleList([kind]))
    seen: list[Tensor] = []
    before = {n: b.clone() for n, b in kind.named_buffers()}
    for hook in (False, True):
        if hook:
            kind.register_forward_hook(lambda _m, _a, out: seen.append(out))
        found = vmap(lambda a, b: functional_call(_Relu(kind), dict(before), (a, b)))(x, add)
        torch.testing.assert_close(found, true, rtol=1e-4, atol=1e-4)
    assert len(seen) == 1


class _Relu(nn.Module):
    def __init__(self, norm: nn.Module) -> None:
        super().__init__()
        self.norm = norm

    def forward(self, x: Tensor, add: Tensor) -> Tensor:
        return norm_relu(self.norm, x, add)


@works
def test_a_kernel_that_does_not_agree_is_left_out_with_a_warning(monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    if HERE.type != "cuda":
        pytest.skip("kernels are tried on a CUDA device alone")
    x, w, b, *_ = made((4, 7, 3, 3))
    good = norm_kernels.batch_moments
    monkeypatch.setattr(norm_kernels, "batch_moments", lambda *a: (good(*a)[0] + 1, good(*a)[1]))
    norms._tried.clear()
    out = vmap(lambda x, w, b: norms.batch(x, w, b, 1e-3)[0])(x, w, b)
    norms._tried.clear()
    each = zip(x, w, b, strict=True)
    true = torch.stack([F.batch_norm(x, None, None, w, b, True, 0.0, 1e-3) for x, w, b in each])
    torch.testing.assert_close(out, true, rtol=1e-4, atol=1e-4)
    assert len([r for r in caplog.records if "batch norm is left out" in r.message]) == 1


def test_a_trial_that_fails_beside_a_recording_ends_it_and_is_made_after_a_run(monkeypatch) -> None:  # type: ignore[no-untyped-def]
    recorded, x = [True], torch.ones(2, 3, 4, 5)

    def failing(*_: object) -> None:
        raise RuntimeError("operation not permitted when stream is capturing")

    kernel = norms._forward
    monkeypatch.setattr(torch.cuda, "is_current_stream_capturing", lambda: recorded[-1])
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: None)
    monkeypatch.setattr(norms, "unrecorded", lambda device: nullcontext())
    monkeypatch.setattr(kernels, "usable", lambda x: True)
    monkeypatch.setattr(torch.Tensor, "is_cuda", property(lambda x: True))
    monkeypatch.setattr(norms, "_tried", {})
    monkeypatch.setattr(norms, "_forward", failing)
    with pytest.raises(rehearsal.Untried, match="batch norm cannot be tried while a graph is recorded"):
        norms._works(x, Norm("batch", 1e-3))
    assert norms._tried == {}
    recorded.append(False)
    assert not norms._works(x, Norm("batch", 1e-3)) and list(norms._tried.values()) == [False]
    norms._tried.clear()
    monkeypatch.setattr(norms, "_forward", kernel)
    monkeypatch.setattr(norms, "_trial", lambda x, norm: None)
    assert norms._works(x, Norm("batch", 1e-3))


class Active(nn.BatchNorm2d):
    """Batch norm with an activation in it."""

    def __init__(self, act: nn.Module) -> None:
        super().__init__(6)
        self.act, self.drop = act, nn.Identity()

    def forward(self, x: Tensor) -> Tensor:
        return self.act(super().forward(x))


@pytest.mark.parametrize("act", [nn.ReLU6(), nn.ReLU(), nn.Tanh()], ids=lambda a: type(a).__name__)
def test_an_activation_in_a_norm_is_in_its_pass_where_kernels_serve(act: nn.Module, monkeypatch) -> None:  # type: ignore[no-untyped-def]
    """And runs by itself where they do not, and where someone listens to it."""
    layer = Active(act).to(HERE).requires_grad_(False)
    purify(layer)
    weight, x = torch.rand(2, 6, device=HERE) * 9, torch.randn(2, 5, 6, 3, 3, device=HERE)
    wanted = [act(F.batch_norm(a, None, None, w, layer.bias, True, 0.0)) for w, a in zip(weight, x, strict=True)]
    calls, heard, real = [], [], norms.batch
    monkeypatch.setattr(norms, "batch", lambda *a: (calls.append(a[6]), real(*a))[1])
    for _ in range(2):
        y = vmap(lambda w, x: functional_call(layer, {"weight": w}, (x,))[0])(weight, x)
        near(y, torch.stack(wanted)[:, 0].double())
        layer.act.register_forward_hook(lambda *_: heard.append(1))
    known = {nn.ReLU6: 6, nn.ReLU: 1}.get(type(act), 0)
    assert heard == [1] and calls == ([known, 0] if KERNELS else [])
