"""The drawings are reproducible, independent of their batch, well formed, and different where they should be."""

from __future__ import annotations

import itertools
import sys

import pytest
import torch
from torch import Tensor

from acclimate.core import rng
from acclimate.data import drawing

NAMES = sorted(drawing.STYLES)
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


def some_keys(n: int, seed: int = 0) -> Tensor:
    return rng.fold(rng.key(seed), torch.arange(n))


def some_glyphs(n: int, side: int = 16) -> Tensor:
    return drawing.enlarge(drawing.digits8()[0][:n], side)


def test_digits8_is_the_known_data_set() -> None:
    images, labels = drawing.digits8()
    assert images.shape == (1797, 8, 8) and images.dtype == torch.float32
    assert labels.dtype == torch.int64 and labels.bincount().tolist() == COUNTS
    assert images.min() == 0.0 and images.max() == 1.0
    assert (images * 16).sum() == 561718  # every value of the file, summed
    assert (images[0, 0] * 16).tolist() == [0, 0, 5, 13, 9, 1, 0, 0] and labels[:4].tolist() == [0, 1, 2, 3]


def test_digits8_says_what_to_install(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sklearn", None)
    with pytest.raises(ImportError, match="pip install scikit-learn"):
        drawing.digits8()


@pytest.mark.parametrize("side", [8, 16, 28])
def test_enlarge_keeps_range_flat_areas_and_mean(side: int) -> None:
    images = drawing.digits8()[0][:20]
    large = drawing.enlarge(images, side)
    assert large.shape == (20, side, side) and large.is_contiguous()
    assert large.min() >= 0.0 and large.max() <= 1.0
    torch.testing.assert_close(drawing.enlarge(torch.full((2, 8, 8), 0.3), side), torch.full((2, side, side), 0.3))
    torch.testing.assert_close(large.mean((1, 2)), images.mean((1, 2)), atol=0.02, rtol=0.0)
    if side == 8:
        torch.testing.assert_close(large, images)


def test_enlarge_does_not_depend_on_the_batch_and_keeps_the_axes() -> None:
    images = drawing.digits8()[0][:50]
    assert torch.equal(drawing.enlarge(images, 16)[:5], drawing.enlarge(images[:5], 16))
    assert torch.equal(drawing.enlarge(images, 16)[7:8], drawing.enlarge(images[7:8], 16))
    row = torch.zeros(1, 8, 8)
    row[0, 2] = 1.0
    tall = drawing.enlarge(row, 16)[0]
    assert tall[4:6].min() > 0.5 and tall[10:].max() == 0.0


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("side", [16, 20])
def test_style_is_deterministic_and_batch_independent(name: str, side: int) -> None:
    style, glyphs, keys = drawing.STYLES[name], some_glyphs(50, side), some_keys(50)
    images = style(glyphs, keys)
    assert images.shape == (50, 3, side, side) and images.dtype == torch.uint8 and images.is_contiguous()
    assert torch.equal(images, style(glyphs, keys))
    assert torch.equal(images[:5], style(glyphs[:5], keys[:5]))
    assert torch.equal(images[17:18], style(glyphs[17:18], keys[17:18]))
    order = torch.arange(50).flip(0)
    assert torch.equal(images[order], style(glyphs[order], keys[order]))


@pytest.mark.parametrize("name", NAMES)
def test_style_shows_the_glyph_and_leaves_its_inputs_alone(name: str) -> None:
    glyphs, keys = some_glyphs(50), some_keys(50)
    before = glyphs.clone(), keys.clone()
    images = drawing.STYLES[name](glyphs, keys).float()
    blank = drawing.STYLES[name](torch.zeros_like(glyphs), keys).float()
    assert torch.equal(glyphs, before[0]) and torch.equal(keys, before[1])
    # The same key paints the same ground, so whatever differs from the blank sheet is the ink.
    change = (images - blank).abs().amax((1, 2, 3))
    assert change.min() > 25.0


@pytest.mark.parametrize("name", sorted(set(NAMES) - {"plain", "inverted"}))
def test_random_styles_follow_the_key(name: str) -> None:
    glyphs = some_glyphs(1).expand(50, -1, -1)
    images = drawing.STYLES[name](glyphs, some_keys(50)).flatten(1)
    assert len(torch.unique(images, dim=0)) == 50
    assert not torch.equal(images, drawing.STYLES[name](glyphs, some_keys(50, seed=1)).flatten(1))


def test_styles_differ_from_each_other() -> None:
    glyphs, keys = some_glyphs(50), some_keys(50)
    drawn = {name: drawing.STYLES[name](glyphs, keys).float() for name in NAMES}
    for a, b in itertools.combinations(NAMES, 2):
        assert (drawn[a] - drawn[b]).abs().mean() > 15.0, (a, b)
    assert torch.equal(drawn["plain"] + drawn["inverted"], torch.full_like(drawn["plain"], 255.0))


def test_font_is_deterministic_and_batch_independent() -> None:
    labels, keys = torch.arange(50) % 10, some_keys(50)
    glyphs = drawing.font(labels, keys, 16)
    assert glyphs.shape == (50, 16, 16) and glyphs.dtype == torch.float32
    assert torch.equal(glyphs, drawing.font(labels, keys, 16))
    assert torch.equal(glyphs[:5], drawing.font(labels[:5], keys[:5], 16))
    assert torch.equal(glyphs[23:24], drawing.font(labels[23:24], keys[23:24], 16))


@pytest.mark.parametrize("side", [16, 28])
def test_font_glyphs_are_solid_and_stay_inside(side: int) -> None:
    labels = torch.arange(500) % 10
    glyphs = drawing.font(labels, some_keys(500), side)
    assert glyphs.min() == 0.0 and glyphs.max() == 1.0
    ink = glyphs.mean((1, 2))
    assert ink.min() > 0.03 and ink.max() < 0.45
    border = 1.0 - glyphs[:, 1:-1, 1:-1].sum((1, 2)) / glyphs.sum((1, 2))
    assert border.mean() < 0.02 and border.max() < 0.35


def test_font_follows_the_label_and_the_key() -> None:
    one_key, ten = some_keys(1).expand(10), torch.arange(10)
    digits = drawing.font(ten, one_key, 16)
    for a, b in itertools.combinations(range(10), 2):
        assert (digits[a] - digits[b]).abs().mean() > 0.03, (a, b)
    for label in range(10):
        glyphs = drawing.font(torch.full((20,), label), some_keys(20), 16).flatten(1)
        assert len(torch.unique(glyphs, dim=0)) == 20


def test_font_glyphs_of_one_label_are_alike() -> None:
    """Nearest class mean is a weak reader; that it reads most glyphs shows that the labels mean something."""
    labels = torch.arange(1000) % 10
    glyphs = drawing.font(labels, some_keys(1000), 16).flatten(1)
    means = torch.stack([glyphs[:500][labels[:500] == c].mean(0) for c in range(10)])
    read = torch.cdist(glyphs[500:], means).argmin(1)
    assert (read == labels[500:]).float().mean() > 0.7


def test_empty_batches_are_drawn() -> None:
    keys = some_keys(0)
    assert drawing.font(torch.zeros(0, dtype=torch.int64), keys, 16).shape == (0, 16, 16)
    for style in drawing.STYLES.values():
        assert style(torch.zeros(0, 16, 16), keys).shape == (0, 3, 16, 16)
