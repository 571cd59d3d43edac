"""Labelled images that look as a stream does: what a model would answer to a client's own samples there. Our own.

A corruption changes how bright, how strong in contrast and how grainy an image is; a stranger's samples look as the
client's own do. So a model's answers to a client's kept images, dressed as the stream, say what it does on this
client's own samples under the stream's corruption, with labels.
"""

from __future__ import annotations

import torch
from torch import Tensor

LEAST = 1e-3
"""The least strength of a part, in grey levels of 0 to 1: less is not told from nothing."""


def dressed(kept: Tensor, like: Tensor) -> Tensor:
    """Images [N, C, H, W], each with the looks of one of the images [B, C, H, W], in turn.

    An image is the mean of each channel, its shape (what a Gaussian leaves of the rest) and its grain (what the
    Gaussian takes away). The mean and the strength of the shape become the other image's. Grain that is too strong is
    weakened; where it is too weak, grain of the other image makes up for it. Pixels stay between the least and the
    greatest of all images given.
    """
    at = torch.arange(len(kept), device=kept.device) % len(like)
    own, other = _floats(kept), torch.nan_to_num(_floats(like))[at]
    low, high = torch.minimum(own.amin(), other.amin()), torch.maximum(own.amax(), other.amax())
    (_, shape, grain), (mean, its_shape, its_grain) = _parts(own), _parts(other)
    have, want = _strength(grain), _strength(its_grain)
    missing = (want.square() - have.square()).clamp_min(0.0).sqrt()
    looks = mean + shape * (_strength(its_shape) / _strength(shape))
    looks = looks + grain * (want / have).clamp_max(1.0) + its_grain * (missing / want)
    looks = torch.minimum(torch.maximum(looks, low), high)
    return (looks if kept.is_floating_point() else (255 * looks).round()).to(kept.dtype)


def smoothed(x: Tensor) -> Tensor:
    """Images [N, C, H, W] under a Gaussian of one pixel, or of a 32nd of the longer side where that is more."""
    sigma = max(1.0, max(x.shape[-2:]) / 32)

    def spread(side: int) -> Tensor:
        at = torch.arange(side, device=x.device, dtype=x.dtype)
        away = at[:, None] - at
        return (-0.5 * (away / sigma).square()).softmax(-1)

    return spread(x.shape[-2]) @ x @ spread(x.shape[-1]).T


def _floats(x: Tensor) -> Tensor:
    return x if x.is_floating_point() else x.to(torch.float32) / 255


def _parts(x: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """Means of channels, shape and grain, which sum up to the images."""
    mean = x.mean((-2, -1), keepdim=True)
    shape = smoothed(x - mean)
    return mean, shape, x - mean - shape


def _strength(part: Tensor) -> Tensor:
    """The root of the mean square over all pixels of each image."""
    return part.square().mean((-3, -2, -1), keepdim=True).sqrt().clamp_min(LEAST)
