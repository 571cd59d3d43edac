"""AugMix step by step: strengths, maps, warps and the mixture, on images that are not square."""

import math

import numpy as np
import pytest
import torch

from acclimate.core import rng
from acclimate.ops import augmix as am
from acclimate.ops import augmix_chains
from acclimate.ops.augment import FlipCrop

KEY = rng.key(11)
H, W = 30, 60  # so that a translation of strength 8 is 8 down and 16 across


def image(height=H, width=W, seed=0):
    g = torch.Generator().manual_seed(seed)
    return torch.randint(0, 256, (3, height, width), generator=g).to(torch.uint8)


def drawn(name, level, sign=1.0):
    op = torch.tensor([am.OPS.index(name)])
    return am._drawn(op, torch.tensor([level]), torch.tensor([sign]), (H, W))


IDENTITY = [[1, 0, 0], [0, 1, 0]]


@pytest.mark.parametrize(
    ("name", "level", "sign", "matrix"),
    [
        ("shear_x", 5.0, 1.0, [[1, 0.15, 0], [0, 1, 0]]),
        ("shear_x", 5.0, -1.0, [[1, -0.15, 0], [0, 1, 0]]),
        ("shear_y", 2.0, -1.0, [[1, 0, 0], [-0.06, 1, 0]]),
        ("translate_x", 8.0, 1.0, [[1, 0, 16], [0, 1, 0]]),
        ("translate_x", 7.3, -1.0, [[1, 0, -14], [0, 1, 0]]),
        ("translate_y", 8.0, 1.0, [[1, 0, 0], [0, 1, 8]]),
        ("equalize", 7.3, 1.0, IDENTITY),
        ("autocontrast", 7.3, 1.0, IDENTITY),
        ("posterize", 7.3, -1.0, IDENTITY),
        ("solarize", 7.3, -1.0, IDENTITY),
    ],
)
def test_strengths_become_maps(name, level, sign, matrix):
    np.testing.assert_allclose(drawn(name, level, sign).matrix[0], matrix, atol=1e-5)


@pytest.mark.parametrize(("level", "sign"), [(4.5, 1.0), (4.5, -1.0), (10.0, 1.0)])
def test_a_turn_is_about_the_centre(level, sign):
    turn = math.radians(sign * math.floor(3 * level))
    (a, b, c), (d, e, f) = drawn("rotate", level, sign).matrix[0].double().tolist()
    np.testing.assert_allclose(
        [a, b, d, e], [math.cos(turn), math.sin(turn), -math.sin(turn), math.cos(turn)], atol=1e-5
    )
    centre = W / 2, H / 2
    np.testing.assert_allclose(
        [a * centre[0] + b * centre[1] + c, d * centre[0] + e * centre[1] + f], centre, atol=1e-4
    )


@pytest.mark.parametrize(("level", "width"), [(0.1, 16), (2.4, 16), (2.6, 32), (5.1, 64), (10.0, 256)])
def test_posterize_leaves_four_bits_or_fewer(level, width):
    assert drawn("posterize", level).amount.item() == width


@pytest.mark.parametrize(("level", "threshold"), [(0.1, 254), (1.0, 231), (5.0, 128), (10.0, 0)])
def test_solarize_starts_lower_the_stronger_it_is(level, threshold):
    assert drawn("solarize", level).amount.item() == threshold


def test_a_warp_by_hand_rounds_and_is_grey_outside():
    x = image(5, 7).float()
    matrix = torch.tensor([[0.9, 0.2, -0.7], [-0.1, 1.1, 0.6]])
    got = am.warp(x[None], matrix[None])[0]
    for r in range(5):
        for c in range(7):
            px, py = (matrix.double() @ torch.tensor([c + 0.5, r + 0.5, 1.0]).double()).tolist()
            if not (0 <= px < 7 and 0 <= py < 5):
                assert got[:, r, c].tolist() == [128.0] * 3
                continue
            across, down = min(max(px - 0.5, 0), 6), min(max(py - 0.5, 0), 4)
            k, q = math.floor(across), math.floor(down)
            fx, fy = across - k, down - q
            k2, q2 = min(k + 1, 6), min(q + 1, 4)
            top = x[:, q, k] * (1 - fx) + x[:, q, k2] * fx
            bottom = x[:, q2, k] * (1 - fx) + x[:, q2, k2] * fx
            want = top * (1 - fy) + bottom * fy
            assert (got[:, r, c] - want).abs().max() <= 0.501 and (got[:, r, c] % 1 == 0).all()
    assert (got == 128).all(0).any()


def test_places_on_the_border_are_inside_and_those_beyond_are_not():
    x = torch.full((1, 1, 4, 4), 7.0)

    def seen(across, down):
        return am.warp(x, torch.tensor([[[1.0, 0.0, across], [0.0, 1.0, down]]]))[0, 0]

    half = seen(-0.5, 0.0)  # the first column is read at 0 exactly
    assert (half == 7).all()
    end = seen(0.5, 0.0)  # the last one at 4, which is outside
    assert (end[:, :3] == 7).all() and (end[:, 3] == 128).all()
    assert (seen(0.0, -0.5) == 7).all() and (seen(0.0, 0.5)[3] == 128).all()


def test_a_warp_that_writes_over_its_own_numbers_gives_the_same_bits_and_leaves_its_image():
    g = torch.Generator().manual_seed(3)
    x = torch.randint(0, 256, (20, 3, 6, 9), generator=g).float()
    maps = torch.eye(2, 3) + torch.randn(20, 2, 3, generator=g) * torch.tensor([0.1, 0.1, 2.0])
    maps[0], maps[1] = (torch.eye(2, 3) + torch.tensor([0.0, 0.0, by]) for by in (0.5, -0.5))  # places on the borders
    before = x.clone(), maps.clone()
    mine, true = am.warp_in_place(x, maps), am.warp(x, maps)
    assert torch.equal(mine, true) and (true == 128.0).any() and not torch.equal(true, x)
    assert torch.equal(x, before[0]) and torch.equal(maps, before[1])


def test_levels_are_whole_numbers_of_bytes_and_floats_alike():
    x = image(4, 4)
    assert torch.equal(am.to_levels(x), x.float())
    assert am.to_levels(torch.tensor([-0.1, 0.0, 0.7, 0.999, 1.2])).tolist() == [0, 0, 178, 255, 255]


@pytest.mark.parametrize("name", am.OPS)
def test_one_operation_is_its_table_and_its_map(name):
    x = image(20, 20).float()[None]
    got = am._apply(
        x, am._drawn(torch.tensor([am.OPS.index(name)]), torch.tensor([6.0]), torch.tensor([1.0]), (20, 20))
    )
    v = torch.arange(256.0)
    tables = {
        "autocontrast": am.autocontrast_table(x)[0],
        "equalize": am.equalize_table(x.flatten(2).long())[0],
        "posterize": (v // 64 * 64).expand(3, 256),  # 2.4 bits fewer than four
        "solarize": torch.where(v < 256 - 153, v, 255 - v).expand(3, 256),
    }
    if name in tables:
        want = torch.stack([tables[name][c][x[0, c].long()] for c in range(3)])
        assert torch.equal(got[0], want)
    else:
        matrix = am._drawn(
            torch.tensor([am.OPS.index(name)]), torch.tensor([6.0]), torch.tensor([1.0]), (20, 20)
        ).matrix
        assert torch.equal(got, am.warp(x, matrix)) and not torch.equal(got, x)


@pytest.mark.parametrize("options", [{}, {"severity": 6.0, "chains": 2, "depth": 4, "pad": 1}])
def test_a_view_is_the_mixture_of_its_chains(options):
    """The draws are those of the documented keys; everything after them is computed one view and chain at a time."""
    severity, chains, depth, pad = (
        options.get(k, d) for k, d in (("severity", 1.0), ("chains", 3), ("depth", 3), ("pad", 4))
    )
    x, views = image(12, 16), 5
    got = am.augmix(x, KEY, views=views, **options)
    base = FlipCrop(pad).views(x.float().expand(views, 3, 12, 16), rng.fold(KEY, "crop"))
    draws = rng.uniform(rng.fold(KEY, "chain"), 3 * depth + 1, views * chains)
    weight = rng.uniform(rng.fold(KEY, "mix"), views, chains).double().numpy()
    weight = -np.log(1 - weight)
    weight = weight / weight.sum(1, keepdims=True)
    keep = rng.uniform(rng.fold(KEY, "keep"), views).tolist()
    for i in range(views):
        mixed = 0.0
        for j in range(chains):
            column = draws[:, i * chains + j].tolist()
            seen = base[i : i + 1]
            for t in range(int(column[3 * depth] * depth) + 1):
                op, level = int(column[t] * 9), 0.1 + column[depth + t] * (severity - 0.1)
                sign = -1.0 if column[2 * depth + t] > 0.5 else 1.0
                seen = am._apply(seen, am._drawn(*(torch.tensor([v]) for v in (op, level, sign)), (12, 16)))
            mixed = mixed + weight[i, j] * seen[0].double()
        want = (keep[i] * base[i].double() + (1 - keep[i]) * mixed) / 255
        np.testing.assert_allclose(got[i], want, atol=2e-5)


def test_the_tables_at_their_edges():
    two = torch.tensor([[[[10.0, 11.0]]]])
    wide = torch.tensor([[[[50.0, 150.0]]]])
    assert am.autocontrast_table(wide)[0, 0, [0, 50, 51, 100, 150, 255]].tolist() == [0, 0, 2, 127, 255, 255]
    assert am.autocontrast_table(two)[0, 0, [9, 10, 11, 12]].tolist() == [0, 0, 255, 255]
    assert am.posterize_table(torch.tensor([32.0]), two)[0, [31, 32, 63, 64]].tolist() == [0, 32, 32, 64]
    assert am.solarize_table(torch.tensor([100.0]), two)[0, [99, 100, 255]].tolist() == [99, 155, 0]


@pytest.mark.parametrize("options", [{}, {"severity": 8.0, "chains": 2, "depth": 4}])
def test_only_what_was_drawn_is_computed_and_the_bits_stay(options, monkeypatch):
    """Against every operation for every image, of which the one that was drawn is kept, as a GPU without Triton has."""
    x, keys = torch.stack([image(16, 20, i) for i in range(3)]), rng.rows(KEY, 3)
    many = torch.func.vmap(lambda x, k: am.augmix(x, k, views=6, **options))
    monkeypatch.setattr(augmix_chains, "BLOCK", 4)  # 18 views are four blocks and a half
    got, alone = many(x, keys), am.augmix(x[1], keys[1], views=6, **options)
    used = []

    def everything(base, op, amount, matrix, weight, keep, _):
        seen = base.repeat_interleave(op.shape[1], 0)
        for t in range(op.shape[2]):
            seen = am._apply(seen, am.Drawn(*(d[:, :, t].flatten(0, 1) for d in (op, amount, matrix))))
        used.append(op)
        mixed = (weight[..., None, None, None] * seen.unflatten(0, op.shape[:2])).sum(1)
        return (keep[:, None, None, None] * base + (1.0 - keep[:, None, None, None]) * mixed) / 255.0

    monkeypatch.setattr(am.ChainsOnCpu, "apply", everything)
    assert torch.equal(got, many(x, keys)) and torch.equal(got[1], alone) and len(used) == 1


def test_views_are_the_same_where_the_host_must_not_look_at_what_was_drawn(monkeypatch):
    x = image(12, 10)
    looked = am.augmix(x, KEY, views=6)
    monkeypatch.setattr(am, "_looks", lambda base: False)
    torch.testing.assert_close(am.augmix(x, KEY, views=6), looked, rtol=0, atol=1e-6)
