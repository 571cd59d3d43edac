"""Draws per image and the linear operators that the corruptions share.

An image's result must not depend on the batch it is in, down to the last bit. Matrix products and convolutions choose
their order of summation by shape, so they are used only where every product and sum is exact in float64: on inputs and
matrices that are multiples of small powers of two. Everything else is elementwise.
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core import rng

_BITS = 18  # 8 bits of pixel, twice 18 of weights and 5 of summands stay below the 53 of float64
_NUDGE = 2.0**-13  # see to_bytes; for float32
_FIELD_BITS = 12  # resolution of random fields (snow, displacements) before an exact product


def uniform(keys: Tensor, *shape: int) -> Tensor:
    """Uniform numbers [B, *shape], row `b` from `keys[b]` alone."""
    return torch.vmap(lambda k: rng.uniform(k, *shape))(keys)


def normal(keys: Tensor, *shape: int) -> Tensor:
    """Standard normal numbers [B, *shape], row `b` from `keys[b]` alone."""
    return torch.vmap(lambda k: rng.normal(k, *shape))(keys)


def to_bytes(x: Tensor) -> Tensor:
    """Clips to [0, 255] and truncates, as the published suite does.

    A little is added first: without it rounding errors would turn the many results that are whole numbers into the
    number below. It is far less than a grey level, since some blurs do change a pixel by a thousandth only.
    """
    return (x + (2.0**-30 if x.dtype == torch.float64 else _NUDGE)).clamp(0, 255).to(torch.uint8)


def luma(x: Tensor) -> Tensor:
    """The grey version [B,1,H,W] of RGB (ITU-R 601 weights); grey images pass unchanged."""
    return x if x.shape[1] == 1 else 0.299 * x[:, 0:1] + 0.587 * x[:, 1:2] + 0.114 * x[:, 2:3]


def _dyadic(matrix: np.ndarray) -> Tensor:
    """Rounds the entries to multiples of 2**-18; the largest one of a row makes up for the rounding of the others."""
    steps = np.round(matrix * 2**_BITS)
    largest = np.abs(steps).argmax(axis=1)
    steps[np.arange(len(steps)), largest] += np.round(matrix.sum(1) * 2**_BITS) - steps.sum(1)
    return torch.from_numpy(steps / 2**_BITS)


@lru_cache(maxsize=64)
def gaussian_matrix(side: int, sigma: float, truncate: float, mode: str, device: torch.device) -> Tensor:
    """Gaussian blur along one axis as a [side, side] matrix; `mode` is "nearest" or "reflect" (edge pixel repeated).

    A matrix because the elastic field of large images uses filters longer than the image.
    """
    radius = int(truncate * sigma + 0.5)
    offsets = np.arange(-radius, radius + 1)
    weights = np.exp(-0.5 * (offsets / sigma) ** 2) if radius else np.ones(1)
    source = np.arange(side)[:, None] + offsets
    if mode == "nearest":
        source = source.clip(0, side - 1)
    else:
        source = source % (2 * side)
        source = np.minimum(source, 2 * side - 1 - source)
    matrix = np.zeros((side, side))
    np.add.at(matrix, (np.arange(side)[:, None], source), weights / weights.sum())
    return _dyadic(matrix).to(device)


def zoom_size(side: int, factor: float) -> tuple[int, int]:
    """The side of the central crop that a zoom keeps, and the side that it is enlarged to."""
    crop = int(np.ceil(side / factor))
    return crop, round(crop * factor)


@lru_cache(maxsize=512)
def zoom_matrix(side: int, crop: int, enlarged: int, device: torch.device) -> Tensor:
    """Central zoom along one axis: linear interpolation, outermost pixels of the crop onto outermost pixels."""
    top, trim = (side - crop) // 2, (enlarged - side) // 2
    position = (np.arange(side) + trim) * (crop - 1) / (enlarged - 1)
    low = np.minimum(np.floor(position).astype(int), crop - 2)
    rows, weight = np.arange(side), position - low
    matrix = np.zeros((side, side))
    matrix[rows, top + low] = 1 - weight
    matrix[rows, top + low + 1] = weight
    return _dyadic(matrix).to(device)


def sandwich(x: Tensor, matrix: Tensor) -> Tensor:
    """`matrix @ x @ matrix.T` for each image, exact in float64 for bytes and for `dyadic_field`s."""
    # Both products have the small matrix on the right: one large product each instead of one small one per image.
    turned: Tensor = (x.to(torch.float64) @ matrix.T).transpose(-1, -2).contiguous()
    out: Tensor = turned @ matrix.T
    return out.transpose(-1, -2)


def gaussian_blur(x: Tensor, sigma: float) -> Tensor:
    """Blur with the published suite's defaults: edge pixels repeated, cut at four deviations. float64."""
    return sandwich(x, gaussian_matrix(x.shape[-1], float(sigma), 4.0, "nearest", x.device))


def dyadic_field(x: Tensor) -> Tensor:
    """Rounds a random field to 12 bits after the point so that `sandwich` is exact on it."""
    return torch.round(x.to(torch.float64) * 2.0**_FIELD_BITS) / 2.0**_FIELD_BITS


def stencil(x: Tensor, kernel: np.ndarray, border: str = "reflect") -> Tensor:
    """Correlation with a small odd kernel, elementwise, tap by tap; the border is mirrored about the edge pixel."""
    rows, cols = np.nonzero(np.abs(kernel) > 1e-7)
    centre, side = kernel.shape[0] // 2, x.shape[-1]
    reach = int(max(np.abs(rows - centre).max(), np.abs(cols - centre).max()))
    padded = F.pad(x, (reach, reach, reach, reach), mode=border)
    out = torch.zeros_like(x)
    for r, c in zip(rows.tolist(), cols.tolist(), strict=True):
        top, left = r - centre + reach, c - centre + reach
        out.add_(padded[..., top : top + side, left : left + side], alpha=float(kernel[r, c]))
    return out


def line_blur(x: Tensor, degrees: Tensor, radius: int, sigma: float, rounded: bool = False) -> Tensor:
    """One-sided motion blur of [B,C,S,S] along one direction per image, in whole grey levels.

    The half-Gaussian has 2 * radius + 1 taps, each at the nearest pixel along the line; edge pixels are repeated. Grey
    levels are truncated, as in the published suite; `rounded` is how revision 1 has them.
    """
    steps = np.arange(2 * radius + 1)
    weights = np.exp(-0.5 * (steps / sigma) ** 2)
    weights /= weights.sum()
    taps = int((weights > 1e-6).sum())  # the rest hardly changes a grey level
    if not rounded:
        weights /= weights[:taps].sum()  # without the rest, truncation would darken flat images
    b, c, side, _ = x.shape
    width = side + 2 * taps
    flat = F.pad(x, (taps, taps, taps, taps), mode="replicate").flatten(2)
    grid = torch.arange(side, device=x.device)
    base = ((grid[:, None] + taps) * width + grid + taps).flatten()
    dy, dx = torch.sin(torch.deg2rad(degrees)), torch.cos(torch.deg2rad(degrees))
    out = torch.zeros(b, c, side * side, device=x.device)
    for i in range(taps):
        shift = torch.ceil(i * dy - 0.5) * width + torch.ceil(i * dx - 0.5)
        index = base + shift.to(torch.int64)[:, None]
        out.add_(flat.gather(2, index[:, None].expand(b, c, -1)), alpha=float(weights[i]))
    return torch.floor(out + (0.5 if rounded else _NUDGE)).reshape(x.shape)
