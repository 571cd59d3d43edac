"""Images in Fourier space: amplitudes carry light, colour and texture, phases say what is where.

Xu et al., CVPR 2021, and Liu et al., CVPR 2021, both change amplitudes and keep phases. Spectra are orthonormal, so an
amplitude has the scale of a pixel in 0..1 whatever the size of the image.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Task, Tree
from . import requirements
from .masks import real_rows

FAINT = 1e-3
"""Frequencies below this amplitude lose their phase: it is that of the rounding to 8 bits, and would differ by chance
from one machine to the next."""


def unknown(task: Task, who: str, device: torch.device, mixes: bool = False) -> Tensor:
    """The federation's amplitudes before any is known, all zero; inputs that are no images are refused, and those that
    `mixed` would cut where the method `mixes`."""
    needs = requirements.pixels if mixes else requirements.images
    requirements.need(needs(task, who, "take spectra of"))
    return torch.zeros(task.shape, device=device)


def need_pixels(task: Task, who: str) -> None:
    """Refuse inputs that are no images, and those that `mixed` would cut."""
    requirements.need(requirements.pixels(task, who, "take spectra of"))


def pixels(x: Tensor) -> Tensor:
    """Images as floats in 0..1, as `Task.normalise` has them."""
    return x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x


def amplitude(x: Tensor) -> Tensor:
    """The amplitudes of images [..., C, H, W], of the same shape."""
    return torch.fft.fft2(pixels(x), norm="ortho").abs()


def repainted(x: Tensor, wanted: Tensor) -> Tensor:
    """Images with their own phases and these amplitudes. Where the amplitudes are their own, nothing changes."""
    x = pixels(x)
    spectrum = torch.fft.fft2(x, norm="ortho")
    own = spectrum.abs()
    phase = spectrum / (own.square() + FAINT**2).sqrt()
    return x + torch.fft.ifft2((wanted - own) * phase, norm="ortho").real


def mixed(x: Tensor, other: Tensor, weight: Tensor) -> Tensor:
    """Images [B, C, H, W] whose amplitudes are, by a weight for each image, in part others; cut to 0..1."""
    own, share = amplitude(x), weight.view(-1, 1, 1, 1)
    return repainted(x, own + share * (other - own)).clamp(0.0, 1.0)


def mean_amplitude(data: Tree, chunk: int = 256) -> Tensor:
    """The mean amplitudes [C, H, W] of a client's own images, a chunk at a time to bound memory."""
    rows = data["rows"]
    real = real_rows(rows.shape[-1], data["n"])
    total = torch.stack(
        [
            (amplitude(data["x"][part]) * kept.view(-1, 1, 1, 1)).sum(0)
            for part, kept in zip(rows.split(chunk), real.split(chunk), strict=True)
        ]
    ).sum(0)
    return total / data["n"].clamp_min(1)


def known_or(common: Tensor, own: Tensor) -> Tensor:
    """The federation's amplitudes, or one's own where it has none yet (all zero)."""
    return torch.where(common.sum() > 0, common, own)


def reach(shape: tuple[int, ...], share: float) -> int:
    """How many frequencies on each side of the mean are low: a share of the image's shorter side."""
    side = min(shape[-2:])
    return min(int(share * side), (side - 1) // 2)


def low(amplitudes: Tensor, reach: int) -> Tensor:
    """The low frequencies [..., 2 reach + 1, 2 reach + 1], the mean in the middle."""
    height, width = amplitudes.shape[-2] // 2, amplitudes.shape[-1] // 2
    centred = torch.fft.fftshift(amplitudes, dim=(-2, -1))
    return centred[..., height - reach : height + reach + 1, width - reach : width + reach + 1]


def with_low(amplitudes: Tensor, block: Tensor) -> Tensor:
    """Amplitudes whose low frequencies are replaced by a block as `low` gives it."""
    (height, width), size = amplitudes.shape[-2:], block.shape[-1]
    top, left = height // 2 - size // 2, width // 2 - size // 2
    change = block - low(amplitudes, size // 2)
    grown = F.pad(change, (left, width - left - size, top, height - top - size))
    return amplitudes + torch.fft.ifftshift(grown, dim=(-2, -1))
