"""The views of CoTTA and RoTTA, by value where one setting is on alone."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from acclimate.core import rng
from acclimate.ops.augment import rotate
from acclimate.ops.strong_views import StrongViews, blurred, tilted

KEY = rng.key(3)
OFF = dict.fromkeys(("light", "contrast", "saturation", "hue", "gamma", "turn", "shift", "scale", "blur", "noise"), 0.0)
X = torch.rand(6, 3, 9, 7, generator=torch.Generator().manual_seed(1))
ZERO, ONE = torch.zeros(6), torch.ones(6)


def test_what_views_are_unless_told_otherwise():
    light = {"light": 0.4, "contrast": 0.3, "saturation": 0.5, "hue": 0.06, "gamma": 0.3}
    place = {"turn": 15.0, "shift": 0.125, "scale": 0.1, "flip": True}
    assert StrongViews() == StrongViews(**light, **place, blur=0.5, noise=0.005)


def test_with_everything_off_a_view_is_the_image():
    off = StrongViews(**OFF, flip=False)
    torch.testing.assert_close(off.views(X, KEY), X, rtol=0, atol=1e-5)
    pixels = (X * 255).to(torch.uint8)
    torch.testing.assert_close(off.views(pixels, KEY), pixels.float() / 255, rtol=0, atol=1e-5)


@pytest.mark.parametrize(("name", "size"), [("light", 0.4), ("gamma", 0.3), ("noise", 0.05), ("flip", True)])
def test_one_setting_alone(name, size):
    got = StrongViews(**{**OFF, "flip": False, name: size}).views(X * 0.6 + 0.1, rng.key(5))
    x = X * 0.6 + 0.1
    if name == "light":
        factors = (got / x).mean((1, 2, 3))
        torch.testing.assert_close(got, x * factors[:, None, None, None], rtol=1e-4, atol=1e-4)
        assert 0.6 <= float(factors.min()) < 0.95 and 1.05 < float(factors.max()) <= 1.4
    elif name == "gamma":
        powers = (got.log() / x.log()).mean((1, 2, 3))
        torch.testing.assert_close(got, x ** powers[:, None, None, None], rtol=1e-3, atol=1e-4)
        assert 0.7 <= float(powers.min()) < 0.95 and 1.05 < float(powers.max()) <= 1.3
    elif name == "noise":
        assert float((got - x).std()) == pytest.approx(0.05, rel=0.1) and abs(float((got - x).mean())) < 0.01
    else:
        turned = [bool(torch.allclose(g, i.flip(-1), atol=1e-5)) for g, i in zip(got, x, strict=True)]
        as_is = [bool(torch.allclose(g, i, atol=1e-5)) for g, i in zip(got, x, strict=True)]
        assert all(a != b for a, b in zip(turned, as_is, strict=True)) and any(turned) and any(as_is)


def test_turns_shifts_and_scales():
    square = X[:, :, :7]
    wide = tilted(square, torch.full((6,), np.deg2rad(30.0)), ONE, ZERO, ZERO)
    torch.testing.assert_close(wide[:, :, 2:5, 2:5], rotate(square, 30.0)[:, :, 2:5, 2:5], rtol=1e-4, atol=1e-5)
    tall = tilted(X, torch.full((6,), np.deg2rad(30.0)), ONE, ZERO, ZERO)
    torch.testing.assert_close(tall[:, :, 3:6, 2:5], rotate(X, 30.0)[:, :, 3:6, 2:5], rtol=1e-4, atol=1e-5)
    one_right = tilted(X, ZERO, ONE, ZERO + 2 / 7, ZERO)  # a pixel is 2/7 of half the width
    torch.testing.assert_close(one_right[..., 1:], X[..., :-1], rtol=1e-4, atol=1e-5)
    torch.testing.assert_close(one_right[..., 0], X[..., 0], rtol=1e-4, atol=1e-5)  # the edge goes on
    one_down = tilted(X, ZERO, ONE, ZERO, ZERO + 2 / 9)
    torch.testing.assert_close(one_down[..., 1:, :], X[..., :-1, :], rtol=1e-4, atol=1e-5)
    spot = torch.zeros(1, 1, 9, 9)
    spot[..., 4, 6] = 1.0
    larger = tilted(spot, ZERO[:1], ONE[:1] * 1.5, ZERO[:1], ZERO[:1])
    assert int(larger.flatten().argmax()) == 4 * 9 + 7  # two pixels from the centre become three
    far = StrongViews(**{**OFF, "shift": 1 / 8}, flip=False).views(spot.expand(40, 1, 9, 9), KEY)
    columns = far.sum((1, 2)) @ torch.arange(9.0) / far.sum((1, 2, 3))
    assert float((columns - 6).abs().max()) <= 9 / 8 + 0.01 and float((columns - 6).abs().max()) > 0.7


def test_blur_is_a_gaussian_of_five_pixels():
    spot = torch.zeros(2, 1, 9, 9)
    spot[:, 0, 4, 4] = 1.0
    got = blurred(spot, torch.tensor([0.5, 0.001]))
    line = np.exp(-0.5 * (np.arange(-2, 3) / 0.5) ** 2)
    line = line / line.sum()
    np.testing.assert_allclose(got[0, 0, 2:7, 2:7], np.outer(line, line), atol=1e-6)
    torch.testing.assert_close(got[1], spot[1])
    flat = blurred(torch.full((1, 2, 6, 5), 0.3), torch.tensor([0.5]))
    torch.testing.assert_close(flat, torch.full_like(flat, 0.3))


def test_a_view_is_shifted_across_and_down_by_draws_of_their_own():
    draws = 2.0 * rng.uniform(rng.fold(KEY, "factors"), 9, 6) - 1.0
    views = StrongViews(**{**OFF, "shift": 0.25}, flip=False).views(X, KEY)
    expected = tilted(X, ZERO, ONE, 0.5 * draws[7], 0.5 * draws[8])
    torch.testing.assert_close(views, expected, rtol=0, atol=1e-5)


def test_a_view_is_blurred_by_a_width_from_next_to_nothing_up_to_the_widest():
    wide = 0.001 + (0.5 - 0.001) * rng.uniform(rng.fold(KEY, "blur"), 6)
    views = StrongViews(**{**OFF, "blur": 0.5}, flip=False).views(X, KEY)
    torch.testing.assert_close(views, blurred(X, wide), rtol=0, atol=1e-5)
    assert float((blurred(X, wide) - blurred(X, wide - 0.002)).abs().max()) > 1e-4, "so little is noticed"


def test_views_stay_in_range_and_are_drawn_by_the_key_alone_and_side_by_side():
    views = StrongViews()
    a, b, other = views.views(X, KEY), views.views(X, KEY), views.views(X, rng.key(9))
    assert torch.equal(a, b) and float((a - other).abs().max()) > 0.1
    assert float(a.min()) >= 0 and float(a.max()) <= 1
    both = vmap(lambda x, k: views.views(x, k))(X.view(2, 3, 3, 9, 7), rng.rows(KEY, 2))
    torch.testing.assert_close(both[1], views.views(X[3:], rng.rows(KEY, 2)[1]))
    with pytest.raises(ValueError, match=r"StrongViews: hue=0.6 must be between 0.0 and 0.5"):
        StrongViews(hue=0.6)
