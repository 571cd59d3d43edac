"""Blurs. All functions take bytes [B,C,S,S], keys [B] and the severity's constants, and return bytes."""

from __future__ import annotations

from collections import Counter
from functools import lru_cache

import numpy as np
import torch
from torch import Tensor

from ...core import rng
from . import linear
from .linear import line_blur, stencil, to_bytes, uniform


def gaussian_blur(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Gaussian blur of sigma `c`. Draws nothing."""
    return to_bytes(linear.gaussian_blur(x, c))


@lru_cache(maxsize=32)
def disk_kernel(radius: float, alias_blur: float) -> np.ndarray:
    """A disk whose rim is softened by a small Gaussian; do not modify the (cached) result.

    Softening mirrors at the border of the array, so disks that touch it (radii 8 and 10) gain up to 1 % of weight and
    brighten the image a little: so do the published ones.
    """
    reach, half = (8, 1) if radius <= 8 else (int(radius), 2)
    line = np.arange(-reach, reach + 1)
    disk = (line[:, None] ** 2 + line**2 <= radius**2).astype(float)
    soft = np.exp(-0.5 * (np.arange(-half, half + 1) / alias_blur) ** 2)
    padded = np.pad(disk / disk.sum(), half, mode="reflect")
    windows = np.lib.stride_tricks.sliding_window_view(padded, (2 * half + 1, 2 * half + 1))
    kernel: np.ndarray = np.einsum("ijab,a,b->ij", windows, soft / soft.sum(), soft / soft.sum())
    return kernel


def defocus_blur(x: Tensor, keys: Tensor, c: tuple[float, float]) -> Tensor:
    """A lens out of focus: blur with a disk. Draws nothing."""
    return to_bytes(stencil(x.to(torch.float32), disk_kernel(*c)))


def _walk(pointer: Tensor, stops: Tensor, rounds: int = 7) -> Tensor:
    """Follows each pixel's pointer until a step that stops, by doubling: 2**rounds steps at the most.

    Stopped walks are written as `n + target`, and the second half of the table maps them onto themselves.
    """
    n = pointer.shape[1]
    state = torch.where(stops, pointer + n, pointer)
    ended = torch.arange(n, 2 * n, device=pointer.device).expand_as(pointer)
    for _ in range(rounds):
        state = torch.cat((state, ended), 1).gather(1, state)
    return state % n


def shuffle_sources(keys: Tensor, side: int, reach: int) -> Tensor:
    """Where each pixel's value comes from in one round of glass blur's local shuffle, as flat indices [B, side * side].

    The published loop runs from the last pixel to the first and gives each inner pixel the *current* value of a pixel
    at a random offset in [-reach, reach): a copy, not the exchange that was intended. A source later in raster order
    was already overwritten, so its value is looked up in turn. That chain is followed exactly here. For reach 1 (32-px
    suite) offsets are never positive and the loop is a plain gather.
    """
    n = side * side
    draw = (uniform(keys, n) * (2 * reach) ** 2).to(torch.int64)
    here = torch.arange(n, device=keys.device)
    source = here + (draw // (2 * reach) - reach) * side + draw % (2 * reach) - reach
    line = torch.arange(side, device=keys.device)
    inner = (line > reach) & (line <= side - reach)
    moved = (inner[:, None] & inner).flatten()
    source = torch.where(moved, source, here)
    if reach == 1:
        return source
    return _walk(source, ~(moved[source] & (source > here)))


def glass_blur(x: Tensor, keys: Tensor, c: tuple[float, int, int]) -> Tensor:
    """Frosted glass: blur, shuffle pixels locally for some rounds, blur."""
    sigma, reach, rounds = c
    flat = to_bytes(linear.gaussian_blur(x, sigma)).flatten(2)
    for i in range(rounds):
        source = shuffle_sources(rng.fold(keys, i), x.shape[-1], reach)
        flat = flat.gather(2, source[:, None].expand_as(flat))
    return to_bytes(linear.gaussian_blur(flat.reshape(x.shape), sigma))


def motion_blur(x: Tensor, keys: Tensor, c: tuple[int, float], rounded: bool = False) -> Tensor:
    """A moving camera: one-sided blur along a line at a random angle in (-45, 45) degrees."""
    return to_bytes(line_blur(x.to(torch.float32), uniform(keys) * 90 - 45, *c, rounded=rounded))


def zoom_blur(x: Tensor, keys: Tensor, c: tuple[float, float]) -> Tensor:
    """A camera moving forward: the mean of the image and of its central zooms from 1 to the end. Draws nothing."""
    end, step = c
    side = x.shape[-1]
    pixels = total = x.to(torch.float64)
    # Zooms are rounded to whole crops and sizes, so in small images many factors give one and the same picture.
    sizes = Counter(linear.zoom_size(side, factor) for factor in np.arange(1, end, step).tolist())
    for size, times in sizes.items():
        total = total + times * linear.sandwich(pixels, linear.zoom_matrix(side, *size, x.device))
    return to_bytes(total / (sizes.total() + 1))
