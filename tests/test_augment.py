"""Augmentation is keyed, keeps the shape, and happens in training only."""

import pytest
import torch
from torch.func import vmap

from acclimate.core import Task, rng
from acclimate.experiment.settings import expand
from acclimate.ops.augment import FlipCrop, flip, shift_crop
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


def test_views_are_equal_under_vmap_and_differ_by_key():
    x, _ = images(6)
    keys = rng.fold(rng.key(0), torch.arange(3))
    together = vmap(lambda k: FlipCrop().views(x, k))(keys)
    assert torch.equal(together, torch.stack([FlipCrop().views(x, k) for k in keys]))
    assert not torch.equal(together[0], together[1])


def test_only_training_with_a_key_augments():
    t = Task(MODELS["cnn-plain"], (3, 10, 10), CLASSES, augment=FlipCrop())
    plain = Task(MODELS["cnn-plain"], (3, 10, 10), CLASSES)
    v, (x, _) = t.init(rng.key(0)), images(8)
    assert torch.equal(t.apply(v, x).logits, plain.apply(v, x).logits)
    assert torch.equal(t.apply(v, x, "train").logits, plain.apply(v, x, "train").logits)
    assert not torch.equal(t.apply(v, x, "train", rng.key(1)).logits, plain.apply(v, x, "train", rng.key(1)).logits)


def test_it_is_a_setting():
    (e,) = expand(["data.augment=flip-crop", "data.augment.pad=2"])
    assert e.data.augment == FlipCrop(pad=2)
    with pytest.raises(ValueError, match="pad=-1"):
        FlipCrop(pad=-1)
