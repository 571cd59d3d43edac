"""Sizes of convolutions, and how their products are cut into tiles."""

from __future__ import annotations

from typing import NamedTuple

from torch import Tensor


class Tile(NamedTuple):
    """How a product is cut: rows, columns and summands of one step, warps of a program, and loads under way."""

    rows: int
    columns: int
    depth: int
    warps: int
    stages: int


class Layer(NamedTuple):
    """Sizes of a convolution: channels and sides of the images, the kernel, its step and padding."""

    inputs: int
    height: int
    width: int
    outputs: int
    out_height: int
    out_width: int
    kernel_height: int
    kernel_width: int
    step: int
    pad_height: int
    pad_width: int

    @property
    def taps(self) -> int:
        return self.kernel_height * self.kernel_width


def cut(n: int, by: int) -> int:
    """How many pieces of a size there are."""
    return -(-n // by)


def channels_last(x: Tensor) -> Tensor:
    """[G, B, C, h, w] as contiguous [G, B, h, w, C]."""
    return x.permute(0, 1, 3, 4, 2).contiguous()
