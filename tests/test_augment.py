"""Augmentation is keyed, keeps the shape, and happens in training only."""

import colorsys
import math
import re

import pytest
import torch
from torch.func import vmap

from acclimate.core import Task, rng
from acclimate.experiment.settings import expand
from acclimate.ops.augment import (
    CropJitter,
    FlipCrop,
    Views,
    crop_sides,
    flip,
    hue_turned,
    luma,
    relit,
    shift_crop,
    windows,
)
from support import CLASSES, MODELS, images


def test_crops_are_windows_of_the_padded_image():
    x, _ = images(40)
    out = shift_crop(x, rng.key(3), 2)
    padded = torch.nn.functional.pad(x, (2, 2, 2, 2))
    places = set()
    for i in range(40):
        found = [
            (r, c) for r in range(5) for c in range(5) if torch.equal(padded[i, :, r : r + 10, c : c + 10], out[i])
        ]
        assert found
        places |= set(found)
    assert len(places) > 12


def test_half_of_the_images_are_flipped():
    x, _ = images(400)
    out = flip(x, rng.key(1))
    turned = [torch.equal(o, i.flip(-1)) for o, i in zip(out, x, strict=True)]
    kept = [torch.equal(o, i) for o, i in zip(out, x, strict=True)]
    assert all(a or b for a, b in zip(turned, kept, strict=True))
    assert 160 < sum(turned) < 240


@pytest.mark.parametrize("augment", [FlipCrop(), CropJitter()])
def test_views_are_equal_under_vmap_and_differ_by_key(augment):
    x, _ = images(6)
    keys = rng.fold(rng.key(0), torch.arange(3))
    together = vmap(lambda k: augment.views(x, k))(keys)
    alone = torch.stack([augment.views(x, k) for k in keys])
    torch.testing.assert_close(together, alone, rtol=0, atol=1e-6)
    assert torch.equal(augment.views(x, keys[0]), alone[0]) and not torch.equal(together[0], together[1])


@pytest.mark.parametrize("augment", [FlipCrop(), CropJitter()])
def test_only_training_with_a_key_augments(augment):
    t = Task(MODELS["cnn-plain"], (3, 10, 10), CLASSES, augment=augment)
    plain = Task(MODELS["cnn-plain"], (3, 10, 10), CLASSES)
    v, (x, _) = t.init(rng.key(0)), images(8)
    assert torch.equal(t.apply(v, x).logits, plain.apply(v, x).logits)
    assert torch.equal(t.apply(v, x, "train").logits, plain.apply(v, x, "train").logits)
    assert not torch.equal(t.apply(v, x, "train", rng.key(1)).logits, plain.apply(v, x, "train", rng.key(1)).logits)


@pytest.mark.parametrize("augment", [FlipCrop(), FlipCrop(pad=0), Views(), CropJitter()], ids=repr)
@pytest.mark.parametrize("shape", [(9,), (3, 9)])
def test_columns_of_a_table_and_readings_of_sensors_are_not_mirrored(augment, shape):
    said = rf"{type(augment).__name__} changes images .* these inputs have shape {re.escape(str(shape))}; leave augment"
    with pytest.raises(ValueError, match=said):
        augment.views(torch.rand(5, *shape), rng.key(0))


def test_it_is_a_setting():
    (e,) = expand(["data.augment=flip-crop", "data.augment.pad=2"])
    assert e.data.augment == FlipCrop(pad=2)
    with pytest.raises(ValueError, match="pad=-1"):
        FlipCrop(pad=-1)


def test_a_window_is_scaled_to_the_image_s_size():
    """The left half of four columns, by hand: pixel centres lie at -0.25, 0.25, 0.75 and 1.25, and the edge is kept."""
    x = torch.arange(4.0).expand(1, 1, 4, 4)
    one, half, zero = torch.ones(1), torch.full((1,), 0.5), torch.zeros(1)
    left = windows(x, half, one, zero, zero)[0, 0]
    torch.testing.assert_close(left, torch.tensor([0.0, 0.25, 0.75, 1.25]).expand(4, 4))
    right = windows(x, half, one, one, zero)[0, 0]
    torch.testing.assert_close(right, torch.tensor([1.75, 2.25, 2.75, 3.0]).expand(4, 4))
    torch.testing.assert_close(windows(x, one, one, half, half), x)
    lower = windows(x.mT, one, half, zero, one)[0, 0]
    torch.testing.assert_close(lower, right.mT)


def test_windows_have_the_shares_and_shapes_that_were_asked_for():
    width, height = crop_sides(rng.key(0), 4000, 0.7, 4 / 3)
    area, shape = width * height, width / height
    whole = (width == 1) & (height == 1)
    assert area.min() >= 0.7 - 1e-5 and max(width.max(), height.max()) <= 1
    assert shape.min() > 3 / 4 - 1e-5 and shape.max() < 4 / 3 + 1e-5 and whole.float().mean() < 0.01
    assert shape.log().mean().abs() < 0.02 and shape.max() > 1.3 and area[~whole].max() > 0.98
    square, other = crop_sides(rng.key(0), 100, 0.5, 1.0)
    assert torch.equal(square, other) and square.min() >= math.sqrt(0.5) - 1e-6


def test_hues_go_round_as_in_the_standard_library():
    x, turn = torch.rand(5, 3, 2, 2), torch.tensor([0.0, 1 / 3, -1 / 3, 0.4, -0.17])
    ours = hue_turned(x, turn.view(-1, 1, 1))
    for i in range(5):
        for r in range(2):
            for c in range(2):
                h, s, v = colorsys.rgb_to_hsv(*x[i, :, r, c].tolist())
                want = colorsys.hsv_to_rgb((h + float(turn[i])) % 1.0, s, v)
                assert ours[i, :, r, c].tolist() == pytest.approx(want, abs=1e-5)
    red = torch.tensor([1.0, 0.0, 0.0]).view(1, 3, 1, 1)
    assert hue_turned(red, torch.full((1, 1, 1), 1 / 3)).flatten().tolist() == pytest.approx([0, 1, 0], abs=1e-5)
    grey = torch.full((1, 3, 1, 1), 0.4)
    assert torch.equal(hue_turned(grey, torch.full((1, 1, 1), 0.3)), grey)


def test_light_contrast_and_saturation_by_hand():
    """Two pixels, (0.2, 0.4, 0.6) and (0.6, 0.6, 0.6): brightness half, contrast double, saturation none."""
    x = torch.tensor([[[[0.2, 0.6]], [[0.4, 0.6]], [[0.6, 0.6]]]])
    one, zero = torch.ones(1, 1, 1, 1), torch.zeros(1, 1, 1)
    first = 0.299 * 0.1 + 0.587 * 0.2 + 0.114 * 0.3
    mean = (first + 0.3) / 2
    wanted = [[2 * v - mean for v in (0.1, 0.2, 0.3)], [2 * 0.3 - mean] * 3]
    wanted = torch.tensor([[max(v, 0.0) for v in pixel] for pixel in wanted]).T.view(1, 3, 1, 2)
    torch.testing.assert_close(relit(x, 0.5 * one, 2 * one, one, zero), wanted)
    torch.testing.assert_close(relit(x, one, one, 0 * one, zero), luma(x).expand(1, 3, 1, 2))
    torch.testing.assert_close(relit(x, one, one, one, zero), x)
    torch.testing.assert_close(luma(x).flatten(), torch.tensor([2 * first, 0.6]))


def test_some_images_lose_their_colours_and_half_are_mirrored():
    still = CropJitter(zoom=1.0, ratio=1.0, flip=False, jitter=0.0, hue=0.0, grey=0.0)
    x = torch.rand(300, 3, 4, 4)
    torch.testing.assert_close(still.views(x, rng.key(0)), x, rtol=0, atol=1e-5)
    seen = CropJitter(zoom=1.0, ratio=1.0, flip=False, jitter=0.0, hue=0.0, grey=0.1).views(x, rng.key(0))
    lost = (seen - seen.mean(1, keepdim=True)).abs().amax((1, 2, 3)) < 1e-6
    assert 12 < lost.sum() < 55 and torch.allclose(seen[lost], luma(x[lost]).expand(-1, 3, -1, -1), atol=1e-5)
    mirrored = CropJitter(zoom=1.0, ratio=1.0, jitter=0.0, hue=0.0, grey=0.0).views(x, rng.key(0))
    turned = (mirrored - x.flip(-1)).abs().amax((1, 2, 3)) < 1e-5
    assert 110 < turned.sum() < 190
    levels = (x * 255).to(torch.uint8)
    assert torch.equal(CropJitter().views(levels, rng.key(1)), CropJitter().views(levels / 255.0, rng.key(1)))
    grey = CropJitter().views(x[:, :1], rng.key(1))
    assert grey.shape == (300, 1, 4, 4) and grey.min() >= 0 and grey.max() <= 1
    for field, value in {"zoom": 0.0, "hue": 0.6, "ratio": 0.5, "jitter": 2.0}.items():
        with pytest.raises(ValueError, match=f"CropJitter: {field}="):
            CropJitter(**{field: value})
