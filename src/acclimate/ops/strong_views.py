"""The augmentation of CoTTA and RoTTA (Wang et al., CVPR 2022): light, colours, a small turn, blur and noise."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng
from .augment import flip, relit


@dataclass(frozen=True)
class StrongViews:
    """A view of the whole image in another light, turned and shifted a little, blurred and with noise.

    The published code changes brightness, contrast, saturation, hue and gamma in a random order; here it is this one.
    """

    clips: ClassVar[bool] = True
    light: float = 0.4
    """Brightness is scaled by a factor within 1 +- light."""
    contrast: float = 0.3
    saturation: float = 0.5
    hue: float = 0.06
    """Colours go round by at most this share of the circle, either way."""
    gamma: float = 0.3
    """Pixels get an exponent within 1 +- gamma."""
    turn: float = 15.0
    """Degrees of the largest turn, either way."""
    shift: float = 1 / 8
    """The farthest shift, as a share of the image's sides (published: 1/16 of it with margins of half its own)."""
    scale: float = 0.1
    """The image is scaled by a factor within 1 +- scale."""
    blur: float = 0.5
    """Pixels of the widest Gaussian blur, over five."""
    flip: bool = True
    """Whether a view may be mirrored; no for digits and letters."""
    noise: float = 0.005
    """The standard deviation of noise on every pixel."""

    def __post_init__(self) -> None:
        for name in ("light", "contrast", "saturation", "gamma", "scale"):
            check.within(self, name, 0.0, 0.99)
        check.within(self, "hue", 0.0, 0.5)
        for name in ("turn", "shift", "blur", "noise"):
            check.at_least(self, name, 0.0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image [B, C, H, W] (uint8, or floats in 0..1): floats in 0..1."""
        x = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x.clamp(0.0, 1.0)
        draws = 2.0 * rng.uniform(rng.fold(key, "factors"), 9, x.shape[0]) - 1.0
        light, contrast, saturation, gamma = (
            (1.0 + by * draw)[:, None, None, None]
            for by, draw in zip((self.light, self.contrast, self.saturation, self.gamma), draws[:4], strict=True)
        )
        x = relit(x, light, contrast, saturation, (self.hue * draws[4])[:, None, None])
        x = x.pow(gamma)
        shifts = 2.0 * self.shift * draws[7:9]  # of half the image
        x = tilted(x, math.radians(self.turn) * draws[5], 1.0 + self.scale * draws[6], shifts[0], shifts[1])
        if self.blur:
            x = blurred(x, 0.001 + (self.blur - 0.001) * rng.uniform(rng.fold(key, "blur"), x.shape[0]))
        if self.flip:
            x = flip(x, rng.fold(key, "flip"))
        return (x + self.noise * rng.normal(rng.fold(key, "noise"), *x.shape)).clamp(0.0, 1.0)


def tilted(x: Tensor, angle: Tensor, scale: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """Images turned by angles, scaled, and shifted by parts of half an image, one number each; edges go on outside."""
    b, _, h, w = x.shape
    rows, columns = (torch.arange(n, device=x.device, dtype=x.dtype).add(0.5) * (2.0 / n) - 1.0 for n in (h, w))
    py, px = rows[None, :, None] - down[:, None, None], columns[None, None, :] - across[:, None, None]
    cos, sin = ((f(angle) / scale)[:, None, None] for f in (torch.cos, torch.sin))
    grid = torch.stack((cos * px - sin * py * (h / w), sin * px * (w / h) + cos * py), -1)
    return F.grid_sample(x, grid.expand(b, h, w, 2), mode="bilinear", padding_mode="border", align_corners=False)


def blurred(x: Tensor, sigma: Tensor) -> Tensor:
    """Images under a Gaussian of five by five pixels, with a width of its own for every image."""
    away = torch.arange(-2, 3, device=x.device, dtype=x.dtype)
    weight = (-0.5 * (away / sigma[:, None]).square()).softmax(-1)  # [B, 5]
    for axis in (-2, -1):
        edges = (2, 2, 0, 0) if axis == -1 else (0, 0, 2, 2)
        wide, size = F.pad(x, edges, mode="replicate"), x.shape[axis]
        x = reduce(torch.add, (weight[:, i, None, None, None] * wide.narrow(axis, i, size) for i in range(5)))
    return x
