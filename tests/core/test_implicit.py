"""Convolutions that gather patches inside the product, against double precision: values, gradients, maps.

They run on a CUDA device, or interpreted on a CPU, which takes Triton alone:
`TRITON_INTERPRET=1 PYTHONPATH=src:tests python -m pytest --noconftest tests/core/test_implicit.py`.
"""

import json

import pytest
import torch
from torch import Tensor
from torch.func import grad, vjp, vmap
from torch.nn import functional as F
from torch.nn.grad import conv2d_input, conv2d_weight

from acclimate.core.nn import conv, cuts, implicit, implicit_kernels, kernels, point_kernels
from acclimate.core.nn.implicit_kernels import Layer, Tile
from by_kernel import every_shape_by_its_kernel  # noqa: F401

HERE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
works = pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
on_a_gpu = pytest.mark.skipif(not (kernels.AVAILABLE and torch.cuda.is_available()), reason="no CUDA device")
MEASURED = implicit._measured
CASES = [
    (3, 5, (9, 8), 5, 1, 0),
    (3, 32, (8, 8), 3, 1, 1),
    (16, 6, (7, 8), 3, 1, 1),
    (17, 20, (9, 8), 3, 2, 1),
    (32, 3, (9, 11), 1, 2, 0),
    (2, 7, (10, 9), 3, 3, 2),
    (20, 40, (6, 5), 5, 1, 0),
    (64, 16, (5, 5), 3, 1, 1),
    (24, 40, (6, 5), 1, 1, 0),
    (7, 33, (3, 4), 1, 1, 0),
]
"""Input channels, output channels, image, kernel, step, padding."""


def near(ours: Tensor, true: Tensor, share: float = 2e-6) -> None:
    """Within a few roundings of float32, relative to the norm."""
    assert ours.shape == true.shape
    assert float((ours.double() - true).norm()) <= share * float(true.norm())


def made(case: tuple, clients: int = 2, batch: int = 2) -> tuple[conv.Geometry, Tensor, Tensor, Tensor]:
    i, o, image, k, step, pad = case
    geometry, g = conv.Geometry(image, (k, k), step, (pad, pad)), torch.Generator().manual_seed(0)
    shapes = ((clients, batch, i, *image), (clients, o, i, k, k), (clients, batch, o, *geometry.out))
    x, w, dy = (torch.randn(s, generator=g).to(HERE) for s in shapes)
    return geometry, x, w, dy


def truths(g: conv.Geometry, x: Tensor, w: Tensor, dy: Tensor) -> tuple[Tensor, ...]:
    """The three products in double precision, by torch's own convolution, client by client."""
    x, w, dy = (t.double().cpu() for t in (x, w, dy))
    y = [F.conv2d(a, b, None, g.step, g.pad) for a, b in zip(x, w, strict=True)]
    dx = [conv2d_input(x.shape[1:], b, a, g.step, g.pad) for a, b in zip(dy, w, strict=True)]
    dw = [conv2d_weight(a, w.shape[1:], b, g.step, g.pad) for a, b in zip(x, dy, strict=True)]
    return tuple(torch.stack(t).to(HERE) for t in (y, dx, dw))


@works
@pytest.mark.parametrize("case", CASES)
def test_the_three_products_are_those_of_a_loop_in_double_precision(case: tuple) -> None:
    g, x, w, dy = made(case)
    ours = conv._convolve(x, w, g)[0], conv._spread(dy, w, g), conv._correlate(x, dy, conv._nothing(x), g)
    assert ours[0].stride(2) == 1, "this was not the kernel"
    for mine, true in zip(ours, truths(g, x, w, dy), strict=True):
        near(mine, true)


TILES = [Tile(16, 16, 16, 4, 2), Tile(64, 32, 32, 4, 3), Tile(128, 64, 16, 8, 2)]


@works
@pytest.mark.parametrize("case", CASES[2:5])
@pytest.mark.parametrize("tile", TILES)
def test_cuts_that_do_not_divide_the_sizes_change_nothing(case: tuple, tile: Tile) -> None:
    g, x, w, dy = made(case, clients=3, batch=3)
    layer = implicit.layer_of("convolve", x, w, g)
    ours = (
        implicit_kernels.convolve(x, w, layer, tile, "ieee"),
        implicit_kernels.spread(dy, w, layer, tile, "ieee"),
        implicit_kernels.correlate(x, dy, layer, tile, "ieee"),
    )
    for mine, true in zip(ours, truths(g, x, w, dy), strict=True):
        near(mine, true)


@works
@pytest.mark.parametrize("case", CASES[-2:])
@pytest.mark.parametrize("tile", TILES[:2])
def test_products_of_single_pixels_have_the_bits_of_products_of_patches(case: tuple, tile: Tile) -> None:
    """Their kernels do not know the sizes, and sum in the same order."""
    g, x, w, dy = made(case, clients=2, batch=3)
    layer, bias = implicit.layer_of("convolve", x, w, g), torch.linspace(-1, 1, 2 * case[1], device=HERE).view(2, -1)
    for kind, a, b, *more in (
        ("convolve", x, w),
        ("spread", dy, w),
        ("correlate", x, dy),
        ("convolve", x, w, bias, True),
    ):
        assert point_kernels.fits(kind, layer)
        mine, other = (getattr(k, kind)(a, b, layer, tile, "ieee", *more) for k in (point_kernels, implicit_kernels))
        assert torch.equal(mine, other) and mine.stride() == other.stride()


def test_a_pixel_that_sees_itself_alone_is_not_written_out() -> None:
    """Without any kernel; and a convolution does not give its own image back as patches to keep."""
    g, x, w, _ = made((24, 5, (4, 3), 1, 1, 0), clients=1)
    x = x.permute(0, 1, 3, 4, 2).contiguous().permute(0, 1, 4, 2, 3)
    seen = kernels.patches(x[0], g.out, g.kernel, g.step, g.pad)
    assert seen.data_ptr() == x.data_ptr() and torch.equal(seen, x[0].permute(0, 2, 3, 1).flatten(1, 2))
    assert torch.equal(kernels.unpatch(seen, 24, g.image, g.out, g.kernel, g.step, g.pad), x[0])
    with implicit.resting(written=True):
        y, kept = conv._convolve(x, w, g)
    assert not kept.numel()
    near(y, truths(g, x, w, y)[0])


def test_kernels_for_single_pixels_are_tried_where_each_pixel_is_seen_alone() -> None:
    x = torch.zeros(1, 2, 32, 8, 8)
    for kind in ("convolve", "spread", "correlate"):
        for precision in ("fp32", "tf32"):
            alone = cuts.cuts(kind, Layer(32, 8, 8, 96, 8, 8, 1, 1, 1, 0, 0), x, precision)
            assert alone and {cut.way for cut in alone} == {"points"}
    for step, pad, k in ((2, 0, 1), (1, 1, 1), (1, 1, 3)):
        out = (8 + 2 * pad - k) // step + 1
        tried = cuts.cuts("convolve", Layer(32, 8, 8, 96, out, out, k, k, step, pad, pad), x, "tf32")
        assert tried and "points" not in {cut.way for cut in tried}


@works
def test_a_sum_over_pixels_in_parts_is_the_same_whatever_comes_out_first(monkeypatch: pytest.MonkeyPatch) -> None:
    g, x, w, dy = made(CASES[2], batch=9)
    layer, tile = implicit.layer_of("correlate", x, dy, g), Tile(64, 16, 16, 4, 2)
    monkeypatch.setattr(implicit_kernels, "LEAST", 32)
    many = [implicit_kernels.correlate(x, dy, layer, tile, "tf32x3") for _ in range(2)]
    monkeypatch.setattr(implicit_kernels, "PROGRAMS", 1)
    one = implicit_kernels.correlate(x, dy, layer, tile, "tf32x3")
    assert torch.equal(*many) and not torch.equal(many[0], one)  # there were parts
    near(many[0], truths(g, x, w, dy)[2])
    near(one, truths(g, x, w, dy)[2])


def loss(step: int, pad: int, mine: bool):  # type: ignore[no-untyped-def]
    """A curved function of a convolution: ours, or torch's own."""
    layer = conv.PureConv2d(1, 1, 1, stride=step, padding=pad, bias=False)

    def f(x: Tensor, w: Tensor) -> Tensor:
        return (layer._conv_forward(x, w, None) if mine else F.conv2d(x, w, None, step, pad)).sin().sum()

    return f


@works
@pytest.mark.parametrize("case", [CASES[0], CASES[2], CASES[3]])
@pytest.mark.parametrize("dims", [(0, 0), (0, None), (None, 0)])
def test_gradients_of_first_and_second_order_under_a_map(case: tuple, dims: tuple) -> None:
    _, x, w, _ = made(case, clients=2, batch=1)
    args = [t if d is not None else t[0] for t, d in zip((x, w), dims, strict=True)]
    way = [torch.randn(t.shape, generator=torch.Generator().manual_seed(1)).to(HERE) for t in args]

    def both(mine: bool):  # type: ignore[no-untyped-def]
        first = grad(loss(*case[4:], mine), (0, 1))

        def second(x: Tensor, w: Tensor, dx: Tensor, dw: Tensor) -> tuple:
            slope, back = vjp(first, x, w)
            return slope, back((dx, dw))

        return second

    ours = vmap(both(True), in_dims=(*dims, *dims))(*args, *way)
    every = [t.double().cpu() for t in (*args, *way)]
    each = [
        both(False)(*(t if d is None else t[c] for t, d in zip(every, (*dims, *dims), strict=True))) for c in range(2)
    ]
    for order in range(2):
        for which in range(2):
            true = torch.stack([e[order][which] for e in each]).to(HERE)
            near(ours[order][which], true, 1e-5)


@works
def test_third_order_and_nested_maps_join_the_client_axis() -> None:
    case = CASES[2]
    _, x, w, _ = made(case, clients=4, batch=1)
    x, w = x.unflatten(0, (2, 2)), w.unflatten(0, (2, 2))

    def third(mine: bool):  # type: ignore[no-untyped-def]
        f = loss(*case[4:], mine)
        return grad(lambda w, x: grad(lambda w, x: grad(f, 1)(x, w).square().sum())(w, x).square().sum())

    def nested(mine: bool):  # type: ignore[no-untyped-def]
        return vmap(vmap(third(mine), in_dims=(None, 0)))

    ours = nested(True)(w[:, 0], x)
    true = torch.stack(
        [torch.stack([third(False)(w[a, 0].double(), x[a, b].double()) for b in (0, 1)]) for a in (0, 1)]
    )
    near(ours, true, 1e-4)
    both = vmap(vmap(grad(loss(*case[4:], True), (0, 1))))(x, w)
    plain = grad(loss(*case[4:], False), (0, 1))
    for mine, t in zip(both, plain(x[1, 0].double(), w[1, 0].double()), strict=True):
        near(mine[1, 0], t)


@works
def test_reduced_precision_is_as_far_off_as_it_should_be() -> None:
    if HERE.type != "cuda":
        pytest.skip("the interpreter computes in full precision")
    g, x, w, dy = made((32, 64, (14, 14), 5, 1, 0), batch=32)
    layer, true = implicit.layer_of("convolve", x, w, g), truths(g, x, w, dy)
    for kind, t in zip(("convolve", "spread", "correlate"), true, strict=True):
        a, b = {"convolve": (x, w), "spread": (dy, w), "correlate": (x, dy)}[kind]
        tile, far = cuts.candidates(kind, layer, torch.float32)[0], {}  # type: ignore[arg-type]
        for name in ("ieee", "tf32x3", "tf32"):
            far[name] = float((getattr(implicit_kernels, kind)(a, b, layer, tile, name) - t).norm() / t.norm())
        half = getattr(implicit_kernels, kind)(a.bfloat16(), b.bfloat16(), layer, tile, "tf32")
        torchs = {"convolve": conv._convolve, "spread": conv._spread, "correlate": conv._correlate}[kind]
        with implicit.resting():
            plain = torchs(a, b, *([conv._nothing(a)] if kind == "correlate" else []), g)
        plain = plain[0] if kind == "convolve" else plain
        assert far["ieee"] < 2e-6 and far["tf32x3"] < 4 * float((plain - t).norm() / t.norm()) + 1e-6
        assert 1e-5 < far["tf32"] < 2e-3
        assert 1e-4 < float((half - t).norm() / t.norm()) < 2e-2


@works
def test_half_precision_is_computed_in_float32_and_rounded_once() -> None:
    kind_of = torch.bfloat16 if HERE.type == "cuda" else torch.float16  # no bfloat16 in the interpreter
    g, x, w, dy = made(CASES[2])
    x, w, dy = (t.to(kind_of) for t in (x, w, dy))
    layer = implicit.layer_of("convolve", x, w, g)
    true = truths(g, x, w, dy)
    for kind, a, b, t in zip(("convolve", "spread", "correlate"), (x, dy, x), (w, w, dy), true, strict=True):
        ours = getattr(implicit_kernels, kind)(a, b, layer, TILES[1], "tf32")
        assert ours.dtype == kind_of
        near(ours, t, torch.finfo(kind_of).eps / 2)


def test_choices_travel_as_json_and_wrong_ones_are_refused() -> None:
    layer = Layer(3, 8, 8, 4, 6, 6, 3, 3, 1, 0, 0)
    key = implicit.name("convolve", layer, 20, 30, "tf32", "some device")
    assert key == implicit.name("convolve", layer, 32, 32, "tf32", "some device")
    assert key != implicit.name("spread", layer, 20, 30, "tf32", "some device")
    given = {key: {"way": "implicit", "tile": [128, 64, 32, 4, 3], "ms": 0.1}, "other": {"way": "patches"}}
    given["alone"] = {"way": "written", "patches_ms": 0.3, "written_ms": 0.2}
    implicit.use_choices(json.loads(json.dumps(given)))
    assert implicit.choices() == given
    for wrong in ({"way": "implicit"}, {"way": "implicit", "tile": [1, 2]}, {"way": "fast"}, {}, 3):
        with pytest.raises(ValueError, match="choice of 'a shape'"):
            implicit.use_choices({"a shape": wrong})  # type: ignore[dict-item]
    assert implicit.choices() == given


def test_the_fastest_is_chosen_and_of_nearly_equal_ones_the_first() -> None:
    a, b, c = (implicit.Cut("boxes", tile, "tf32") for tile in TILES)
    assert implicit.best({a: 1.02, b: 1.0, c: 2.0}, 3.0)["tile"] == list(a.tile)
    found = implicit.best({a: 1.5, b: 1.0, c: 2.0}, 3.0)
    assert found == {"way": "boxes", "tile": list(b.tile), "dot": "tf32", "ms": 1.0, "patches_ms": 3.0}
    assert implicit.best({a: 1.5, b: 1.0}, 0.9) == {"way": "patches", "patches_ms": 0.9, "ms": 1.0}
    assert implicit.best({}, 0.9) == {"way": "patches", "patches_ms": 0.9}


def test_one_client_alone_goes_the_fastest_of_three_ways() -> None:
    cut = implicit.Cut("boxes", TILES[0], "tf32")
    both = {"patches_ms": 3.0, "written_ms": 2.0}
    chosen = {"way": "boxes", "tile": list(cut.tile), "dot": "tf32", "ms": 1.0}
    assert implicit.best({cut: 1.0}, 3.0, 2.0) == chosen | both
    assert implicit.best({cut: 2.5}, 3.0, 2.0) == {"way": "written", "ms": 2.5, **both}
    assert implicit.best({}, 3.0, 2.0) == {"way": "written", **both}
    assert implicit.best({cut: 2.5}, 1.0, 2.0)["way"] == "patches"
    assert implicit.best({cut: 2.5}, 2.0, 2.0)["way"] == "patches"


@works
@pytest.mark.parametrize("batch", [1, 70])
def test_one_client_alone_is_worth_a_kernel_sooner(batch: int, monkeypatch: pytest.MonkeyPatch) -> None:
    g, x, w, _ = made((3, 5, (5, 5), 3, 1, 0), batch=batch)
    size = batch * 9 * 9 * 3 * 5
    monkeypatch.setattr(implicit, "LEAST", 2 * size + 1)
    for least, kernel in ((size, True), (size + 1, False)):
        monkeypatch.setattr(implicit, "ALONE", least)
        implicit.forget()
        assert (implicit.product("convolve", conv._spread, x[:1], w[:1], g) is not None) is kernel
    assert implicit.product("convolve", conv._spread, x, w, g) is None, "two clients are no lone one"


@works
@pytest.mark.parametrize("case", CASES[1:4])
def test_the_written_patches_of_one_client_give_the_three_products(case: tuple) -> None:
    g, x, w, dy = made(case, clients=1)
    none = conv._nothing(x)
    with implicit.resting(written=True):
        (y, seen), dx, dw = conv._convolve(x, w, g), conv._spread(dy, w, g), conv._correlate(x, dy, none, g)
        again = conv._correlate(x, dy, seen, g)
    assert seen.shape[-1] == -(-case[0] * case[3] ** 2 // 8) * 8, "no patches were written"
    for mine, true in zip((y, dx, dw, again), (*(t := truths(g, x, w, dy)), t[2]), strict=True):
        near(mine, true)


@on_a_gpu
@pytest.mark.parametrize("way", ["patches", "written"])
def test_a_choice_for_one_client_is_followed(way: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "_measured", lambda *_: {"way": way})
    g, x, w, dy = made(CASES[2], clients=1)
    y, seen = conv._convolve(x, w, g)
    assert (seen.shape[-1] > 0) is (way == "written")
    found = y, conv._spread(dy, w, g), conv._correlate(x, dy, seen, g)
    for mine, true in zip(found, truths(g, x, w, dy), strict=True):
        near(mine, true)


@on_a_gpu
def test_torchs_own_and_written_patches_are_measured_for_one_client(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "_measured", MEASURED)
    g, x, w, dy = made((4, 32, (32, 32), 5, 1, 0), clients=1, batch=20)
    found = conv._convolve(x, w, g)[0], conv._spread(dy, w, g), conv._correlate(x, dy, conv._nothing(x), g)
    for mine, true in zip(found, truths(g, x, w, dy), strict=True):
        near(mine, true)
    assert len(implicit.choices()) == 3
    for choice in implicit.choices().values():
        assert min(choice["patches_ms"], choice["written_ms"], choice["ms"]) > 0


@works
def test_who_asks_goes_without_it(monkeypatch: pytest.MonkeyPatch) -> None:
    g, x, w, _ = made(CASES[2])
    assert implicit.product("convolve", conv._spread, x, w, g) is not None
    monkeypatch.setenv("ACCLIMATE_WITHOUT", "norms,implicit")
    assert implicit.product("convolve", conv._spread, x, w, g) is None


@on_a_gpu
@pytest.mark.parametrize("precision", ["tf32", "fp32"])
@pytest.mark.parametrize(
    "case",
    [
        (32, 64, (14, 14), 5, 1, 0),
        (4, 32, (32, 32), 5, 1, 0),
        (16, 16, (16, 16), 3, 1, 1),
        (24, 144, (16, 16), 1, 1, 0),
    ],
)
def test_every_kernel_agrees_and_which_cut_it_has_does_not_change_a_bit(case: tuple, precision: str) -> None:
    g, x, w, dy = made(case, clients=4, batch=32)
    layer = implicit.layer_of("convolve", x, w, g)
    for kind, a, b, true in zip(
        ("convolve", "spread", "correlate"), (x, dy, x), (w, w, dy), truths(g, x, w, dy), strict=True
    ):
        found: dict[tuple[str, str], Tensor] = {}
        for cut in implicit.cuts(kind, layer, x, precision):
            try:
                ours = implicit._run(kind, a, b, layer, cut)
            except Exception as e:
                if "out of resource" in str(e):
                    continue
                raise
            near(ours, true, 4e-6 if precision == "fp32" else 2e-3)
            assert torch.equal(found.setdefault((cut.way, cut.dot), ours), ours), (kind, cut)
        assert found


@on_a_gpu
def test_a_shape_is_measured_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "_measured", MEASURED)
    g, x, w, dy = made((16, 24, (12, 12), 3, 1, 1), clients=4, batch=8)

    def all_three() -> tuple[Tensor, ...]:
        return conv._convolve(x, w, g)[0], conv._spread(dy, w, g), conv._correlate(x, dy, conv._nothing(x), g)

    first = all_three()
    assert [key.split()[0] for key in implicit.choices()] == ["convolve", "spread", "correlate"]
    for choice in implicit.choices().values():
        assert choice["patches_ms"] > 0 and ("ms" in choice), choice  # kernels worked, whoever won
    monkeypatch.setattr(implicit, "_measured", lambda *a: pytest.fail("measured again"))
    implicit.use_choices(json.loads(json.dumps(implicit.choices())))
    for a, b, true in zip(first, all_three(), truths(g, x, w, dy), strict=True):
        assert torch.equal(a, b)
        near(a, true)


@on_a_gpu
def test_a_shape_is_measured_while_recording_and_is_no_part_of_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(implicit, "_measured", MEASURED)
    g, x, w, dy = made((16, 40, (10, 10), 3, 1, 1), clients=4, batch=8)
    x.add(x)  # the allocator and the library are there
    graph = torch.cuda.CUDAGraph()
    torch.cuda.synchronize()
    with torch.cuda.graph(graph, capture_error_mode="relaxed"):
        y = conv._convolve(x, w, g)[0]
    assert len(implicit.choices()) == 1
    graph.replay()
    near(y, truths(g, x, w, dy)[0])


@on_a_gpu
def test_kernels_that_fail_or_disagree_leave_written_patches_and_one_warning(monkeypatch, caplog) -> None:  # type: ignore[no-untyped-def]
    monkeypatch.setattr(implicit, "_measured", MEASURED)
    g, x, w, dy = made((16, 48, (10, 10), 3, 1, 1), clients=4, batch=8)
    good = implicit_kernels.spread

    def broken(*_: object) -> Tensor:
        raise RuntimeError("does not compile\nfor many reasons")

    monkeypatch.setattr(implicit.box_kernels, "fits", lambda *_: False)
    monkeypatch.setattr(implicit_kernels, "convolve", broken)
    monkeypatch.setattr(implicit_kernels, "spread", lambda *a: good(*a) + 1)
    implicit._told.clear()
    near(conv._convolve(x, w, g)[0], truths(g, x, w, dy)[0])
    near(conv._spread(dy, w, g), truths(g, x, w, dy)[1])
    assert [c["way"] for c in implicit.choices().values()] == ["patches", "patches"]
    told = [r.getMessage() for r in caplog.records]
    assert len([t for t in told if "does not compile" in t]) == 1 and any("from that of written" in t for t in told)
