"""Noise on images: on those that clients train on alone, of the stated scale, and the same every time."""

import pytest
import torch

from acclimate.data import Digits, Features, Noisy, Public
from acclimate.experiment import decode, encode

PLAIN = Digits().load().x
STRONG = Noisy(kind="gaussian", s=0.1, p=0.5)


def noise_of(world, rows):
    """What is left of some images when half of each is taken off, where nothing is cut off at black and white."""
    middle = (PLAIN[rows] > 120) & (PLAIN[rows] < 200)
    return (world.examples.x[rows].float() - 0.5 * PLAIN[rows].float())[middle] / 255.0


def test_noise_is_on_training_images_alone():
    """FedPCL's Figure 6: (1 - p) x + e is the image used for training."""
    world = STRONG.world()
    train, rest = torch.cat(world.train), torch.cat([*world.val, *world.test])
    assert len(train) + len(rest) == len(PLAIN)
    assert torch.equal(world.examples.x[rest], PLAIN[rest])
    assert bool((world.examples.x[train] != PLAIN[train]).flatten(1).any(1).all())
    off = noise_of(world, train)
    assert abs(float(off.mean())) < 0.01 and float(off.std()) == pytest.approx(0.1, rel=0.05)


def test_an_image_has_the_same_noise_whoever_trains_on_it():
    one, other = (STRONG.world(seed) for seed in (0, 1))
    both = torch.cat(one.train)[torch.isin(torch.cat(one.train), torch.cat(other.train))]
    assert len(both) > 100 and torch.equal(one.examples.x[both], other.examples.x[both])
    assert torch.equal(Noisy(s=0.0, p=0.0).world().examples.x, PLAIN)


def test_noise_reaches_through_other_records():
    rows = torch.cat(Public(data=STRONG).world().train)
    assert float(noise_of(Public(data=STRONG).world(), rows).std()) == pytest.approx(0.1, rel=0.05)


class Means:
    """An encoder whose features are the images' mean brightness."""

    def parts(self):
        return (("means", lambda x: x.float().flatten(1).mean(1, keepdim=True)),)

    def fuse(self, parts):
        return parts[0]


def test_features_of_training_images_alone_carry_the_noise():
    world = Features(data=Noisy(s=0.0, p=0.5), encoder=Means()).world()
    train, rest = torch.cat(world.train), torch.cat([*world.val, *world.test])
    means = PLAIN.float().flatten(1).mean(1)
    assert torch.equal(world.examples.x[rest, 0], means[rest])
    torch.testing.assert_close(world.examples.x[train, 0], 0.5 * means[train], rtol=0, atol=0.5)


def test_a_file_of_an_earlier_version_means_noise_of_scale_p_s_on_all_images():
    written = {k: v for k, v in encode(Noisy(kind="gaussian", s=0.2, p=0.5)).items() if k != "revision"}
    world = decode(written).world()
    assert torch.equal(world.examples.x, decode(written).load().x)
    for rows in (torch.cat(world.train), torch.cat(world.test)):
        assert float(noise_of(world, rows).std()) == pytest.approx(0.1, rel=0.05)


def test_bad_settings_are_named():
    with pytest.raises(ValueError, match=r"p=1\.5"):
        Noisy(p=1.5)
    with pytest.raises(ValueError, match="kind='salt'"):
        Noisy(kind="salt")
    with pytest.raises(ValueError, match="revision=3"):
        Noisy(revision=3)
