"""A surface to draw on: images, circles, lines, rectangles and text on an array of bytes."""

from __future__ import annotations

from typing import Literal

import numpy as np
import torch
from torch import Tensor

from . import font

Colour = tuple[int, int, int]

WHITE: Colour = (255, 255, 255)
INK: Colour = (28, 30, 33)
GREY: Colour = (104, 108, 114)
PALE: Colour = (222, 225, 229)


class Canvas:
    """An image to draw on. Places are counted in pixels from the top and from the left."""

    def __init__(self, height: int, width: int, colour: Colour = WHITE) -> None:
        self.pixels: np.ndarray = np.empty((height, width, 3), np.uint8)
        """uint8 [height, width, 3]."""
        self.pixels[:] = colour

    def paste(self, image: np.ndarray, top: int, left: int, scale: int = 1) -> None:
        """An image, uint8 [H, W, 3], every pixel of it a square of `scale` pixels; what does not fit is cut off."""
        large = image.repeat(scale, axis=0).repeat(scale, axis=1)
        room = self.pixels[top : top + len(large), left : left + large.shape[1]]
        room[:] = large[: room.shape[0], : room.shape[1]]

    def rectangle(self, top: int, left: int, height: int, width: int, colour: Colour) -> None:
        """A filled rectangle."""
        self.pixels[max(top, 0) : max(top + height, 0), max(left, 0) : max(left + width, 0)] = colour

    def circle(self, y: float, x: float, radius: float, colour: Colour) -> None:
        """A filled circle with smooth edges. The middle of the first pixel is at (0.5, 0.5)."""
        if radius > 0:
            top, left, down, across = self._around(y - radius, x - radius, y + radius, x + radius)
            self._blend(top, left, np.clip(radius - np.hypot(down - y, across - x) + 0.5, 0, 1), colour)

    def line(self, y0: float, x0: float, y1: float, x1: float, colour: Colour, width: float = 1.0) -> None:
        """A straight line with smooth edges."""
        reach = width / 2
        top, left, down, across = self._around(
            min(y0, y1) - reach, min(x0, x1) - reach, max(y0, y1) + reach, max(x0, x1) + reach
        )
        dy, dx = y1 - y0, x1 - x0
        along = np.clip(((down - y0) * dy + (across - x0) * dx) / max(dy * dy + dx * dx, 1e-9), 0, 1)
        away = np.hypot(down - y0 - along * dy, across - x0 - along * dx)
        self._blend(top, left, np.clip(reach - away + 0.5, 0, 1), colour)

    def text(
        self,
        top: int,
        left: int,
        text: str,
        colour: Colour = INK,
        scale: int = 1,
        align: Literal["left", "centre", "right"] = "left",
    ) -> int:
        """A line of text, `7 * scale` pixels high and some below; `left` is where it starts, its middle or its end.

        Gives its width in pixels.
        """
        mask = font.render(text).repeat(scale, axis=0).repeat(scale, axis=1)
        left -= {"left": 0, "centre": mask.shape[1] // 2, "right": mask.shape[1]}[align]
        first, skip = max(left, 0), max(-left, 0)
        room = self.pixels[top : top + len(mask), first : max(left + mask.shape[1], 0)]
        room[mask[: room.shape[0], skip : skip + room.shape[1]]] = colour
        return int(mask.shape[1])

    def _around(self, top: float, left: float, bottom: float, right: float) -> tuple[int, int, np.ndarray, np.ndarray]:
        """The pixels that a shape can touch: where they start, and the places of their centres."""
        height, width, _ = self.pixels.shape
        rows = np.arange(max(int(top) - 1, 0), min(int(bottom) + 2, height))
        columns = np.arange(max(int(left) - 1, 0), min(int(right) + 2, width))
        return max(int(top) - 1, 0), max(int(left) - 1, 0), rows[:, None] + 0.5, columns[None, :] + 0.5

    def _blend(self, top: int, left: int, cover: np.ndarray, colour: Colour) -> None:
        room = self.pixels[top : top + cover.shape[0], left : left + cover.shape[1]]
        mixed = room + cover[:, :, None] * (np.array(colour, np.float64) - room)
        room[:] = np.rint(mixed).astype(np.uint8)


def stack(parts: list[np.ndarray], gap: int, margin: int) -> np.ndarray:
    """Images one above the other, on white."""
    height = sum(len(p) for p in parts) + gap * (len(parts) - 1) + 2 * margin
    out, top = Canvas(height, max(p.shape[1] for p in parts) + 2 * margin), margin
    for part in parts:
        out.paste(part, top, margin)
        top += len(part) + gap
    return out.pixels


def to_rgb(images: Tensor) -> np.ndarray:
    """uint8 images [N, C, H, W], grey or RGB, as [N, H, W, 3]."""
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] not in (1, 3):
        kind = str(images.dtype).removeprefix("torch.")
        raise ValueError(
            f"there is nothing to picture: inputs are {kind} of shape {tuple(images.shape[1:])}, "
            "not uint8 images with 1 or 3 channels"
        )
    rgb: np.ndarray = images.expand(-1, 3, -1, -1).permute(0, 2, 3, 1).contiguous().cpu().numpy()
    return rgb
