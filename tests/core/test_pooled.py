"""A convolution, pooling and ReLU in one pass, against torch's own layers in double precision: values, gradients, maps.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says.
"""

import copy

import pytest
import torch
from torch import Tensor, nn
from torch.func import functional_call, grad, vjp, vmap

from acclimate.core.nn import box_kernels, cuts, folded_kernels, implicit, kernels, pooled
from acclimate.core.nn.layers import purify
from acclimate.core.nn.products import Geometry
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
CASES = {
    "three channels, bias": (nn.Conv2d(3, 5, 3, padding=1), nn.MaxPool2d(2), nn.ReLU()),
    "ReLU first": (nn.Conv2d(16, 4, 3, bias=False), nn.ReLU(), nn.MaxPool2d(2)),
    "no pooling, bias": (nn.Conv2d(3, 5, 3, padding=1), nn.ReLU()),
    "no pooling, sixteen channels": (nn.Conv2d(16, 4, 3), nn.ReLU()),
    "no pooling, steps of two": (nn.Conv2d(16, 4, 3, stride=2, bias=False), nn.ReLU()),
    "no ReLU, steps of two": (nn.Conv2d(2, 3, 3, stride=2), nn.MaxPool2d(2)),
}


def made(name: str) -> tuple[nn.Sequential, nn.Sequential, dict[str, Tensor], Tensor]:
    """Pure layers and plain ones, two clients' parameters, and their images."""
    g = torch.Generator().manual_seed(0)
    plain = nn.Sequential(*copy.deepcopy(CASES[name]))
    ours = copy.deepcopy(plain).to(HERE)
    purify(ours)
    vars = {n: torch.randn(2, *p.shape, generator=g) for n, p in plain.named_parameters()}
    return ours, plain, vars, torch.randn(2, 2, plain[0].in_channels, 9, 8, generator=g)  # type: ignore[arg-type]


def near(ours: Tensor, true: Tensor) -> None:
    assert ours.shape == true.shape
    assert float((ours.double().cpu() - true).norm()) <= 1e-5 * float(true.norm())


@works
@pytest.mark.parametrize("name", CASES)
def test_values_and_gradients_of_two_orders_are_those_of_the_layers(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain, vars, x = made(name)
    seen, run = [], pooled._at_once
    monkeypatch.setattr(pooled, "_at_once", lambda *a: (seen.append(a[1]), run(*a))[1])

    def all_of(net: nn.Module):  # type: ignore[no-untyped-def]
        def value(vars: dict, x: Tensor) -> Tensor:
            return functional_call(net, vars, (x,))

        def each(vars: dict, x: Tensor) -> tuple:
            slope, back = vjp(grad(lambda v, x: value(v, x).sin().sum(), (0, 1)), vars, x)
            return value(vars, x), slope, back((vars, x))

        return each

    found = vmap(all_of(ours))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE))
    assert seen and set(seen) == {nn.ReLU in map(type, plain)}
    for c in range(2):
        true = all_of(plain)({n: v[c].double() for n, v in vars.items()}, x[c].double())
        flat, wanted = torch.utils._pytree.tree_leaves(found), torch.utils._pytree.tree_leaves(true)
        assert len(flat) == len(wanted)
        for mine, theirs in zip(flat, wanted, strict=True):
            near(mine[c], theirs)


@works
def test_the_layers_run_one_by_one_with_hooks_and_where_only_images_are_many() -> None:
    ours, plain, vars, x = made("three channels, bias")
    one = {n: v[0].to(HERE) for n, v in vars.items()}
    shared = vmap(lambda a: functional_call(ours, one, (a,)))(x.to(HERE))
    true = [functional_call(plain, {n: v[0].double() for n, v in vars.items()}, (a.double(),)) for a in x]
    near(shared, torch.stack(true))
    seen: list[Tensor] = []
    ours[1].register_forward_hook(lambda _m, _a, out: seen.append(out))
    out = vmap(lambda v, a: functional_call(ours, v, (a,)))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE))
    assert len(seen) == 1
    near(out[0], true[0])


@works
def test_two_kernels_give_what_one_gives(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, _, vars, x = made("three channels, bias")
    run = vmap(lambda v, a: functional_call(ours, v, (a,)))
    given = {n: v.to(HERE) for n, v in vars.items()}, x.to(HERE)
    once = run(*given)
    monkeypatch.setattr(implicit, "_measured", lambda *_: {"way": "patches"})
    monkeypatch.setattr(implicit, "_choice", lambda *_: None)
    implicit.forget()
    if HERE.type == "cpu":  # kernels that write patches out do not run here
        monkeypatch.setattr(pooled.conv, "_convolve", lambda x, w, g: (_loop(x, w, g), None))
    torch.testing.assert_close(run(*given), once, rtol=1e-5, atol=1e-5)


def _loop(x: Tensor, w: Tensor, g: object) -> Tensor:
    return torch.stack([nn.functional.conv2d(a, b, None, g.step, g.pad) for a, b in zip(x, w, strict=True)])  # type: ignore[attr-defined]


@works
@pytest.mark.parametrize(
    "case", [(2, 4, (9, 8), 8, 3, 1), (3, 1, (8, 11), 16, 5, 0), (2, 4, (12, 12), 64, 5, 0), (1, 3, (6, 7), 32, 4, 2)]
)
def test_a_layer_folded_with_its_pooling_is_the_layer_and_its_gradient(case: tuple) -> None:
    batch, inputs, image, outputs, kernel, pad = case
    g = torch.Generator().manual_seed(0)
    x = torch.randn(2, batch, *image, inputs, generator=g).permute(0, 1, 4, 2, 3)
    w, bias = torch.randn(2, outputs, inputs, kernel, kernel, generator=g), torch.randn(2, outputs, generator=g)
    geometry = Geometry(image, (kernel, kernel), 1, (pad, pad))
    layer = implicit.layer_of("pooled", x, w, geometry)
    assert folded_kernels.fits("pooled", layer) and folded_kernels.fits("pooled_correlate", layer)
    made = [t.to(HERE) for t in (x, w, bias)]
    full = [nn.functional.conv2d(*(t.double() for t in each), 1, pad) for each in zip(x, w, bias, strict=True)]
    four = torch.stack(full).unfold(3, 2, 2).unfold(4, 2, 2).flatten(5)
    best, choice = four.max(5)
    tile = cuts.folds("pooled", layer, torch.float32)[0]
    y, which = folded_kernels.pooled(made[0], made[1], layer, tile, "ieee", made[2], True)
    near(y, best.relu())
    assert torch.equal(which.cpu(), torch.where(best > 0, choice, 4).to(torch.uint8))

    dy = torch.randn(y.shape, generator=g)
    wanted = w.double().requires_grad_()
    for c in range(2):
        out = nn.functional.conv2d(x[c].double(), wanted[c], bias[c].double(), 1, pad)
        nn.functional.max_pool2d(out, 2).relu().backward(dy[c].double())
    for tile in cuts.folds("pooled_correlate", layer, torch.float32):
        near(folded_kernels.pooled_correlate(made[0], dy.to(HERE), layer, tile, "ieee", which), wanted.grad)
    kinds = {cut.way for cut in implicit.cuts("pooled_correlate", layer, made[0], "fp32")}
    cached = {"cached folded"} if HERE.type == "cuda" else set()
    assert kinds == {"implicit", "folded"} | cached
    few = layer._replace(outputs=12)
    assert not folded_kernels.fits("pooled", few) and not folded_kernels.fits("correlate", layer)
    assert not folded_kernels.fits("pooled", layer._replace(step=2))


def test_boxes_leave_out_taps_that_see_nothing_and_pad_as_little_as_they_can() -> None:
    back = implicit.Layer(64, 10, 10, 32, 14, 14, 5, 5, 1, 4, 4)
    assert box_kernels.box(128, 32, back) == (32, 2, 2)
    # of the 14 x 5 pairs of a pixel and a tap in a row, 10 x 5 see something, and boxes two wide visit 4 more
    assert box_kernels._visits(1, 14, 10, 5, 4) == 50 and 2 * box_kernels._visits(2, 14, 10, 5, 4) == 54
    even = implicit.Layer(16, 32, 32, 16, 32, 32, 3, 3, 1, 1, 1)
    images, tall, wide = box_kernels.box(128, 32, even)
    assert images * tall * wide == 128 and 32 % images == 32 % tall == 32 % wide == 0
    assert box_kernels.box(64, 10, even, 2)[1:] >= (2, 2)


@works
def test_the_weights_gradient_alone_needs_no_full_image(monkeypatch: pytest.MonkeyPatch) -> None:
    ours, plain, vars, x = made("three channels, bias")
    monkeypatch.setattr(pooled, "unpooled", lambda *_: pytest.fail("a full image was made"))

    def slope(net: nn.Module):  # type: ignore[no-untyped-def]
        return grad(lambda v, x: functional_call(net, v, (x,)).sin().sum())

    found = vmap(slope(ours))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE))
    for c in range(2):
        true = slope(plain)({n: v[c].double() for n, v in vars.items()}, x[c].double())
        for name in true:
            near(found[name][c], true[name])


@works
def test_the_gradient_of_that_gradient_is_right_too() -> None:
    ours, plain, vars, x = made("three channels, bias")

    def second(net: nn.Module):  # type: ignore[no-untyped-def]
        first = grad(lambda v, x: functional_call(net, v, (x,)).sin().sum())

        def each(v: dict, x: Tensor) -> dict:
            return grad(lambda v: sum(s.square().sum() for s in first(v, x).values()))(v)

        return each

    found = vmap(second(ours))({n: v.to(HERE) for n, v in vars.items()}, x.to(HERE))
    for c in range(2):
        true = second(plain)({n: v[c].double() for n, v in vars.items()}, x[c].double())
        for name in true:
            near(found[name][c], true[name])


def test_the_boxes_of_a_layer_are_worked_out_once():
    """Every launch asks for them, and they cost as much as a launch does."""
    layer = implicit.Layer(32, 14, 14, 64, 10, 10, 5, 5, 1, 0, 0)
    box_kernels.box.cache_clear()
    found = {box_kernels.box(128, 32, layer, 2) for _ in range(3)}
    assert len(found) == 1 and box_kernels.box.cache_info()[:2] == (2, 1)
