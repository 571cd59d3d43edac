"""Random views of images and turns of them, as keyed tensor code that runs under `vmap`."""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import reduce
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng


def only_images(record: object, x: Tensor) -> None:
    """Refuse inputs that are no images: of a table, mirroring would exchange the columns."""
    if x.dim() != 4:
        raise ValueError(
            f"{type(record).__name__} changes images [channels, height, width], and these inputs have shape "
            f"{tuple(x.shape[1:])}; leave augment out"
        )


def flip(x: Tensor, key: rng.Key) -> Tensor:
    """Each image mirrored left to right, or not, with equal chance."""
    turn = rng.bernoulli(key, 0.5, x.shape[0]).view(-1, *[1] * (x.dim() - 1))
    return torch.where(turn, x.flip(-1), x)


def shift_crop(x: Tensor, key: rng.Key, pad: int) -> Tensor:
    """Each image cropped back to its size at a random place of its zero-padded self."""
    padded = F.pad(x, (pad, pad, pad, pad))
    rows, columns = _window(x, x.shape[0], key, pad)
    if x.device.type == "cpu":
        return _picked(padded, rows, columns)
    each = torch.arange(x.shape[0], device=x.device)[:, None, None]
    return padded.movedim(1, -1)[each, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


def _window(x: Tensor, count: int, key: rng.Key, pad: int) -> tuple[Tensor, Tensor]:
    """Rows and columns of padded images that `count` random crops to the size of x see."""
    down, right = (rng.randint(rng.fold(key, i), 0, 2 * pad + 1, count)[:, None] for i in range(2))
    return down + torch.arange(x.shape[-2], device=x.device), right + torch.arange(x.shape[-1], device=x.device)


def _picked(x: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """These rows and columns of every image. On a CPU this takes much less time than indexing with both."""
    places = (rows[:, :, None] * x.shape[-1] + columns[:, None, :]).flatten(1)[:, None]
    picked = x.flatten(2).gather(2, places.expand(-1, x.shape[1], -1))
    return picked.unflatten(2, (rows.shape[1], columns.shape[1]))


@dataclass(frozen=True)
class FlipCrop:
    """The usual augmentation of small images: random flip, and random crop after padding with `pad` zeros."""

    pad: int = 4

    def __post_init__(self) -> None:
        check.at_least(self, "pad", 0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image."""
        only_images(self, x)
        if self.pad and x.device.type == "cpu":
            return self._at_once(x, x.shape[0], key)
        x = flip(x, rng.fold(key, "flip"))
        return shift_crop(x, rng.fold(key, "crop"), self.pad) if self.pad else x

    def several(self, x: Tensor, count: int, key: rng.Key) -> Tensor:
        """`count` random views of one image [C, H, W]: those of as many copies of it."""
        if self.pad and x.device.type == "cpu":
            return self._at_once(x[None], count, key)
        return self.views(x.expand(count, *x.shape), key)

    def _at_once(self, x: Tensor, count: int, key: rng.Key) -> Tensor:
        """Flip and crop in one pass: a mirrored image's columns are counted from the right."""
        rows, columns = _window(x, count, rng.fold(key, "crop"), self.pad)
        mirrored = rng.bernoulli(rng.fold(key, "flip"), 0.5, count)[:, None]
        padded = F.pad(x, (self.pad,) * 4)
        columns = torch.where(mirrored, padded.shape[-1] - 1 - columns, columns)
        return _picked(padded.expand(count, *padded.shape[1:]), rows, columns)


@dataclass(frozen=True)
class Views:
    """A random part of the image at full size, with light, contrast and colours changed (Chen et al., ICML 2020)."""

    clips: ClassVar[bool] = True
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
        only_images(self, x)
        x = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
        if self.zoom < 1.0:
            x = zoomed(x, rng.fold(key, "zoom"), self.zoom)
        if self.flip:
            x = flip(x, rng.fold(key, "flip"))
        return coloured(x, rng.fold(key, "colour"), self.jitter, self.grey)

    def several(self, x: Tensor, key: rng.Key, count: int = 2) -> Tensor:
        """`count` views of every image, one batch of them after the other: [count * B, C, H, W]."""
        return torch.cat([self.views(x, rng.fold(key, "view", i)) for i in range(count)])


@dataclass(frozen=True)
class CropJitter:
    """The augmentation of FedDG-GA's code (Zhang et al., CVPR 2023), which FedSPL's code trains with too.

    A random window at full size, mirrored or not, in another light and with other colours. Its code changes brightness,
    contrast, saturation and hue in a random order; here the order is this one.
    """

    clips: ClassVar[bool] = True
    zoom: float = 0.7
    """The least share of the image's area that a window has; 1 shows all of it."""
    ratio: float = 4 / 3
    """How far the window's sides may be from the image's: width by height is between 1 / ratio and ratio."""
    flip: bool = True
    """Whether an image may be mirrored; no for digits and letters."""
    jitter: float = 0.4
    """Brightness, contrast and saturation are scaled by factors within 1 +- jitter."""
    hue: float = 0.4
    """Colours go round by at most this share of the circle, either way."""
    grey: float = 0.1
    """The chance that an image loses its colours."""

    def __post_init__(self) -> None:
        check.positive(self, "zoom")
        for name in ("zoom", "jitter", "grey"):
            check.within(self, name, 0.0, 1.0)
        check.within(self, "hue", 0.0, 0.5)
        check.at_least(self, "ratio", 1.0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image [B, C, H, W] (uint8, or floats in 0..1): floats in 0..1."""
        only_images(self, x)
        x, b = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x, x.shape[0]
        across, down = rng.uniform(rng.fold(key, "place"), 2, b)
        x = windows(x, *crop_sides(rng.fold(key, "window"), b, self.zoom, self.ratio), across, down)
        if self.flip:
            x = flip(x, rng.fold(key, "flip"))
        draws = rng.uniform(rng.fold(key, "factors"), 3, b, 1, 1, 1)
        light, contrast, saturation = 1.0 + self.jitter * (2.0 * draws - 1.0)
        turn = self.hue * (2.0 * rng.uniform(rng.fold(key, "hue"), b, 1, 1) - 1.0)
        x = relit(x, light, contrast, saturation, turn)
        return torch.where(rng.bernoulli(rng.fold(key, "grey"), self.grey, b, 1, 1, 1), luma(x), x)


TRIES = 10
"""How often a window is drawn that may not fit into the image; where none fits, the whole image is shown."""


def crop_sides(key: rng.Key, count: int, least: float, ratio: float) -> tuple[Tensor, Tensor]:
    """Width and height of `count` random windows, as shares of the image's: the first of some draws that fits.

    The area is uniform from `least` to 1, the logarithm of width by height is uniform within that of `ratio`.
    """
    size, shape = rng.uniform(key, 2, TRIES, count)
    area, stretch = least + (1.0 - least) * size, torch.exp(math.log(ratio) * (2.0 * shape - 1.0))
    widths, heights = (area * stretch).sqrt(), (area / stretch).sqrt()
    width = height = torch.ones_like(area[0])
    for i in reversed(range(TRIES)):
        fits = (widths[i] <= 1.0) & (heights[i] <= 1.0)
        width, height = torch.where(fits, widths[i], width), torch.where(fits, heights[i], height)
    return width, height


def relit(x: Tensor, light: Tensor, contrast: Tensor, saturation: Tensor, turn: Tensor) -> Tensor:
    """Images [B, C, H, W] with brightness, contrast and saturation scaled by factors [B, 1, 1, 1], and colours turned
    by shares of the circle [B, 1, 1]."""
    x = (x * light).clamp(0.0, 1.0)
    mean = luma(x).mean((1, 2, 3), keepdim=True)
    x = (mean + (x - mean) * contrast).clamp(0.0, 1.0)
    tone = luma(x)
    x = (tone + (x - tone) * saturation).clamp(0.0, 1.0)
    return hue_turned(x, turn) if x.shape[1] == 3 else x


LUMA = (0.299, 0.587, 0.114)
"""What red, green and blue count for in a grey image (ITU-R 601)."""


def luma(x: Tensor) -> Tensor:
    """How bright each pixel of images [B, C, H, W] is: [B, 1, H, W]. Grey images are it themselves."""
    if x.shape[1] != 3:
        return x
    return reduce(torch.add, (weight * x[:, i : i + 1] for i, weight in enumerate(LUMA)))


def hue_turned(x: Tensor, turn: Tensor) -> Tensor:
    """RGB images [B, 3, H, W] whose hue goes round by shares of the circle [B, 1, 1]; value and saturation stay."""
    r, g, b = x.unbind(1)
    top = x.amax(1)
    span = top - x.amin(1)
    safe = torch.where(span > 0, span, 1.0)
    sixths = torch.where(top == g, 2.0 + (b - r) / safe, 4.0 + (r - g) / safe)
    sixths = torch.where(top == r, (g - b) / safe, sixths) + 6.0 * turn
    parts = [torch.remainder(n + sixths, 6.0) for n in (5.0, 3.0, 1.0)]
    return torch.stack([top - span * torch.minimum(k, 4.0 - k).clamp(0.0, 1.0) for k in parts], 1)


def zoomed(x: Tensor, key: rng.Key, least: float) -> Tensor:
    """A random window of `least` to all of every image's area, scaled up to its size (bilinear)."""
    size, across, down = rng.uniform(key, 3, x.shape[0])
    side = (least + (1.0 - least) * size).sqrt()
    return windows(x, side, side, across, down)


def windows(x: Tensor, width: Tensor, height: Tensor, across: Tensor, down: Tensor) -> Tensor:
    """A window of every image, scaled to the image's size (bilinear).

    All of it is in shares, one per image: of the image's sides, and of the room that the window leaves beside it.
    """
    b, _, h, w = x.shape
    rows, columns = (torch.arange(n, device=x.device, dtype=x.dtype).add(0.5) * (2.0 / n) - 1.0 for n in (h, w))
    # in units of half the image, as far as the window's centre may be off
    px = width[:, None] * columns + ((1.0 - width) * (2.0 * across - 1.0))[:, None]
    py = height[:, None] * rows + ((1.0 - height) * (2.0 * down - 1.0))[:, None]
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


def shuffle_patches(x: Tensor, key: rng.Key, side: int) -> Tensor:
    """Each image cut into side x side patches, which are put together in a random order of its own (DeYO).

    Rows and columns beyond a multiple of `side` stay where they are.
    """
    b, c, h, w = x.shape
    tall, wide = h // side, w // side
    inner = x[..., : side * tall, : side * wide]
    cut = inner.reshape(b, c, side, tall, side, wide).permute(0, 2, 4, 1, 3, 5).reshape(b, side * side, c, tall, wide)
    order = torch.argsort(rng.bits(key, b, side * side), dim=-1, stable=True)
    mixed = torch.take_along_dim(cut, order[:, :, None, None, None], 1)
    whole = mixed.reshape(b, side, side, c, tall, wide).permute(0, 3, 1, 4, 2, 5).reshape(inner.shape)
    below = torch.cat((whole, x[..., : side * tall, side * wide :]), -1)
    return torch.cat((below, x[..., side * tall :, :]), -2)
