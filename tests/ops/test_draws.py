"""Draws by value: Laplace noise, AugMix's strengths, and how much of another image's amplitudes AM takes."""

import math

import torch

from acclimate.core import rng
from acclimate.methods import AM
from acclimate.ops import augmix, fourier
from acclimate.ops.noise import draw


def test_laplace_noise_is_the_inverse_of_its_distribution_at_the_uniform_draw():
    key = rng.key(3)
    uniform = rng.uniform(key, 50).double() + 2.0**-25
    # F(x) = exp(x) / 2 below zero and 1 - exp(-x) / 2 above it
    expected = torch.where(uniform < 0.5, (2 * uniform).log(), -(2 * (1 - uniform)).log())
    found = draw("laplace", key, torch.zeros(50))
    torch.testing.assert_close(found.double(), expected, rtol=1e-4, atol=1e-5)
    assert bool((found[uniform < 0.5] < 0).all())


def test_strengths_of_augmix_are_shears_and_whole_pixels_of_the_given_sign():
    names = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
    op = torch.tensor([augmix._AT[n] for n in names])
    level, sign = torch.full((5,), 4.7), -torch.ones(5)
    matrix = augmix._drawn(op, level, sign, (20, 32)).matrix
    torch.testing.assert_close(matrix[0, 0, 1], torch.tensor(-0.141))  # 4.7 x 0.03
    torch.testing.assert_close(matrix[1, 1, 0], torch.tensor(-0.141))
    assert matrix[2, 0, 2].item() == -math.floor(4.7 * 32 / 30) == -5
    assert matrix[3, 1, 2].item() == -math.floor(4.7 * 20 / 30) == -3
    torch.testing.assert_close(matrix[4, 0, 0], torch.tensor(math.cos(math.radians(14))))
    torch.testing.assert_close(matrix[4, 0, 1], torch.tensor(-math.sin(math.radians(14))))


def test_am_takes_at_most_its_strength_of_the_other_amplitudes():
    x = torch.rand(6, 3, 8, 8, generator=torch.Generator().manual_seed(0))
    other, key = fourier.amplitude(x.flip(0)), rng.key(5)
    weight = 0.25 * rng.uniform(rng.fold(key, "weight"), 6)
    found = AM(strength=0.25, chance=1.0).mixed(x, other, key)
    torch.testing.assert_close(found, fourier.mixed(x, other, weight))
    assert float((found - fourier.mixed(x, other, weight * 16)).abs().max()) > 1e-3
