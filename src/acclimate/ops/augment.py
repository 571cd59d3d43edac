"""Random views of images and turns of them, as keyed tensor code that runs under `vmap`."""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng


def flip(x: Tensor, key: rng.Key) -> Tensor:
    """Each image mirrored left to right, or not, with equal chance."""
    turn = rng.bernoulli(key, 0.5, x.shape[0]).view(-1, *[1] * (x.dim() - 1))
    return torch.where(turn, x.flip(-1), x)


def shift_crop(x: Tensor, key: rng.Key, pad: int) -> Tensor:
    """Each image cropped back to its size at a random place of its zero-padded self."""
    b, _, h, w = x.shape
    down, right = (rng.randint(rng.fold(key, i), 0, 2 * pad + 1, b) for i in range(2))
    padded = F.pad(x, (pad, pad, pad, pad))
    rows = down[:, None] + torch.arange(h, device=x.device)
    columns = right[:, None] + torch.arange(w, device=x.device)
    each = torch.arange(b, device=x.device)[:, None, None]
    return padded.movedim(1, -1)[each, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


@dataclass(frozen=True)
class FlipCrop:
    """The usual augmentation of small images: random flip, and random crop after padding with `pad` zeros."""

    pad: int = 4

    def __post_init__(self) -> None:
        check.at_least(self, "pad", 0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image."""
        x = flip(x, rng.fold(key, "flip"))
        return shift_crop(x, rng.fold(key, "crop"), self.pad) if self.pad else x


@dataclass(frozen=True)
class Views:
    """A random part of the image at full size, with light, contrast and colours changed (Chen et al., ICML 2020)."""

    zoom: float = 0.5
    """The least share of the image's area that a view shows; 1 shows all of it."""
    flip: bool = True
    """Whether a view may be mirrored; no for digits and letters."""
    jitter: float = 0.4
    """Brightness, contrast and saturation are scaled by factors within 1 +- jitter."""
    grey: float = 0.2
    """The chance that a view loses its colours."""

    def __post_init__(self) -> None:
        check.positive(self, "zoom")
        for name in ("zoom", "jitter", "grey"):
            check.within(self, name, 0.0, 1.0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image [B, C, H, W] (uint8, or floats in 0..1): floats in 0..1."""
        x = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
        if self.zoom < 1.0:
            x = zoomed(x, rng.fold(key, "zoom"), self.zoom)
        if self.flip:
            x = flip(x, rng.fold(key, "flip"))
        return coloured(x, rng.fold(key, "colour"), self.jitter, self.grey)

    def several(self, x: Tensor, key: rng.Key, count: int = 2) -> Tensor:
        """`count` views of every image, one batch of them after the other: [count * B, C, H, W]."""
        return torch.cat([self.views(x, rng.fold(key, "view", i)) for i in range(count)])


def zoomed(x: Tensor, key: rng.Key, least: float) -> Tensor:
    """A random window of `least` to all of every image's area, scaled up to its size (bilinear)."""
    b, _, h, w = x.shape
    size, across, down = rng.uniform(key, 3, b)
    side = (least + (1.0 - least) * size).sqrt()
    room = 1.0 - side  # in units of half the image, as far as the window's centre may be off
    rows, columns = (torch.arange(n, device=x.device, dtype=x.dtype).add(0.5) * (2.0 / n) - 1.0 for n in (h, w))
    px = side[:, None] * columns + (room * (2.0 * across - 1.0))[:, None]
    py = side[:, None] * rows + (room * (2.0 * down - 1.0))[:, None]
    grid = torch.stack((px[:, None, :].expand(b, h, w), py[:, :, None].expand(b, h, w)), -1)
    return F.grid_sample(x, grid, mode="bilinear", padding_mode="border", align_corners=False)


def coloured(x: Tensor, key: rng.Key, jitter: float, grey: float) -> Tensor:
    """Every image in another light: brightness, contrast, saturation; without colours with the chance `grey`."""
    draws = rng.uniform(rng.fold(key, "factors"), 3, x.shape[0], 1, 1, 1)
    light, contrast, saturation = 1.0 + jitter * (2.0 * draws - 1.0)
    x = (x * light).clamp(0.0, 1.0)
    mean = x.mean((1, 2, 3), keepdim=True)
    x = (mean + (x - mean) * contrast).clamp(0.0, 1.0)
    lost = rng.bernoulli(rng.fold(key, "grey"), grey, x.shape[0], 1, 1, 1)
    tone = x.mean(1, keepdim=True)
    return (tone + (x - tone) * torch.where(lost, 0.0, saturation)).clamp(0.0, 1.0)


def turned(x: Tensor, quarters: Tensor) -> Tensor:
    """Each image [B, C, S, S] turned counter-clockwise by its number (0..3) of quarter turns."""
    every = torch.stack([torch.rot90(x, q, (-2, -1)) for q in range(4)])
    return every[quarters, torch.arange(x.shape[0], device=x.device)]


def rotate(x: Tensor, degrees: float) -> Tensor:
    """uint8 (or float) images [B, C, H, W] turned counter-clockwise about their centre, bilinear, zero outside."""
    if x.dim() != 4:
        raise ValueError(f"only images [batch, channels, height, width] can be rotated, got shape {tuple(x.shape)}")
    if degrees % 360 == 0 or len(x) == 0:
        return x
    turn = math.radians(degrees)
    h, w = x.shape[-2:]
    # the grid maps an output place to the input place it comes from, in units of half the image
    matrix = torch.tensor(
        [
            [math.cos(turn), -math.sin(turn) * h / w, 0.0],
            [math.sin(turn) * w / h, math.cos(turn), 0.0],
        ],
        device=x.device,
    )
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    seen = F.grid_sample(x.to(torch.float32), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return seen.round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else seen.to(x.dtype)
