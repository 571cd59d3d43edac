"""Noise on images: none at p = 0, the stated amount else, and the same every time."""

import pytest
import torch

from acclimate.data import Digits, Noisy


def test_noise_is_as_strong_as_stated_and_the_same_every_time():
    plain = Digits().load().x
    assert torch.equal(Noisy(p=0.0).load().x, plain)
    noisy = Noisy(kind="gaussian", s=0.2, p=0.5)
    assert torch.equal(noisy.load().x, noisy.load().x)
    inside = (plain > 100) & (plain < 200)  # where nothing is cut off at black and white
    off = (noisy.load().x.float() - 0.5 * plain.float())[inside] / 255.0
    assert abs(float(off.mean())) < 0.01 and float(off.std()) == pytest.approx(0.1, rel=0.05)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match=r"p=1\.5"):
        Noisy(p=1.5)
    with pytest.raises(ValueError, match="kind='salt'"):
        Noisy(kind="salt")
