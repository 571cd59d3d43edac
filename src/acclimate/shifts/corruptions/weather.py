"""Weather. All functions take bytes [B,C,S,S], keys [B] and the severity's constants, and return bytes."""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from ...core import rng
from . import linear
from .linear import line_blur, luma, normal, stencil, to_bytes, uniform

_BOX = np.full((3, 3), 1 / 9)
_EMBOSS = np.array([[-2.0, -1, 0], [-1, 1, 1], [0, 1, 2]])
_SOBEL_X = np.array([[-1.0, 0, 1], [-2, 0, 2], [-1, 0, 1]])
_FAR = 20  # distances from a drop's rim are cut here


def snow(
    x: Tensor, keys: Tensor, c: tuple[float, float, float, float, int, float, float], rounded: bool = False
) -> Tensor:
    """Falling flakes: thresholded noise, zoomed and blurred along a steep line, over a whitened image."""
    mean, deviation, zoom, threshold, radius, sigma, keep = c
    side = x.shape[-1]
    field = linear.dyadic_field(normal(rng.fold(keys, "flakes"), 1, side, side) * deviation + mean)
    flakes = linear.sandwich(field, linear.zoom_matrix(side, *linear.zoom_size(side, zoom), x.device))
    flakes = to_bytes(torch.where(flakes < threshold, 0.0, flakes) * 255).to(torch.float32)
    flakes = line_blur(flakes, uniform(rng.fold(keys, "wind")) * 90 - 135, radius, sigma, rounded)
    pixels = x.to(torch.float32)
    white = torch.maximum(pixels, luma(pixels) * 1.5 + 127.5)
    return to_bytes(keep * pixels + (1 - keep) * white + flakes + flakes.flip(-2, -1))


def plasma(keys: Tensor, size: int, decay: float) -> Tensor:
    """Diamond-square height maps [B,size,size] scaled to [0, 1], wrapping around; `size` must be a power of two."""
    # Each point is set once, so one field of draws in the shape of the map serves all scales.
    draws = uniform(keys, size, size) * 2 - 1
    height = torch.zeros_like(draws)
    step, wobble = size, 100.0
    while step >= 2:
        half = step // 2
        corner = height[:, ::step, ::step]
        square = corner + corner.roll(-1, 1)
        square = square + square.roll(-1, 2)
        # The published code multiplies the wobble into uniform(-wobble, wobble): it enters squared.
        height[:, half::step, half::step] = square / 4 + wobble**2 * draws[:, half::step, half::step]
        centre = height[:, half::step, half::step]
        top = centre + centre.roll(1, 1) + corner + corner.roll(-1, 2)
        height[:, ::step, half::step] = top / 4 + wobble**2 * draws[:, ::step, half::step]
        left = centre + centre.roll(1, 2) + corner + corner.roll(-1, 1)
        height[:, half::step, ::step] = left / 4 + wobble**2 * draws[:, half::step, ::step]
        step, wobble = half, wobble / decay
    height = height - height.amin((1, 2), keepdim=True)
    return height / height.amax((1, 2), keepdim=True)


def fog(x: Tensor, keys: Tensor, c: tuple[float, float]) -> Tensor:
    """Fog: adds a fractal cloud, then scales back to the image's own maximum."""
    amount, decay = c
    side = x.shape[-1]
    cloud = plasma(keys, 1 << (side - 1).bit_length(), decay)[:, None, :side, :side]
    pixels = x.to(torch.float32) / 255
    top = pixels.amax((1, 2, 3), keepdim=True)
    return to_bytes((pixels + amount * cloud) * top / (top + amount) * 255)


def _edges(x: Tensor) -> Tensor:
    """Edge pixels of a grey image [B,1,S,S] after Canny: Sobel, thinning across the edge, thresholds 50 and 150."""
    dx, dy = stencil(x, _SOBEL_X, "replicate"), stencil(x, _SOBEL_X.T, "replicate")
    size = dx.abs() + dy.abs()
    padded = F.pad(size, (1, 1, 1, 1))
    side = x.shape[-1]

    def at(row: int, col: int) -> Tensor:
        return padded[..., 1 + row : 1 + row + side, 1 + col : 1 + col + side]

    def crest(row: int, col: int) -> Tensor:
        tie = (size == at(row, col)) & (row * col == 0)  # of two equal pixels the first is kept, but not on slants
        return (size > at(-row, -col)) & ((size > at(row, col)) | tie)

    flat, steep = dy.abs() < 0.4142 * dx.abs(), dy.abs() > 2.4142 * dx.abs()
    slant = torch.where(dx * dy < 0, crest(1, -1), crest(1, 1))
    thin = torch.where(flat, crest(0, 1), torch.where(steep, crest(1, 0), slant))
    weak, strong = thin & (size > 50), thin & (size > 150)
    for _ in range(8):  # weak edges count where they touch strong ones; chains longer than this do not occur
        strong = weak & (F.max_pool2d(strong.to(torch.float32), 3, 1, 1) > 0)
    return strong


def _distance(edges: Tensor) -> Tensor:
    """Euclidean distance to the nearest edge pixel, at most 20, by one pass along each axis."""
    far = float(_FAR**2)
    squared = torch.where(edges, 0.0, far)
    side = edges.shape[-1]
    for axis in (-1, -2):
        widths = (_FAR, _FAR, 0, 0) if axis == -1 else (0, 0, _FAR, _FAR)
        padded = F.pad(squared, widths, value=far)
        shifted = (padded.narrow(axis, _FAR + k, side) + k * k for k in range(-_FAR, _FAR + 1))
        for candidate in shifted:
            squared = torch.minimum(squared, candidate)
    return torch.sqrt(squared)


def _equalise(x: Tensor) -> Tensor:
    """Histogram equalisation of byte images [B,1,S,S] (float tensor of whole numbers)."""
    level = x.flatten(1).to(torch.int64)
    counts = torch.zeros(len(x), 256, dtype=torch.int64, device=x.device)
    cumulative = counts.scatter_add(1, level, torch.ones_like(level)).cumsum(1)
    total = level.shape[1]
    first = torch.where(cumulative > 0, cumulative, total).amin(1, keepdim=True)
    mapped = torch.round((cumulative - first).clamp(min=0) * 255.0 / (total - first).clamp(min=1))
    return torch.where(first == total, level.to(mapped.dtype), mapped.gather(1, level)).reshape(x.shape)


def _water(liquid: Tensor, strength: float) -> Tensor:
    """Opacity of the drops: brightest where the light would catch their rims."""
    drops = torch.floor(liquid * 255).clamp(0, 255)
    relief = torch.floor(stencil(_distance(_edges(drops)), _BOX))
    relief = torch.round(stencil(_equalise(relief), _EMBOSS)).clamp(0, 255)
    shine = drops * torch.round(stencil(relief, _BOX))
    return shine / shine.amax((1, 2, 3), keepdim=True).clamp(min=1) * strength


def spatter(x: Tensor, keys: Tensor, c: tuple[float, float, float, float, float, int]) -> Tensor:
    """Drops on the lens: turquoise water for the lower severities, brown mud for the higher ones."""
    mean, deviation, sigma, threshold, strength, mud = c
    side = x.shape[-1]
    field = linear.dyadic_field(normal(keys, 1, side, side) * deviation + mean)
    liquid = linear.gaussian_blur(field, sigma)
    colour = torch.tensor([63.0, 42, 20] if mud else [175.0, 238, 238], device=x.device)[None, :, None, None]
    if x.shape[1] == 1:
        colour = luma(colour)
    if not mud:
        liquid = torch.where(liquid < threshold, 0.0, liquid).to(torch.float32)
        return to_bytes(x + _water(liquid, strength) * colour)
    mask = linear.gaussian_blur((liquid > threshold).to(torch.float64), strength)
    mask = torch.where(mask < 0.8, 0.0, mask).to(torch.float32)
    return to_bytes(x * (1 - mask) + colour * mask)
