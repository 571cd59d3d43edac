"""Random views and turns of images, pixel by pixel against plain numpy."""

import math

import numpy as np
import pytest
import torch

from acclimate.core import rng
from acclimate.ops import augment
from acclimate.ops.augment import CropJitter, FlipCrop, Views, coloured, flip, rotate, shift_crop, turned, zoomed

KEY = rng.key(4)


def pictures(count=5, height=6, width=9, seed=0):
    return torch.rand(count, 3, height, width, generator=torch.Generator().manual_seed(seed))


def bilinear(image, row, column, outside):
    """The value of an image [H, W] at a place in pixels: `outside` is "border", or the value that lies there."""
    height, width = image.shape
    if outside == "border":
        row, column = min(max(row, 0.0), height - 1.0), min(max(column, 0.0), width - 1.0)
    top, left = math.floor(row), math.floor(column)
    value = 0.0
    for r in (top, top + 1):
        for c in (left, left + 1):
            weight = (1 - abs(row - r)) * (1 - abs(column - c))
            inside = 0 <= r < height and 0 <= c < width
            value += weight * (image[r, c] if inside else 0.0)
    return value


def test_a_zoomed_view_is_a_window_of_the_image():
    x, least = pictures(), 0.3
    got = zoomed(x, KEY, least)
    torch.testing.assert_close(zoomed(x.double(), KEY, least), got.double(), atol=1e-5, rtol=0)
    size, across, down = rng.uniform(KEY, 3, 5).double().numpy()
    for i in range(5):
        side = math.sqrt(least + (1 - least) * size[i])
        left, top = 9 * (1 - side) * across[i], 6 * (1 - side) * down[i]  # the window's corner, in pixels
        for c in range(3):
            want = [
                [
                    bilinear(x[i, c].numpy(), top + side * (r + 0.5) - 0.5, left + side * (k + 0.5) - 0.5, "border")
                    for k in range(9)
                ]
                for r in range(6)
            ]
            np.testing.assert_allclose(got[i, c], want, atol=1e-5)


@pytest.mark.parametrize("grey", [0.0, 1.0, 0.5])
def test_light_contrast_and_saturation_by_hand(grey):
    x, jitter = pictures(), 0.9
    got = coloured(x, KEY, jitter, grey)
    draws = rng.uniform(rng.fold(KEY, "factors"), 3, 5, 1, 1, 1).double().numpy()
    lost = rng.bernoulli(rng.fold(KEY, "grey"), grey, 5, 1, 1, 1).numpy()
    light, contrast, saturation = (1 - jitter + 2 * jitter * d for d in draws)
    y = np.clip(x.double().numpy() * light, 0, 1)
    mean = y.reshape(5, -1).mean(1).reshape(5, 1, 1, 1)
    y = np.clip(mean + contrast * (y - mean), 0, 1)
    tone = y.mean(axis=1, keepdims=True)
    want = np.clip(tone + np.where(lost, 0, saturation) * (y - tone), 0, 1)
    np.testing.assert_allclose(got, want, atol=1e-5)
    assert (got == 0).any() and (got == 1).any()  # the bounds are met


def test_views_do_each_step_with_a_key_of_its_own():
    bytes_ = (255 * pictures()).to(torch.uint8)
    x = bytes_ / 255.0
    record = Views(zoom=0.4, jitter=0.3, grey=0.5)
    want = coloured(
        flip(zoomed(x, rng.fold(KEY, "zoom"), 0.4), rng.fold(KEY, "flip")), rng.fold(KEY, "colour"), 0.3, 0.5
    )
    assert torch.equal(record.views(x, KEY), want) and torch.equal(record.views(bytes_, KEY), want)
    plain = Views(zoom=1.0, flip=False, jitter=0.3, grey=0.5).views(x, KEY)
    assert torch.equal(plain, coloured(x, rng.fold(KEY, "colour"), 0.3, 0.5))
    torch.testing.assert_close(Views(zoom=1.0, flip=False, jitter=0.0, grey=0.0).views(x, KEY), x)
    several = record.several(x, KEY)
    assert torch.equal(several, torch.cat([record.views(x, rng.fold(KEY, "view", i)) for i in range(2)]))
    assert len(record.several(x, KEY, 3)) == 15


def test_relit_images_by_hand():
    x = pictures(4)
    light, contrast, saturation = (
        torch.tensor(v).reshape(4, 1, 1, 1) for v in ([3.0, 1, 0.5, 2], [4.0, 1, 3, 1], [5.0, 0, 1, 3])
    )
    got = augment.relit(x, light, contrast, saturation, torch.zeros(4, 1, 1))
    weights = np.array([0.299, 0.587, 0.114]).reshape(1, 3, 1, 1)
    y = np.clip(x.double().numpy() * light.numpy(), 0, 1)
    mean = (y * weights).sum(1).reshape(4, -1).mean(1).reshape(4, 1, 1, 1)
    y = np.clip(mean + contrast.numpy() * (y - mean), 0, 1)
    tone = (y * weights).sum(1, keepdims=True)
    y = np.clip(tone + saturation.numpy() * (y - tone), 0, 1)
    np.testing.assert_allclose(got, y, atol=1e-5)
    assert (got == 0).any() and (got == 1).any()
    turn = torch.full((4, 1, 1), 0.3)
    turned = augment.relit(x, light, contrast, saturation, turn)
    torch.testing.assert_close(turned, augment.hue_turned(got, turn))
    assert float((turned - got).abs().max()) > 0.1
    grey = x[:, :1]
    only = augment.relit(grey, light, torch.ones_like(light), saturation, torch.full((4, 1, 1), 0.3))
    torch.testing.assert_close(only, (grey * light).clamp(0, 1))  # no colours to turn


def test_a_window_is_the_first_of_ten_draws_that_fits():
    least, ratio = 0.7, 4.0  # so that many do not fit
    size, shape = rng.uniform(KEY, 2, 10, 200).double().numpy()
    area, stretch = least + (1 - least) * size, np.exp(np.log(ratio) * (2 * shape - 1))
    width, height = np.ones(200), np.ones(200)
    for i in range(200):
        for w, h in zip(np.sqrt(area * stretch)[:, i], np.sqrt(area / stretch)[:, i], strict=True):
            if w <= 1 and h <= 1:
                width[i], height[i] = w, h
                break
    got = augment.crop_sides(KEY, 200, least, ratio)
    np.testing.assert_allclose(got[0], width, rtol=1e-5)
    np.testing.assert_allclose(got[1], height, rtol=1e-5)
    assert 0 < (width == 1).sum() < 100  # some found none


def test_the_augmentation_of_feddg_ga_step_by_step():
    x = pictures(6, 8, 8)
    record = CropJitter(zoom=0.5, ratio=1.5, jitter=0.3, hue=0.2, grey=0.5)
    across, down = rng.uniform(rng.fold(KEY, "place"), 2, 6)
    want = augment.windows(x, *augment.crop_sides(rng.fold(KEY, "window"), 6, 0.5, 1.5), across, down)
    want = flip(want, rng.fold(KEY, "flip"))
    factors = 0.7 + 0.6 * rng.uniform(rng.fold(KEY, "factors"), 3, 6, 1, 1, 1)
    want = augment.relit(want, *factors, -0.2 + 0.4 * rng.uniform(rng.fold(KEY, "hue"), 6, 1, 1))
    lost = rng.bernoulli(rng.fold(KEY, "grey"), 0.5, 6).tolist()
    assert set(lost) == {True, False}
    want = torch.stack([augment.luma(w[None])[0].expand(3, 8, 8) if g else w for w, g in zip(want, lost, strict=True)])
    torch.testing.assert_close(record.views(x, KEY), want, atol=1e-5, rtol=0)


def test_a_crop_comes_from_where_its_key_says():
    x = pictures(12)
    down, right = (rng.randint(rng.fold(KEY, i), 0, 5, 12).tolist() for i in range(2))
    padded = np.pad(x.numpy(), ((0, 0), (0, 0), (2, 2), (2, 2)))
    want = [padded[i, :, down[i] : down[i] + 6, right[i] : right[i] + 9] for i in range(12)]
    np.testing.assert_array_equal(shift_crop(x, KEY, 2), np.stack(want))
    assert {*rng.randint(rng.fold(KEY, 0), 0, 5, 400).tolist()} == {0, 1, 2, 3, 4}
    drawn = rng.bernoulli(rng.fold(KEY, "flip"), 0.5, 12).tolist()
    flipped = flip(x, rng.fold(KEY, "flip"))
    assert set(drawn) == {True, False}
    for i, mirrored in enumerate(drawn):
        assert torch.equal(flipped[i], torch.from_numpy(x[i].numpy()[:, :, ::-1].copy()) if mirrored else x[i])
    assert torch.equal(FlipCrop(pad=2).views(x, KEY), shift_crop(flipped, rng.fold(KEY, "crop"), 2))
    assert torch.equal(FlipCrop(pad=0).views(x, KEY), flipped)
    for pad in (0, 2):  # several views of one image are those of its copies
        copies = FlipCrop(pad).views(x[3].expand(20, -1, -1, -1), KEY)
        assert torch.equal(FlipCrop(pad).several(x[3], 20, KEY), copies) and len({*map(str, copies.tolist())}) > 1


def test_quarter_turns_are_counter_clockwise():
    x = torch.arange(4.0).reshape(1, 1, 2, 2) + 10 * torch.arange(5.0).reshape(5, 1, 1, 1)  # 0 1 over 2 3, and so on
    got = turned(x, torch.tensor([0, 1, 2, 3, 1])).flatten(1).tolist()
    assert got == [[0, 1, 2, 3], [11, 13, 10, 12], [23, 22, 21, 20], [32, 30, 33, 31], [41, 43, 40, 42]]


@pytest.mark.parametrize("degrees", [30.0, -75.0, 450.0])
def test_a_rotation_by_hand(degrees):
    """An output place is looked up where it comes from: turned clockwise about the centre, rows growing downwards."""
    x = pictures(2)
    got = rotate(x, degrees)
    turn = math.radians(degrees)
    for i, c in ((0, 0), (1, 2)):
        want = np.zeros((6, 9))
        for r in range(6):
            for k in range(9):
                across, up = k - 4.0, 2.5 - r
                from_x = math.cos(turn) * across + math.sin(turn) * up
                from_y = -math.sin(turn) * across + math.cos(turn) * up
                want[r, k] = bilinear(x[i, c].numpy(), 2.5 - from_y, 4.0 + from_x, 0.0)
        np.testing.assert_allclose(got[i, c], want, atol=1e-5)
    levels = (255 * x).round().to(torch.uint8)
    as_bytes = rotate(levels, degrees)
    assert as_bytes.dtype == torch.uint8
    assert torch.equal(as_bytes, rotate(levels.float(), degrees).round().to(torch.uint8))


def test_no_turn_and_no_images_change_nothing():
    x = pictures(2)
    for degrees in (0.0, 360.0, -720.0):
        assert rotate(x, degrees) is x
    assert rotate(x[:0], 30.0).shape == (0, 3, 6, 9)
    square = pictures(2, 7, 7)
    torch.testing.assert_close(rotate(square, 90.0), torch.rot90(square, 1, (-2, -1)), atol=1e-5, rtol=0)
    assert rotate(x.double(), 30.0).dtype == torch.float64
    with pytest.raises(ValueError, match=r"got shape \(3, 6, 9\)"):
        rotate(x[0], 30.0)
