"""Amplitudes and phases against numpy's Fourier transform."""

import numpy as np
import pytest
import torch

from acclimate.core import Task
from acclimate.models import MLP
from acclimate.ops import fourier


def pictures(*shape, seed=0):
    return torch.rand(*shape, generator=torch.Generator().manual_seed(seed))


def test_amplitudes_are_those_of_an_orthonormal_transform_of_pixels_in_0_to_1():
    x = pictures(2, 3, 4, 6)
    want = np.abs(np.fft.fft2(x.double().numpy(), norm="ortho"))
    np.testing.assert_allclose(fourier.amplitude(x), want, atol=1e-5)
    levels = (255 * x).to(torch.uint8)
    assert torch.equal(fourier.amplitude(levels), fourier.amplitude(levels.float() / 255))
    assert fourier.pixels(x) is x


def test_repainted_images_have_their_phases_and_the_wanted_amplitudes():
    x, other = pictures(2, 3, 4, 6).double(), pictures(2, 3, 4, 6, seed=1).double()
    spectrum, wanted = np.fft.fft2(x.numpy(), norm="ortho"), np.abs(np.fft.fft2(other.numpy(), norm="ortho"))
    phase = spectrum / np.sqrt(np.abs(spectrum) ** 2 + 1e-6)  # of length one, but for frequencies near 0.001
    want = x.numpy() + np.fft.ifft2((wanted - np.abs(spectrum)) * phase, norm="ortho").real
    np.testing.assert_allclose(fourier.repainted(x, torch.from_numpy(wanted)), want, atol=1e-6)
    torch.testing.assert_close(fourier.repainted(x, fourier.amplitude(x)), x)


def test_a_faint_frequency_keeps_no_phase():
    """With own amplitude a = FAINT at a single frequency the phase has length a / sqrt(2 a^2)."""
    at = np.zeros((4, 4))
    at[0, 1] = at[0, 3] = fourier.FAINT
    x = torch.from_numpy(np.fft.ifft2(at, norm="ortho").real)[None]
    wanted = torch.zeros(1, 4, 4, dtype=torch.float64)
    wanted[0, 0, 1] = wanted[0, 0, 3] = 3.0
    got = np.fft.fft2((fourier.repainted(x, wanted) - x).numpy(), norm="ortho")[0].real
    assert got[0, 1] == pytest.approx((3.0 - fourier.FAINT) / 2**0.5)
    assert fourier.FAINT == 1e-3


def test_mixed_amplitudes_by_a_weight_for_each_image():
    x, other = pictures(3, 3, 4, 4), fourier.amplitude(pictures(3, 3, 4, 4, seed=1))
    weight = torch.tensor([0.0, 0.25, 1.0])
    got = fourier.mixed(x, other, weight)
    torch.testing.assert_close(got[0], x[0])
    own = fourier.amplitude(x)
    quarter = fourier.repainted(x, 0.75 * own + 0.25 * other).clamp(0, 1)
    torch.testing.assert_close(got[1], quarter[1])
    torch.testing.assert_close(got[2], fourier.repainted(x, other).clamp(0, 1)[2])
    far = fourier.mixed(x, 5 * other, torch.ones(3))
    assert far.min() == 0 and far.max() == 1


def test_the_mean_amplitude_leaves_padding_out_whatever_the_chunk():
    x = pictures(9, 3, 4, 4)
    data = {"x": x, "rows": torch.tensor([5, 2, 7, 8, 0, 0]), "n": torch.tensor(4)}
    want = np.abs(np.fft.fft2(x[[5, 2, 7, 8]].double().numpy(), norm="ortho")).mean(0)
    for chunk in (256, 3, 1):
        np.testing.assert_allclose(fourier.mean_amplitude(data, chunk), want, atol=1e-5)
    assert not fourier.mean_amplitude({**data, "n": torch.tensor(0)}).any()


def test_the_federations_amplitudes_count_where_there_are_any():
    none, some, own = torch.zeros(1, 2, 2), torch.full((1, 2, 2), 0.1), torch.ones(1, 2, 2)
    assert torch.equal(fourier.known_or(none, own), own) and torch.equal(fourier.known_or(some, own), some)


@pytest.mark.parametrize(
    ("shape", "share", "want"),
    [((3, 32, 32), 0.1, 3), ((3, 10, 40), 0.3, 3), ((3, 10, 40), 0.9, 4), ((3, 9, 9), 1.0, 4), ((1, 8, 6), 0.0, 0)],
)
def test_how_far_low_frequencies_reach(shape, share, want):
    assert fourier.reach(shape, share) == want


@pytest.mark.parametrize("shape", [(6, 8), (7, 5)])
def test_the_low_frequencies_lie_around_the_mean(shape):
    x = pictures(2, *shape)
    got = fourier.low(x, 2)
    for i in range(-2, 3):
        for j in range(-2, 3):
            assert torch.equal(got[:, 2 + i, 2 + j], x[:, i % shape[0], j % shape[1]])
    block = pictures(2, 5, 5, seed=3)
    new = fourier.with_low(x, block)
    torch.testing.assert_close(fourier.low(new, 2), block)
    low = {(i % shape[0], j % shape[1]) for i in range(-2, 3) for j in range(-2, 3)}
    for r in range(shape[0]):
        for c in range(shape[1]):
            assert (r, c) in low or torch.equal(new[:, r, c], x[:, r, c])


def test_inputs_that_are_no_images_are_refused():
    images = Task(MLP(hidden=(4,)), (3, 4, 6), 3)
    assert fourier.unknown(images, "AM", torch.device("cpu")).shape == (3, 4, 6)
    assert not fourier.unknown(images, "AM", torch.device("cpu")).any()
    with pytest.raises(ValueError, match=r"AM needs images to take spectra of, and these inputs have shape \(5,\)"):
        fourier.unknown(Task(MLP(hidden=(4,)), (5,), 3), "AM", torch.device("cpu"))
