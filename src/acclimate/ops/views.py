"""Strong random views of images for contrastive learning, as keyed tensor code that runs under `vmap`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng
from .augment import flip


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
