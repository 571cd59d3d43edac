"""Kernels whose loads are cached give what the others give, and their copies pass through a processor's own cache.

They run on a CUDA device, or interpreted on a CPU, as `test_implicit.py` says; what is compiled needs Triton alone.
"""

import pytest
import torch
from torch import Tensor
from torch.nn.grad import conv2d_input

from acclimate.core.nn import caching, cuts, folded_kernels, implicit, implicit_kernels, kernels
from acclimate.core.nn.cutting import Layer, Tile

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
compiles = pytest.mark.skipif(
    not kernels.AVAILABLE or kernels.INTERPRETED, reason="needs Triton, and no TRITON_INTERPRET"
)
FIRST, SECOND = Layer(4, 8, 9, 8, 6, 7, 3, 3, 1, 0, 0), Layer(20, 6, 5, 6, 6, 5, 3, 3, 1, 1, 1)
TILE = Tile(32, 16, 16, 4, 2)


def drawn(*size: int) -> Tensor:
    return torch.randn(size, generator=torch.Generator().manual_seed(sum(size))).to(HERE)


def images(layer: Layer, outputs: bool = False) -> Tensor:
    """Images of two clients of two each, or what a layer makes of them."""
    return drawn(2, 2, *((layer.outputs, *layer[4:6]) if outputs else layer[:3]))


@works
def test_every_product_of_a_layer_is_the_same_with_cached_loads() -> None:
    x, dy, w = images(SECOND), images(SECOND, True), drawn(2, SECOND.outputs, SECOND.inputs, 3, 3)
    for kind, a, b, more in (
        ("convolve", x, w, ()),
        ("spread", dy, w, ()),
        ("correlate", x, dy, ()),
        ("pooled", x, w, (None, True)),
    ):
        plain, cached = (implicit._run(kind, a, b, SECOND, implicit.Cut(way, TILE, "ieee"), *more) for way in WAYS)
        for one, other in zip(parts(plain), parts(cached), strict=True):
            assert float(one.float().abs().sum()) > 0
            if kind in cuts.SUMS or one.dtype == torch.uint8:
                assert torch.equal(one, other), kind
            else:  # all taps of some channels first: sums of another order
                assert float((one - other).norm()) <= 1e-6 * float(one.norm()), kind


WAYS = ("implicit", "cached implicit")


@works
@pytest.mark.parametrize("way", ["folded", "cached folded"])
@pytest.mark.parametrize("case", [(5, 16, 5, 6, 3, 1), (2, 32, 6, 5, 4, 2), (4, 16, 4, 4, 2, 0)])
def test_a_folded_gradient_of_images_is_that_of_a_loop_in_double_precision(case: tuple, way: str) -> None:
    inputs, outputs, height, width, k, pad = case
    layer = Layer(inputs, height, width, outputs, height + 2 * pad - k + 1, width + 2 * pad - k + 1, k, k, 1, pad, pad)
    assert folded_kernels.fits("spread", layer)
    dy, w = images(layer, True), drawn(2, outputs, inputs, k, k)
    shape = (2, inputs, height, width)
    found = [conv2d_input(shape, b.double().cpu(), a.double().cpu(), 1, pad) for a, b in zip(dy, w, strict=True)]
    true = torch.stack(found)
    laid = w if k == 2 else w.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)  # as it is while training
    ours = implicit._run("spread", dy, laid, layer, implicit.Cut(way, Tile(64, 32, 16, 4, 2), "ieee"))
    assert ours.shape == true.shape
    assert float((ours.double().cpu() - true).norm()) <= 2e-6 * float(true.norm())


def test_which_gradients_of_images_can_be_folded() -> None:
    layer = SECOND._replace(outputs=16)
    assert folded_kernels.fits("spread", layer) and not folded_kernels.fits("convolve", layer)
    for other in (
        layer._replace(step=2),
        layer._replace(inputs=33),
        layer._replace(outputs=20),
        layer._replace(pad_width=3),
        layer._replace(kernel_height=1, kernel_width=1, pad_height=0, pad_width=0),
    ):
        assert not folded_kernels.fits("spread", other)
    assert cuts.folds("spread", layer._replace(inputs=32), torch.float32) == [Tile(128, 128, 16, 8, 3)]


def parts(found: Tensor | tuple[Tensor, ...]) -> tuple[Tensor, ...]:
    return found if isinstance(found, tuple) else (found,)


@works
@pytest.mark.parametrize("name", ["implicit", "folded"])
def test_a_first_layer_and_its_gradient_are_the_same_with_cached_loads(name: str) -> None:
    x, w = images(FIRST), drawn(2, FIRST.outputs, 3, 3, 3)
    assert folded_kernels.fits("pooled", FIRST)
    tile = Tile(32, 32, 16, 4, 2)
    found = []
    for way in (name, f"cached {name}"):
        cut = implicit.Cut(way, tile, "ieee")
        y, which = implicit._run("pooled", x, w, FIRST, cut, None, True)
        dw = implicit._run("pooled_correlate", x, y + 1, FIRST, cut, which, 3)
        found.append((y, which, dw))
    for one, other in zip(*found, strict=True):
        assert torch.equal(one, other)
        assert float(one.float().abs().sum()) > 0


@works
def test_a_cached_way_is_a_choice_that_can_be_put_back() -> None:
    before = implicit.choices()
    try:
        implicit.use_choices({"one": {"way": "cached folded", "tile": list(TILE), "dot": "bf16x3"}})
        assert implicit._cut_of(implicit.choices()["one"], "tf32") == implicit.Cut("cached folded", TILE, "bf16x3")
        with pytest.raises(ValueError, match="cached boxes"):
            implicit.use_choices({"two": {"way": "cached boxes", "tile": list(TILE)}})
    finally:
        implicit.forget()
        implicit.use_choices(before)


class Somewhere:
    """A tensor of a GPU, as far as cuts ask."""

    dtype, is_cuda = torch.float32, True


def test_cached_loads_are_tried_where_neighbours_share_a_patch() -> None:
    x: Tensor = Somewhere()  # type: ignore[assignment]
    layer = SECOND._replace(inputs=32, outputs=64)
    tiles = cuts.cached("correlate", layer, x)
    assert tiles == [Tile(64, 64, 32, 4, 3), Tile(128, 64, 32, 4, 2)]
    assert cuts.cached("correlate", layer._replace(inputs=64), x) == tiles[1:]  # several taps, or nothing to share
    assert cuts.cached("correlate", layer._replace(inputs=128), x) == []
    assert {tile.depth for tile in tiles} == {tile.depth for tile in cuts.candidates("correlate", layer, x.dtype)}
    for kind, inner, columns in (("convolve", "inputs", 64), ("pooled", "inputs", 64), ("spread", "outputs", 32)):
        assert cuts.cached(kind, layer, x) == [Tile(128, columns, 32, 4, 2)]
        assert cuts.cached(kind, layer._replace(**{inner: 256}), x) == []  # more than the cache holds
    assert cuts.cached_folds("spread", layer, x) == [Tile(64, 128, 32, 4, 2)]
    assert cuts.cached_folds("pooled_correlate", FIRST, x) == cuts.folds("pooled_correlate", FIRST, x.dtype)
    for apart in (layer._replace(kernel_height=1, kernel_width=1), layer._replace(step=2), layer._replace(inputs=4)):
        assert cuts.cached("convolve", apart, x) == []
    x.is_cuda = False  # type: ignore[misc]
    assert cuts.cached("correlate", layer, x) == cuts.cached_folds("spread", layer, x) == []


def test_a_wide_layer_has_no_tile_that_fetches_more_for_as_many_numbers() -> None:
    wide = SECOND._replace(inputs=128, outputs=128)
    for kind in ("convolve", "spread"):
        assert cuts.candidates(kind, wide, torch.float32) == [Tile(128, 128, 32, 8, 3), Tile(128, 64, 32, 4, 3)]
    assert cuts.candidates("convolve", wide._replace(outputs=64), torch.float32)[1] == Tile(256, 64, 32, 8, 3)


@compiles
@pytest.mark.parametrize("cached", [False, True])
def test_cached_loads_are_copies_that_pass_through_the_cache(cached: bool) -> None:
    import triton
    from triton.backends.compiler import GPUTarget
    from triton.compiler import ASTSource

    kernel, sizes = implicit_kernels._correlate, SECOND._replace(inputs=32, outputs=64)
    names = kernel.arg_names
    given = dict(zip(names[7:], (*sizes, False, False, cached, 64, 64, 32, "bf16x3"), strict=True))
    types = dict.fromkeys(names[:4], "*fp32") | dict.fromkeys(names[4:7], "i32") | dict.fromkeys(given, "constexpr")
    constants = {(names.index(name),): value for name, value in given.items()}
    aligned = {(i,): [["tt.divisibility", 16]] for i in range(5)}
    source = ASTSource(kernel, types, constants, aligned)
    made = triton.compile(source, target=GPUTarget("cuda", 90, 32), options={"num_warps": 4, "num_stages": 3})
    assert ("cp.async.ca" in made.asm["ptx"]) == cached
    assert "cp.async.cg" in made.asm["ptx"]  # what nobody shares


def test_the_condition_is_true_of_all_numbers() -> None:
    if kernels.AVAILABLE:
        condition = getattr(caching.paired, "fn", caching.paired)
    else:
        condition = caching.paired
    k = torch.arange(1024)
    for batch in (0, 1, 32, 65536, 2**31 - 1):
        for bits in (16, 32):
            assert bool(condition(k, batch, bits).all())
