"""Digital corruptions: colour, geometry and resolution. Bytes [B,C,S,S], keys [B] and constants in, bytes out."""

from __future__ import annotations

from functools import lru_cache

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core import rng
from . import linear
from .constants import LARGE_SIDE
from .linear import to_bytes, uniform


def brightness(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Adds `c` of full scale to the value of HSV, hue and saturation kept; to the pixel itself in grey images.

    With hue and saturation fixed a colour is proportional to its value, so no conversion to HSV is needed.
    """
    pixels = x.to(torch.float32)
    value = pixels.amax(1, keepdim=True)
    brighter = (value + 255 * c).clamp(max=255)
    return to_bytes(torch.where(value > 0, pixels * (brighter / value.clamp(min=1)), brighter))


def saturate(x: Tensor, keys: Tensor, c: tuple[float, float]) -> Tensor:
    """Maps the saturation of HSV to `c[0] * saturation + c[1]`, hue and value kept.

    Colourless pixels have hue 0 and turn reddish where `c[1] > 0`, as in the published suite. Grey images have no
    saturation: there the map applies to the pixel.
    """
    scale, offset = c
    pixels = x.to(torch.float32)
    if x.shape[1] == 1:
        return to_bytes(pixels * scale + 255 * offset)
    value, low = pixels.amax(1, keepdim=True), pixels.amin(1, keepdim=True)
    saturation = (value - low) / value.clamp(min=1)
    target = (saturation * scale + offset).clamp(0, 1)
    # Distances below the value are proportional to the saturation.
    coloured = value - (value - pixels) * (target / torch.where(saturation > 0, saturation, 1.0))
    redness = torch.tensor([0.0, 1.0, 1.0], device=x.device)[:, None, None]
    return to_bytes(torch.where(saturation > 0, coloured, value * (1 - target * redness)))


def contrast(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Scales the distance from each channel's mean by `c`. Draws nothing."""
    # Summed as integers: a float mean could depend on the order of summation.
    mean = x.sum((2, 3), keepdim=True, dtype=torch.int64).to(torch.float64) / x[0, 0].numel()
    return to_bytes((x - mean) * c + mean)


@lru_cache(maxsize=64)
def _box_matrix(side: int, small: int, device: torch.device) -> Tensor:
    """Rows that average the source pixels whose centres fall into each target pixel, in 22-bit fixed point."""
    scale = side / small
    pixel, middle = np.arange(side), (np.arange(small)[:, None] + 0.5) * scale
    # Two tests that agree but for rounding: the published images come from a library that applies both.
    first, last = np.floor(middle - 0.5 * scale + 0.5), np.floor(middle + 0.5 * scale + 0.5)
    offset = (pixel - middle + 0.5) * (1 / scale)
    inside = (pixel >= first) & (pixel < last) & (offset > -0.5) & (offset <= 0.5)
    steps = np.floor(2**22 * inside / inside.sum(1, keepdims=True) + 0.5)
    return torch.from_numpy(steps / 2**22).to(device)


def pixelate(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Low resolution: box-averaged to `int(side * c)` pixels, then enlarged with whole pixels. Draws nothing."""
    side = x.shape[-1]
    small = int(side * c)
    matrix = _box_matrix(side, small, x.device)
    wide = torch.floor(x.to(torch.float64) @ matrix.T + 0.5)
    tiny = torch.floor(wide.mT @ matrix.T + 0.5).to(torch.uint8).mT
    back = ((torch.arange(side, device=x.device, dtype=torch.float64) + 0.5) * (small / side)).to(torch.int64)
    return tiny[:, :, back][:, :, :, back]


def _affine(keys: Tensor, side: int, jitter: float) -> Tensor:
    """Random affine maps [B,2,3] from output to input pixels (x, y): three points of a square move by +-jitter."""
    centre, arm = float(side // 2), float(side // 3)
    before = torch.tensor([[arm, arm], [arm, -arm], [-arm, -arm]], device=keys.device) + centre
    after = before + (uniform(keys, 3, 2) * 2 - 1) * jitter
    # Columns of the linear part: the images of the unit vectors, from the square's two sides.
    first, second = (after[:, 1] - after[:, 2]) / (2 * arm), (after[:, 0] - after[:, 1]) / (2 * arm)
    shift = after[:, 1] - first * before[1, 0] - second * before[1, 1]
    det = first[:, 0] * second[:, 1] - first[:, 1] * second[:, 0]
    det = torch.where(det.abs() < 1e-4, 1e-4, det)[:, None]  # three points nearly on a line have no inverse
    row_x = torch.stack((second[:, 1], -second[:, 0]), 1) / det
    row_y = torch.stack((-first[:, 1], first[:, 0]), 1) / det
    inverse = torch.stack((row_x, row_y), 1)
    return torch.cat((inverse, -(inverse * shift[:, None]).sum(2, keepdim=True)), 2)


def _sample(x: Tensor, px: Tensor, py: Tensor, repeat_edge: bool) -> Tensor:
    """Bilinear values of `x` at pixel positions [B,S,S], mirrored at the border with or without the edge repeated."""
    side = x.shape[-1]
    position = torch.stack((px, py), -1)
    grid = (2 * position + 1) / side - 1 if repeat_edge else 2 * position / (side - 1) - 1
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="reflection", align_corners=not repeat_edge)


def elastic_transform(x: Tensor, keys: Tensor, c: tuple[float, float, float]) -> Tensor:
    """Stretches: a random affine map, then a smooth random displacement of every pixel.

    The large suite's lengths are meant for 224 px and are scaled to the image's side; its filters would otherwise
    exceed the image.
    """
    side = x.shape[-1]
    amplitude, sigma, jitter = (v * (side / 224 if side >= LARGE_SIDE else 1.0) for v in c)
    line = torch.arange(side, device=x.device, dtype=torch.float32)
    map_x, map_y = _affine(rng.fold(keys, "affine"), side, jitter)[:, :, :, None, None].unbind(1)
    px = map_x[:, 0] * line + map_x[:, 1] * line[:, None] + map_x[:, 2]
    py = map_y[:, 0] * line + map_y[:, 1] * line[:, None] + map_y[:, 2]
    moved = _sample(x.to(torch.float32), px, py, repeat_edge=False)
    if amplitude == 0:
        return to_bytes(moved)
    field = linear.dyadic_field(uniform(rng.fold(keys, "field"), 2, side, side) * 2 - 1)
    smooth = linear.sandwich(field, linear.gaussian_matrix(side, sigma, 3.0, "reflect", x.device))
    dx, dy = (smooth * amplitude).to(torch.float32).unbind(1)
    return to_bytes(_sample(moved, line + dx, line[:, None] + dy, repeat_edge=True))
