"""Frost: textures from files or synthesised, and the corruption that overlays a random crop of one."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np
import torch
from torch import Tensor

from ...core import rng
from .constants import LARGE_SIDE
from .linear import luma, to_bytes, uniform

Textures = Tensor | Sequence[Tensor]
"""Frost pictures: uint8 [T,3,h,w], or a sequence of uint8 [3,h,w] of any sizes."""

_DRAWN = 5  # the published suite ships six pictures and draws from the first five
_SHRINK = 5  # for small images it shrinks them to a fifth
_DEFAULT_SIDE = 336  # a fifth of it exceeds the largest small image, and the whole exceeds 224


def synthesise_frost(key: Tensor, count: int, side: int) -> Tensor:
    """Frost-like pictures uint8 [count,3,side,side]: long crystals with bright rims and feathered insides.

    For runs without the published pictures. Levels and spread follow those, the shapes only remind of them.
    """
    crystals = 80

    def draw(name: str, *shape: int) -> Tensor:
        return rng.uniform(rng.fold(key, "frost", name), *shape)

    place, angle = draw("place", count, crystals, 2) * side, draw("angle", count, crystals) * torch.pi
    tone = draw("tone", count, crystals)
    line = torch.arange(side, device=key.device, dtype=torch.float32)
    best = torch.full((count, side, side), torch.inf, device=key.device)
    second, shade, barb = best, torch.zeros_like(best), torch.zeros_like(best)
    for i in range(crystals):
        dy = line[:, None] - place[:, i, 0, None, None]
        dx = line - place[:, i, 1, None, None]
        cos, sin = torch.cos(angle[:, i, None, None]), torch.sin(angle[:, i, None, None])
        along, across = dx * cos + dy * sin, (dy * cos - dx * sin).abs()
        # Distance counts little along the axis: the cells become long crystals.
        distance = 0.12 * along.abs() + across
        nearer = distance < best
        second = torch.where(nearer, best, torch.minimum(second, distance))
        best = torch.where(nearer, distance, best)
        shade = torch.where(nearer, tone[:, i, None, None], shade)
        barb = torch.where(nearer, across - 0.7 * along, barb)
    rim = torch.exp(-0.2 * (second - best)) - 0.4
    feather = torch.sin(barb * (2 * torch.pi / 13)) * torch.cos(best * 0.3)
    grain = draw("grain", count, side, side) - 0.5
    level, spread = 110 + 90 * draw("level", count), 0.5 + draw("spread", count)
    relief = 40 * rim + 30 * (shade - 0.5) + 25 * feather + 30 * grain
    tint = torch.tensor([0.86, 1.0, 1.08], device=key.device)[:, None, None]
    return to_bytes((level[:, None, None] + spread[:, None, None] * relief)[:, None] * tint)


@lru_cache(maxsize=1)
def _default_textures() -> Tensor:
    """Always made on the CPU, so that every device sees the same bytes."""
    return synthesise_frost(rng.key(0, "cpu"), _DRAWN, _DEFAULT_SIDE)


def frost_textures(root: Path | None) -> tuple[Tensor | list[Tensor], str]:
    """The frost pictures of a data root (`root/frost/*.png, *.jpg`, by name) and where they come from.

    The second value is "files", or "synthesised" followed by the reason when a root was given that could not be used;
    reports should quote it, because the two give different accuracies.
    """
    if root is None:
        return _default_textures(), "synthesised"
    folder = Path(root) / "frost"
    files = sorted(p for p in folder.glob("*") if p.suffix.lower() in (".png", ".jpg", ".jpeg"))
    if not files:
        return _default_textures(), f"synthesised: no .png or .jpg in {folder}"
    try:
        from PIL import Image
    except ImportError:
        return _default_textures(), f"synthesised: Pillow is not installed to read {folder}"
    pictures = []
    for path in files:
        with Image.open(path) as image:
            pictures.append(torch.from_numpy(np.array(image.convert("RGB"))).permute(2, 0, 1))
    return pictures, "files"


def _checked(textures: Textures | None, side: int, device: torch.device) -> list[Tensor]:
    """The pictures that are drawn from, at the scale for this side."""
    chosen = list(_default_textures() if textures is None else textures)[:_DRAWN]
    if not chosen:
        raise ValueError("frost: no textures given; pass frost=None to use synthesised ones")
    for t in chosen:
        if t.dtype != torch.uint8 or t.dim() != 3 or t.shape[0] != 3:
            raise ValueError(f"frost: every texture must be uint8 [3,h,w], got {t.dtype} {list(t.shape)}")
    if side < LARGE_SIDE:
        # Shrinking to a fifth by linear interpolation lands on the middle pixel of each five exactly.
        chosen = [t[:, _SHRINK // 2 :: _SHRINK, _SHRINK // 2 :: _SHRINK] for t in chosen]
    smallest = min(min(t.shape[1:]) for t in chosen)
    if smallest <= side:
        raise ValueError(f"frost: textures must be larger than {side} px (after shrinking), got {smallest}")
    return [t.to(device) for t in chosen]


def frost(x: Tensor, keys: Tensor, c: tuple[float, float], textures: Textures | None = None) -> Tensor:
    """Ice on the lens: a weighted sum of the image and a random crop of a random frost picture."""
    side = x.shape[-1]
    pictures = _checked(textures, side, x.device)
    # Pictures differ in size: laid end to end as rows of RGB, a crop is plain index arithmetic for the whole batch.
    pixels = torch.cat([t.flatten(1).T for t in pictures])
    heights = torch.tensor([t.shape[1] for t in pictures], device=x.device)
    widths = torch.tensor([t.shape[2] for t in pictures], device=x.device)
    starts = torch.cumsum(heights * widths, 0) - heights * widths
    u = uniform(keys, 3)
    which = (u[:, 0] * len(pictures)).to(torch.int64)
    top = (u[:, 1] * (heights[which] - side)).to(torch.int64)
    left = (u[:, 2] * (widths[which] - side)).to(torch.int64)
    line = torch.arange(side, device=x.device)
    rows = (starts[which] + top * widths[which] + left)[:, None] + line * widths[which][:, None]
    crop = pixels[rows[:, :, None] + line].permute(0, 3, 1, 2).to(torch.float32)
    return to_bytes(c[0] * x + c[1] * (luma(crop) if x.shape[1] == 1 else crop))
