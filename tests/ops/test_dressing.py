"""Kept images in the looks of a stream, by values that plain Python computes."""

import math

import pytest
import torch
from torch.func import vmap

from acclimate.ops import guarding
from acclimate.ops.dressing import LEAST, dressed, smoothed

SIDE = 5


def gauss(side, sigma=1.0):
    """[side][side]: how much of each pixel of a line every pixel gets."""
    rows = [[math.exp(-0.5 * ((i - j) / sigma) ** 2) for j in range(side)] for i in range(side)]
    return [[v / sum(row) for v in row] for row in rows]


def blur(channel):
    g, n = gauss(len(channel)), range(len(channel))
    return [[sum(g[i][a] * g[j][b] * channel[a][b] for a in n for b in n) for j in n] for i in n]


def parts(image):
    """Means, shape and grain of an image as nested lists [channels][side][side]."""
    means = [sum(map(sum, channel)) / SIDE**2 for channel in image]
    rest = [[[v - m for v in row] for row in channel] for channel, m in zip(image, means, strict=True)]
    shape = [blur(channel) for channel in rest]
    grain = [
        [[v - s for v, s in zip(*rows, strict=True)] for rows in zip(*pair, strict=True)]
        for pair in zip(rest, shape, strict=True)
    ]
    return means, shape, grain


def strength(part):
    values = [v for channel in part for row in channel for v in row]
    return max(math.sqrt(sum(v * v for v in values) / len(values)), LEAST)


def by_hand(image, other, low, high):
    (_, shape, grain), (means, its_shape, its_grain) = parts(image), parts(other)
    bolder = strength(its_shape) / strength(shape)
    have, want = strength(grain), strength(its_grain)
    added = math.sqrt(max(want**2 - have**2, 0.0)) / want

    def pixel(c, i, j):
        v = means[c] + bolder * shape[c][i][j] + min(want / have, 1.0) * grain[c][i][j] + added * its_grain[c][i][j]
        return min(max(v, low), high)

    return [[[pixel(c, i, j) for j in range(SIDE)] for i in range(SIDE)] for c in range(len(image))]


def images(count, seed, spread=0.2):
    g = torch.Generator().manual_seed(seed)
    return (0.5 + spread * torch.randn(count, 2, SIDE, SIDE, generator=g, dtype=torch.float64)).clamp(0.0, 1.0)


@pytest.mark.parametrize(("spread", "grainier"), [(0.4, True), (0.05, False)])
def test_each_image_gets_the_looks_of_one_of_the_batch_in_turn(spread, grainier):
    kept, batch = images(3, 0), images(2, 1, spread)
    low, high = (f(float(getattr(v, f.__name__)()) for v in (kept, batch)) for f in (min, max))
    found = dressed(kept, batch)
    for n in range(3):
        one, other = kept[n].tolist(), batch[n % 2].tolist()
        assert (strength(parts(other)[2]) > strength(parts(one)[2])) == grainier
        assert torch.allclose(found[n], torch.tensor(by_hand(one, other, low, high), dtype=torch.float64), atol=1e-9)


def test_grey_levels_stay_whole_and_looks_of_its_own_change_nothing():
    kept, batch = ((255 * images(2, s)).round().to(torch.uint8) for s in (0, 1))
    floats = [v.to(torch.float32) / 255 for v in (kept, batch)]
    assert dressed(kept, batch).dtype == torch.uint8
    assert torch.equal(dressed(kept, batch), (255 * dressed(*floats)).round().to(torch.uint8))
    assert torch.equal(dressed(kept, kept), kept)


def test_an_empty_image_and_what_is_not_a_number_leave_numbers():
    kept, grey = images(2, 0), torch.full((1, 2, SIDE, SIDE), 0.25, dtype=torch.float64)
    assert torch.allclose(dressed(kept, grey), grey.expand_as(kept), atol=20 * LEAST)  # all contrast is gone
    assert bool(torch.isfinite(dressed(grey, kept)).all())
    assert bool(torch.isfinite(dressed(kept, torch.full_like(kept, torch.nan))).all())


def test_many_clients_are_dressed_at_once():
    kept, batch = images(6, 0).view(2, 3, 2, SIDE, SIDE), images(4, 1).view(2, 2, 2, SIDE, SIDE)
    one_by_one = torch.stack([dressed(k, b) for k, b in zip(kept, batch, strict=True)])
    assert torch.allclose(vmap(dressed)(kept, batch), one_by_one, atol=1e-12)


def test_the_gaussian_is_a_pixel_wide_or_a_32nd_of_the_longer_side():
    dot = torch.zeros(1, 1, SIDE, SIDE, dtype=torch.float64)
    dot[0, 0, 2, 2] = 1.0
    assert torch.allclose(smoothed(dot)[0, 0], torch.tensor(blur(dot[0, 0].tolist()), dtype=torch.float64))
    wide = smoothed(torch.eye(64)[None, None])  # two pixels, since a 32nd of 64 is more than one
    assert float(wide[0, 0, 32, 32]) == pytest.approx(1 / math.sqrt(4 * math.pi * 4), rel=1e-3)


def test_images_are_answered_twice_and_other_inputs_once():
    x = images(3, 0)
    data = {"x": x, "y": torch.tensor([4, 5, 6]), "rows": torch.arange(3), "n": torch.tensor(3)}
    kept, y, real = guarding.examples(data, 8)
    assert torch.equal(kept, x[[0, 1, 2, 0]]) and y.tolist() == [4, 5, 6, 4] and real.tolist() == [True] * 3 + [False]
    ref, batch = {"x": kept, "y": y, "real": real}, images(2, 1)
    both, y, real = guarding.beside(ref, batch)
    assert torch.equal(both, torch.cat((kept, dressed(kept, batch))))
    assert y.tolist() == [4, 5, 6, 4] * 2 and real.tolist() == [True, True, True, False] * 2
    flat, y, real = guarding.examples({**data, "x": x.flatten(1)}, 8)
    assert len(flat) == 8 and y.tolist() == [4, 5, 6, 4, 5, 6, 4, 5] and real.tolist() == [True] * 3 + [False] * 5
    assert guarding.beside({"x": flat, "y": y, "real": real}, flat[:2])[0] is flat
