"""Sums over pixels by products of float16, against double precision: whatever the size of a client's numbers.

The kernels run as `test_implicit.py` says; what is tried and what is refused needs no Triton.
"""

import json
import re
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap
from torch.nn import functional as F
from torch.nn.grad import conv2d_weight

from acclimate.core.nn import conv, cuts, halves, implicit, implicit_kernels, kernels
from acclimate.core.nn.implicit_kernels import Layer, Tile
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
TF32 = 2.0**-10
"""How far a product may be from the true one whose two factors are rounded to eleven bits, relative to the norm."""
TILE = Tile(128, 32, 64, 4, 3)


def numbers(*shape: int, seed: int = 0) -> Tensor:
    return torch.randn(shape, generator=torch.Generator().manual_seed(seed)).to(HERE)


def scaled(x: Tensor, sizes: list[float]) -> Tensor:
    """The numbers of each client, that many times as large."""
    return x * torch.tensor(sizes, device=HERE).view(-1, *[1] * (x.dim() - 1))


@works
@pytest.mark.parametrize("block", [16, 64, 4096])
def test_the_largest_of_a_client_comes_to_lie_between_two_powers(block: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(halves, "BLOCK", block)
    monkeypatch.setattr(halves, "PARTS", 4)
    sizes = [1.0, 1e-30, 1e30, 0.0, 1e-6, 1e-42]
    x = scaled(numbers(6, 3, 67).clamp(-1.0, 1.0), sizes)
    x[0, 2, 66], x[4, 0, 0] = 2.0, 2.0**-5  # the last, and the first: the largest of their clients
    found, powers = halves.halved(x)
    assert found.dtype == torch.float16 and found.shape == x.shape
    largest = [float(t.abs().max()) for t in x]
    wanted = [min(14 - int(torch.tensor(v).frexp().exponent) + 1, 126) if v > 1e-38 else 126 for v in largest]
    assert powers.tolist() == wanted and wanted[0] == 13 and wanted[4] == 19
    exact = torch.ldexp(x.double().cpu(), powers.cpu().view(-1, 1, 1))
    assert torch.equal(found.cpu(), exact.to(torch.float16)), "rounded once, of the exact number"
    for client in (0, 1, 2, 4):
        assert 2.0**14 <= float(found[client].abs().max()) <= 2.0**15


@works
def test_what_is_not_finite_stays_and_the_rest_keeps_its_bits() -> None:
    x = numbers(3, 50)
    y = x.clone()
    y[1, 7], y[1, 9], y[1, 11] = torch.inf, -torch.inf, torch.nan
    (plain, power), (found, powers) = halves.halved(x), halves.halved(y)
    assert torch.equal(power, powers), "the largest that is finite counts"
    assert found[1, 7] == torch.inf and found[1, 9] == -torch.inf and found[1, 11].isnan()
    kept = torch.isfinite(y)
    assert torch.equal(plain[kept], found[kept]) and torch.isfinite(plain).all()


SIZES = [
    ([1.0, 1.0], [1.0, 1.0]),
    ([1e-30, 1e30], [1e30, 1e-30]),
    ([1e-6, 1e30], [1e-6, 1e-6]),
    ([1e18, 1e-15], [1e18, 1e-15]),
    ([1e-38, 1e-6], [1e37, 1e-30]),
]
CASES = [(3, 5, (9, 8), 5, 1, 0), (16, 6, (7, 8), 3, 1, 1), (17, 20, (9, 8), 3, 2, 1)]


def sums(case: tuple[Any, ...]) -> tuple[conv.Geometry, Tensor, Tensor, Layer]:
    i, o, image, k, step, pad = case
    g = conv.Geometry(image, (k, k), step, (pad, pad))
    x, dy = numbers(2, 3, i, *image), numbers(2, 3, o, *g.out, seed=1)
    return g, x, dy, implicit.layer_of("correlate", x, dy, g)


def truth(g: conv.Geometry, x: Tensor, dy: Tensor) -> Tensor:
    """The weights' gradient in double precision, client by client."""
    size = (dy.shape[2], x.shape[2], *g.kernel)
    both = zip(x.double().cpu(), dy.double().cpu(), strict=True)
    return torch.stack([conv2d_weight(a, size, b, g.step, g.pad) for a, b in both]).to(HERE)


def near(ours: Tensor, true: Tensor) -> None:
    """As near as TF32 is, for every client on its own."""
    assert ours.dtype == torch.float32 and ours.shape == true.shape
    for mine, t in zip(ours, true, strict=True):
        assert 1e-6 * float(t.norm()) < float((mine.double() - t).norm()) <= TF32 * float(t.norm())


@works
@pytest.mark.parametrize(
    ("case", "sizes"), [*((CASES[0], sizes) for sizes in SIZES), *((case, SIZES[1]) for case in CASES[1:])]
)
def test_a_sum_over_pixels_is_as_near_as_tf32_whatever_the_size(case: tuple, sizes: tuple) -> None:
    g, x, dy, layer = sums(case)
    x, dy = scaled(x, sizes[0]), scaled(dy, sizes[1])
    near(implicit_kernels.correlate(x, dy, layer, TILE, "fp16"), truth(g, x, dy))


@works
def test_parts_of_a_sum_have_the_same_powers(monkeypatch: pytest.MonkeyPatch) -> None:
    g, x, dy, layer = sums(CASES[1])
    monkeypatch.setattr(implicit_kernels, "LEAST", 32)
    monkeypatch.setattr(implicit_kernels, "SPAN", 32)
    x, dy = scaled(x, [1e-20, 1e9]), scaled(dy, [1e-9, 1e20])
    parts = implicit_kernels.parts_of(x, dy, layer, TILE, "fp16", None, False)
    assert len(parts.sums) > 1 and parts.halves
    near(implicit_kernels.correlate(x, dy, layer, TILE, "fp16"), truth(g, x, dy))


@works
@pytest.mark.filterwarnings("ignore:invalid value:RuntimeWarning")  # of the interpreter's product
@pytest.mark.parametrize("zeros", [(True, False), (False, True), (True, True)])
def test_zeros_give_zeros_and_what_is_not_finite_shows_for_its_client_alone(zeros: tuple[bool, bool]) -> None:
    _, x, dy, layer = sums(CASES[0])
    plain = implicit_kernels.correlate(x, dy, layer, TILE, "fp16")
    for t, zero in zip((x, dy), zeros, strict=True):
        t[0] *= not zero
    found = implicit_kernels.correlate(x, dy, layer, TILE, "fp16")
    assert not found[0].any() and torch.equal(found[1], plain[1])
    (x if zeros[0] else dy)[0, 1, 2, 3, 2] = torch.inf if all(zeros) else torch.nan
    found = implicit_kernels.correlate(x, dy, layer, TILE, "fp16")
    assert not torch.isfinite(found[0]).all() and torch.equal(found[1], plain[1])


@works
@pytest.mark.parametrize("sizes", SIZES[:3])
def test_a_sum_with_its_pooling_is_as_near_as_tf32(sizes: tuple) -> None:
    g = conv.Geometry((11, 10), (5, 5), 1, (0, 0))
    x, small = scaled(numbers(2, 3, 4, 11, 10), sizes[0]), scaled(numbers(2, 3, 8, 3, 3, seed=1), sizes[1])
    x[:, :, 3] = 0  # images have a fourth channel of zeros
    layer, which = implicit.layer_of("pooled_correlate", x, small, g), implicit.which_of(numbers(2, 3, 8, 3, 3, seed=2))
    dy = torch.zeros(2, 3, 8, *g.out, device=HERE)
    for place in range(4):
        dy[..., place // 2 : 6 : 2, place % 2 : 6 : 2] = small * (which == place)
    ours = implicit_kernels.pooled_correlate(x, small, layer, TILE, "fp16", which, 3)
    near(ours, truth(g, x, dy)[:, :, :3])


@works
def test_gradients_of_two_orders_under_nested_maps(monkeypatch: pytest.MonkeyPatch) -> None:
    def by_halves(kind: Any, layer: Layer, x: Tensor, precision: str) -> list[cuts.Cut]:
        return [cuts.Cut("implicit", TILE, "fp16" if kind in cuts.SUMS else "ieee")]

    monkeypatch.setattr(implicit, "cuts", by_halves)
    made: list[int] = []
    halved = halves.halved
    monkeypatch.setattr(halves, "halved", lambda x: (made.append(len(x)), halved(x))[1])
    x, w = numbers(2, 2, 1, 2, 5, 4), numbers(2, 2, 3, 2, 3, 3, seed=1)
    layer = conv.PureConv2d(1, 1, 1, padding=1, bias=False)

    def slopes(mine: bool) -> Any:
        def f(w: Tensor, x: Tensor) -> Tensor:
            return (layer._conv_forward(x, w, None) if mine else F.conv2d(x, w, None, 1, 1)).sin().sum()

        return grad(f), grad(lambda w, x: grad(f)(w, x).square().sum())

    for order, (mine, plain) in enumerate(zip(slopes(True), slopes(False), strict=True)):
        ours = vmap(vmap(mine))(w, x)
        true = torch.stack([plain(a.double(), b.double()) for a, b in zip(w.flatten(0, 1), x.flatten(0, 1))])  # noqa: B905
        assert made and set(made) == {4}, "four clients in one product"
        apart = (ours.flatten(0, 1).double() - true).flatten(1).norm(dim=1) / true.flatten(1).norm(dim=1)
        assert 1e-6 < float(apart.max()) <= (order + 1) * TF32


@pytest.mark.skipif(not (kernels.AVAILABLE and torch.cuda.is_available()), reason="no CUDA device")
def test_a_recording_follows_the_size_of_the_numbers_and_repeats_to_the_bit() -> None:
    g, x, dy, layer = sums((32, 64, (14, 14), 5, 1, 0))
    tried = [cut for cut in cuts.cuts("correlate", layer, x, "tf32") if cut.dot == "fp16"]
    assert tried
    for cut in tried:
        first = implicit_kernels.correlate(x, dy, layer, cut.tile, cut.dot)
        graph = torch.cuda.CUDAGraph()
        torch.cuda.synchronize()
        with torch.cuda.graph(graph):
            found = implicit_kernels.correlate(x, dy, layer, cut.tile, cut.dot)
        graph.replay()
        assert torch.equal(found, first)
        kept = x.clone()
        x.copy_(scaled(x, [1e-20, 1e20]))
        graph.replay()
        near(found, truth(g, x, dy))
        assert torch.equal(found, implicit_kernels.correlate(x, dy, layer, cut.tile, cut.dot))
        x.copy_(kept)


LAYERS = {
    "correlate": Layer(32, 14, 14, 64, 10, 10, 5, 5, 1, 0, 0),
    "pooled_correlate": Layer(4, 32, 32, 32, 28, 28, 5, 5, 1, 0, 0),
}


@pytest.mark.parametrize("kind", LAYERS)
def test_halves_are_tried_after_others_and_only_where_tf32_is_allowed(kind: Any) -> None:
    x: Any = SimpleNamespace(dtype=torch.float32, is_cuda=True)
    tried = cuts.cuts(kind, LAYERS[kind], x, "tf32")
    dots = [cut.dot for cut in tried]
    assert set(dots) == {"bf16x3", "fp16"} and dots == sorted(dots) and len(set(tried)) == len(tried) <= 5
    wanted = Tile(128, 32, 64, 4, 3) if kind == "pooled_correlate" else Tile(64, 64, 64, 4, 4)
    assert [(cut.way, cut.tile) for cut in tried if cut.dot == "fp16"] == [("implicit", wanted)]
    narrow = LAYERS["pooled_correlate"]._replace(outputs=8)
    tried = cuts.cuts("pooled_correlate", narrow, x, "tf32")
    assert len(set(tried)) == len(tried) == 3
    others = [("fp32", torch.float32, True), ("bfloat16", torch.bfloat16, True), ("tf32", torch.float32, False)]
    for precision, dtype, is_cuda in others:
        x = SimpleNamespace(dtype=dtype, is_cuda=is_cuda)
        assert "fp16" not in {cut.dot for cut in cuts.cuts(kind, LAYERS[kind], x, precision)}


def test_a_choice_of_halves_in_folded_kernels_of_an_earlier_version_is_measured_again() -> None:
    tile = [64, 64, 64, 4, 3]
    key, other = (implicit.name("pooled_correlate", LAYERS["pooled_correlate"], n, 32, "tf32", "old") for n in (60, 61))
    before = dict(implicit.choices())
    kept = {"way": "folded", "tile": tile, "dot": "bf16x3"}
    implicit.use_choices({key: {"way": "folded", "tile": tile, "dot": "fp16", "ms": 0.1}, other: kept})
    assert implicit.choices() == {**before, other: kept}


def test_a_choice_of_halves_is_read_again_and_refused_for_other_products() -> None:
    layer, choice = LAYERS["correlate"], {"way": "implicit", "tile": [64, 64, 64, 4, 4], "dot": "fp16", "ms": 0.1}
    key = implicit.name("correlate", layer, 60, 32, "tf32", "some device")
    implicit.use_choices(json.loads(json.dumps({key: choice})))
    assert implicit.choices()[key] == choice
    for kind, precision in (("spread", "tf32"), ("pooled", "tf32"), ("correlate", "fp32"), ("correlate", "bfloat16")):
        wrong = implicit.name(kind, layer, 60, 32, precision, "some device")  # type: ignore[arg-type]
        with pytest.raises(ValueError, match="'dot' one of") as told:
            implicit.use_choices({wrong: choice})
        assert wrong in str(told.value) and "fp16" not in str(told.value).split("'dot' one of")[1]


@pytest.mark.skipif(not kernels.AVAILABLE or kernels.INTERPRETED, reason="needs Triton's compiler, and no GPU")
@pytest.mark.parametrize(("dtype", "dot"), [("fp16", "tf32"), ("fp32", "bf16x3")])
def test_channels_of_one_tap_are_fetched_sixteen_bytes_at_a_time(dtype: str, dot: str) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel: Any = implicit_kernels._correlate
    layer, tile = Layer(64, 32, 32, 64, 32, 32, 3, 3, 1, 1, 1), Tile(64, 64, 32, 4, 4)
    given = [f"*{dtype}", f"*{dtype}", "*fp32", "*fp32", "i32", "i32", "i32"]
    constants = [*layer, False, False, *tile[:3], dot]
    names = kernel.arg_names
    source = ASTSource(
        fn=kernel,
        signature=dict(zip(names, [*given, *["constexpr"] * len(constants)], strict=True)),
        constexprs={(len(given) + at,): value for at, value in enumerate(constants)},
        attrs={(at,): [["tt.divisibility", 16]] for at in (0, 1, 2, 3)},
    )
    options = {"num_warps": tile.warps, "num_stages": tile.stages, "enable_fp_fusion": True}
    text = triton.compile(source, target=GPUTarget("cuda", 90, 32), options=options).asm["ptx"]
    sizes = re.findall(r"cp\.async\.c[ag]\.shared\.global \[.*?\], \[.*?\], (\w+)", text)
    assert sizes and set(sizes) == {"0x10"} and "ld.global" not in text
