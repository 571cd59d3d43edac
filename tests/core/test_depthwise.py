"""Depthwise convolutions of many clients against torch's own in double precision: values, gradients, maps, order.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import copy
import logging

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils._pytree import tree_leaves

from acclimate.adapters import MBSL
from acclimate.core import SGD, Task, Tree, rng, tree
from acclimate.core.nn import depthwise, depthwise_kernels, kernels, trials
from acclimate.core.nn.depthwise import PureDepthwise2d
from acclimate.core.nn.depthwise_kernels import Window
from acclimate.core.nn.layers import any_order, purify
from acclimate.models import Pretrained
from acclimate.models.pretrained import _Padded
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
SHAPES = [(3, 1), (3, 2), (5, 1), (5, 2)]


def drawn(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed + sum(shape)))


def near(ours: Tensor, true: Tensor, by: float = 1e-5, least: float = 0.0) -> None:
    assert ours.shape == true.shape
    far = float((ours.double().cpu() - true.double().cpu()).norm())
    assert far <= by * max(float(true.double().norm()), least)


def true(x: Tensor, w: Tensor, dy: Tensor, g: Window, below: int, right: int) -> tuple[Tensor, ...]:
    """y, dx and dw by torch's own convolution."""
    x, w = x.double().requires_grad_(), w.double().requires_grad_()
    room = F.pad(x, (g.pad[1], right, g.pad[0], below))
    y = torch.stack([F.conv2d(a, b[:, None], None, g.step, groups=len(b)) for a, b in zip(room, w, strict=True)])
    return (y.detach(), *torch.autograd.grad(y, (x, w), dy.double()))


@works
@pytest.mark.parametrize(("kernel", "step"), SHAPES)
@pytest.mark.parametrize("dtype", [torch.float32, torch.float16])
def test_kernels_are_torch_s_convolution_and_its_gradients(kernel: int, step: int, dtype: torch.dtype) -> None:
    half = kernel // 2
    if dtype == torch.float16 and HERE.type == "cuda":
        dtype = torch.bfloat16  # the interpreter has none
    cases = [((7, 5), 5, (half, half, half, half)), ((4, 6), 33, (0, half + 1, half, half - 1))]
    for (high, wide), channels, (above, below, left, right) in cases:
        out = ((high + above + below - kernel) // step + 1, (wide + left + right - kernel) // step + 1)
        g = Window((high, wide), out, kernel, step, (above, left))
        x, w = drawn(2, 2, channels, high, wide).to(dtype), drawn(2, channels, kernel, kernel).to(dtype)
        dy = drawn(2, 2, channels, *out, seed=1).to(dtype)
        y, dx, dw = true(x, w, dy, g, below, right)
        x, w, dy = (t.to(HERE) for t in (x, w, dy))
        by = 1e-5 if dtype == torch.float32 else 5e-3 if dtype == torch.float16 else 3e-2
        near(depthwise_kernels.convolve(x, w, g), y, by)
        near(depthwise_kernels.spread(dy, w, g), dx, by)
        near(depthwise_kernels.correlate(x, dy, g), dw, by)
        for mine, theirs in zip(depthwise.plain(x.float(), w.float(), dy.float(), g), (y, dx, dw), strict=True):
            near(mine, theirs)  # what trials compare with


@works
def test_sums_in_parts_and_programs_with_several_tiles_change_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    g = Window((6, 6), (6, 6), 3, 1, (1, 1))
    x, w, dy = drawn(1, 5, 34, 6, 6), drawn(1, 34, 3, 3), drawn(1, 5, 34, 6, 6, seed=1)
    wanted = true(x, w, dy, g, 1, 1)
    x, w, dy = (t.to(HERE) for t in (x, w, dy))
    seen = []
    for programs, slices in ((1, 1), (4, 4)):
        monkeypatch.setattr(depthwise_kernels, "PROGRAMS", programs)
        monkeypatch.setattr(depthwise_kernels, "SLICES", slices)
        found = (
            depthwise_kernels.convolve(x, w, g),
            depthwise_kernels.spread(dy, w, g),
            depthwise_kernels.correlate(x, dy, g),
        )
        for mine, theirs in zip(found, wanted, strict=True):
            near(mine, theirs)
        assert torch.equal(found[2], depthwise_kernels.correlate(x, dy, g))
        seen.append(found)
    assert torch.equal(seen[0][0], seen[1][0]) and torch.equal(seen[0][1], seen[1][1])


def layer_of(kernel: int, step: int, channels: int = 3, bias: bool = True) -> tuple[nn.Module, nn.Module]:
    """A depthwise layer as purify leaves it, and torch's."""
    plain = nn.Conv2d(channels, channels, kernel, step, kernel // 2, groups=channels, bias=bias)
    ours = copy.deepcopy(plain)
    purify(ours)
    assert type(ours) is PureDepthwise2d
    return ours.to(HERE), plain


def all_of(net: nn.Module):  # type: ignore[no-untyped-def]
    """Value, gradient, and a product with the gradient's gradient."""

    def each(vars: dict, x: Tensor) -> tuple:
        slope, back = vjp(grad(lambda v, x: functional_call(net, v, (x,)).sin().sum(), (0, 1)), vars, x)
        return functional_call(net, vars, (x,)), slope, back((vars, x))

    return each


@works
@pytest.mark.parametrize(("kernel", "step"), SHAPES)
def test_values_and_gradients_of_two_orders_are_those_of_the_layer(
    kernel: int, step: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    ours, plain = layer_of(kernel, step)
    vars, x = {n: drawn(2, *p.shape) for n, p in plain.named_parameters()}, drawn(2, 2, 3, 5, 4)
    runs, run = [], depthwise_kernels.convolve
    monkeypatch.setattr(depthwise_kernels, "convolve", lambda *a: (runs.append(1), run(*a))[1])
    found = tree_leaves(vmap(all_of(ours))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE)))
    assert runs
    for c in range(2):
        wanted = tree_leaves(all_of(plain)({n: v[c].double() for n, v in vars.items()}, x[c].double()))
        for mine, theirs in zip(found, wanted, strict=True):
            near(mine[c], theirs)


@works
@pytest.mark.parametrize("whose", [(0, 0), (0, None), (None, 0)])
@pytest.mark.parametrize("inner", [(0, 0), (0, None), (None, 0)])
def test_maps_within_maps_whoever_has_the_axis(whose: tuple, inner: tuple) -> None:
    """Two maps, each over images and weights, images alone, or weights alone; values and slopes of both."""
    ours, plain = layer_of(3, 2, bias=False)
    sizes = [n for n, dims in ((2, whose), (3, inner)) if dims[0] is not None]
    x = drawn(*sizes, 2, 3, 4, 5)
    w = drawn(*(n for n, dims in ((2, whose), (3, inner)) if dims[1] is not None), 3, 1, 3, 3)

    def of(net: nn.Module):  # type: ignore[no-untyped-def]
        def one(x: Tensor, w: Tensor) -> tuple:
            slopes = grad(lambda x, w: functional_call(net, {"weight": w}, (x,)).sin().sum(), (0, 1))(x, w)
            return functional_call(net, {"weight": w}, (x,)), *slopes

        return one

    found = vmap(vmap(of(ours), inner), whose)(x.to(HERE), w.to(HERE))
    for i in range(2):
        for j in range(3):
            a, b = x.double(), w.double()
            a = a if whose[0] is None else a[i]
            b = b if whose[1] is None else b[i]
            wanted = of(plain)(a if inner[0] is None else a[j], b if inner[1] is None else b[j])
            for mine, theirs in zip(found, wanted, strict=True):
                near(mine[i, j], theirs)


@works
def test_images_in_any_order_are_read_and_the_result_lies_as_wanted() -> None:
    ours, plain = layer_of(3, 1, bias=False)
    x, w = drawn(2, 2, 3, 4, 5), drawn(2, 3, 1, 3, 3)
    wanted = torch.stack([F.conv2d(a, b, None, 1, 1, groups=3) for a, b in zip(x.double(), w.double(), strict=True)])
    last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    turned = x.permute(4, 3, 2, 1, 0).contiguous().permute(4, 3, 2, 1, 0)
    sparse = drawn(2, 2, 3, 4, 10)[..., ::2].copy_(x)
    run = vmap(lambda w, x: functional_call(ours, {"weight": w}, (x,)))
    for given in (x, last, turned, sparse):
        for loose in (False, True):
            ours.loose_by_kernel = loose
            y = run(w.to(HERE), given.to(HERE))
            near(y, wanted)
            assert y.is_contiguous() != loose and y.permute(0, 1, 3, 4, 2).is_contiguous() == loose
    assert depthwise_kernels.dense(last).data_ptr() == last.data_ptr()
    assert depthwise_kernels.dense(last[:1].expand(3, -1, -1, -1, -1)).data_ptr() == last.data_ptr()
    assert depthwise_kernels.dense(x[:1].expand(3, -1, -1, -1, -1)).stride(0) == 0


@works
def test_zeros_around_an_image_need_no_copy_unless_someone_listens(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain = layer_of(3, 2, bias=False)
    for layer in (ours, plain):
        layer.padding = (0, 0)
    sides = (0, 1, 0, 1)
    x, w = drawn(2, 2, 3, 6, 6), drawn(2, 3, 1, 3, 3)
    wanted = torch.stack(
        [F.conv2d(F.pad(a, sides), b, None, 2, groups=3) for a, b in zip(x.double(), w.double(), strict=True)]
    )
    net, pads, pad = _Padded(ours, sides), [], F.pad
    run = vmap(lambda w, x: functional_call(net, {"conv.weight": w}, (x,)))
    run(w.to(HERE), x.to(HERE))  # a trial
    monkeypatch.setattr(F, "pad", lambda *a: (pads.append(1), pad(*a))[1])
    near(run(w.to(HERE), x.to(HERE)), wanted)
    assert not pads
    heard = []
    ours.register_forward_hook(lambda *told: heard.append(told[1][0].shape))
    near(run(w.to(HERE), x.to(HERE)), wanted)
    assert pads and heard == [(2, 3, 7, 7)]


@works
def test_a_kernel_with_other_numbers_is_left_out_with_a_warning(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    ours, _ = layer_of(3, 1, bias=False)
    x, w = drawn(2, 2, 3, 4, 5), drawn(2, 3, 1, 3, 3)
    monkeypatch.setattr(trials, "_tried", {})
    for name in ("convolve", "spread", "correlate"):
        real = getattr(depthwise_kernels, name)
        with monkeypatch.context() as patch, caplog.at_level(logging.WARNING, "acclimate"):
            patch.setattr(depthwise_kernels, name, lambda *a, real=real: 1.01 * real(*a))
            trials._tried.clear()
            y = vmap(lambda w, x: functional_call(ours, {"weight": w}, (x,)))(w.to(HERE), x.to(HERE))
        assert "depthwise" in caplog.text
        caplog.clear()
        for c in range(2):
            near(y[c], F.conv2d(x[c].double(), w[c].double(), None, 1, 1, groups=3))


def test_without_kernels_every_bit_is_torch_s(monkeypatch: pytest.MonkeyPatch) -> None:
    """Left out by name, and on a CPU outside of `vmap`."""
    monkeypatch.setenv("ACCLIMATE_WITHOUT", "depthwise")
    for kernel, step in SHAPES:
        ours, plain = layer_of(kernel, step)
        plain = plain.to(HERE)
        vars, x = {n: drawn(2, *p.shape).to(HERE) for n, p in plain.named_parameters()}, drawn(2, 2, 3, 5, 4).to(HERE)
        found, wanted = (tree_leaves(vmap(all_of(net))(vars, x)) for net in (ours, plain))
        assert all(torch.equal(a, b) for a, b in zip(found, wanted, strict=True))
        assert torch.equal(ours(x[0]), plain(x[0]))


def test_which_layers_become_depthwise_ones() -> None:
    def made(*given: int, **more: object) -> nn.Module:
        layer = nn.Conv2d(*given, **more)  # type: ignore[arg-type]
        purify(layer)
        return layer

    assert type(made(4, 4, 3, groups=4)) is PureDepthwise2d
    assert type(made(4, 4, 5, 2, 1, groups=4)) is PureDepthwise2d
    others = [
        made(4, 8, 3, groups=4),
        made(4, 4, 3, groups=2),
        made(4, 4, 7, groups=4),
        made(4, 4, 3, 3, groups=4),
        made(4, 4, 3, dilation=2, groups=4),
        made(4, 4, (3, 5), groups=4),
        made(4, 4, 3, padding="same", groups=4),
        made(4, 4, 3, padding=1, padding_mode="reflect", groups=4),
    ]
    assert {type(layer) for layer in others} == {nn.Conv2d}


class Block(nn.Module):
    """An inverted bottleneck, as MobileNets and EfficientNets have it, with a sum at the end."""

    def __init__(self, step: int) -> None:
        super().__init__()
        self.expand, self.first = nn.Conv2d(8, 16, 1, bias=False), nn.BatchNorm2d(16, track_running_stats=False)
        self.deep, self.second = (
            nn.Conv2d(16, 16, 3, step, 1, groups=16, bias=False),
            nn.BatchNorm2d(16, track_running_stats=False),
        )
        self.project, self.third = nn.Conv2d(16, 8, 1, bias=False), nn.BatchNorm2d(8, track_running_stats=False)
        self.act, self.step = nn.ReLU6(), step

    def forward(self, x: Tensor) -> Tensor:
        y = self.act(self.first(self.expand(x)))
        y = self.third(self.project(self.act(self.second(self.deep(y)))))
        return y if self.step > 1 else x + y


class Copies(TorchDispatchMode):
    """Counts copies of so many numbers or more into another order; the interpreter makes others."""

    def __init__(self, least: int) -> None:
        super().__init__()
        self.least, self.count = least, 0

    def __torch_dispatch__(self, f, types, args=(), kwargs=None):  # type: ignore[no-untyped-def]
        out = f(*args, **(kwargs or {}))
        if f.overloadpacket in (torch.ops.aten.clone, torch.ops.aten.copy_, torch.ops.aten._to_copy):
            source = args[1] if f.overloadpacket is torch.ops.aten.copy_ else args[0]
            self.count += out.numel() >= self.least and source.stride() != out.stride()
        return out


@works
def test_a_network_of_such_blocks_copies_no_images_and_has_its_own_numbers(monkeypatch: pytest.MonkeyPatch) -> None:
    net = nn.Sequential(Block(1), Block(2))
    plain = copy.deepcopy(net).double()
    any_order(net, by_kernel=True)
    purify(net.to(HERE))
    params = {n: (p.dim() == 1) + 0.3 * drawn(2, *p.shape) for n, p in net.named_parameters()}
    x = drawn(2, 3, 8, 6, 6)
    last = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3).to(HERE)

    def of(net: nn.Module):  # type: ignore[no-untyped-def]
        value = lambda p, x: functional_call(net, p, (x,))  # noqa: E731
        return lambda p, x: (value(p, x), grad(lambda p, x: value(p, x).sin().sum(), (0, 1))(p, x))

    here = {n: p.to(HERE) for n, p in params.items()}
    vmap(of(net))(here, last)  # trials
    with Copies(2 * 3 * 8 * 3 * 3) as copies:
        found = tree_leaves(vmap(of(net))(here, last))
    assert copies.count == 0
    with monkeypatch.context() as patch:
        patch.setenv("ACCLIMATE_WITHOUT", "depthwise")
        with Copies(2 * 3 * 8 * 3 * 3) as copies:
            vmap(of(net))(here, last)
    assert copies.count > 0
    for c in range(2):
        wanted = tree_leaves(of(plain.train())({n: p[c].double() for n, p in params.items()}, x[c].double()))
        for mine, theirs in zip(found, wanted, strict=True):
            near(mine[c], theirs, 1e-4, least=0.1)  # norms hide a part of what is before them


class Encoder(nn.Module):
    """Such blocks between a first convolution and a mean over places."""

    def __init__(self) -> None:
        super().__init__()
        self.stem, self.norm, self.act = nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8), nn.ReLU6()
        self.blocks = nn.Sequential(Block(1), Block(2))

    def forward(self, x: Tensor) -> Tensor:
        return self.blocks(self.act(self.norm(self.stem(x)))).mean((2, 3))


@works
def test_a_step_of_mbsl_is_the_same_with_kernels_and_without(monkeypatch: pytest.MonkeyPatch) -> None:
    """Views are a map within that over clients, with weights that they share."""
    torch.manual_seed(0)
    task = Task(Pretrained(Encoder()), (3, 8, 8), 3)
    any_order(task._skeleton("still"), by_kernel=True)
    vars, adapter = task.init(rng.key(0)), MBSL(components=2, opt=SGD(lr=0.1))
    clients = tree.map(lambda v: torch.stack((v, 1.1 * v)).to(HERE), vars)
    x = (127 + 60 * drawn(2, 4, 3, 8, 8)).clamp(0, 255).to(torch.uint8).to(HERE)

    def step(vars: Tree, x: Tensor) -> Tree:
        zero, about = torch.zeros((), device=HERE), {"margin": torch.linspace(0, 1, 4, device=HERE)}
        about |= {"taught": torch.eye(4, 3, device=HERE), "who": torch.arange(4, device=HERE), "x": x}
        own = {"teacher": vars["params"], "student": vars["params"], "opt": adapter.opt.init(vars["params"])}
        now = {**own, "grown": zero + 1, "j": zero}
        predict = lambda model, x, mode: task.apply(model["vars"], x, mode)  # noqa: E731
        return adapter._learn(predict, {"vars": vars}, now, {**about, "delta": zero + 0.5}, rng.key(1))["student"]

    found, runs, seen, run = [], [], [], depthwise_kernels.correlate
    monkeypatch.setattr(depthwise_kernels, "correlate", lambda *a: (runs.append(tuple(a[0].shape[:2])), run(*a))[1])
    for without in ("", "depthwise"):
        monkeypatch.setenv("ACCLIMATE_WITHOUT", without)
        found.append(vmap(step)(clients, x))
        seen.append(len(runs))
    assert seen[0] == seen[1] and {(2, 4), (2, 8)} <= set(runs)
    for name, mine in found[0].items():
        moved, wanted = mine - clients["params"][name], found[1][name] - clients["params"][name]
        near(moved, wanted.double(), 1e-3, least=1e-3)
    assert any((found[0][n] - clients["params"][n]).abs().max() > 1e-3 for n in found[0] if "deep" in n)
