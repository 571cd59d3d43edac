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


UNITS = (16, 8, 4, 1)
"""Numbers of which a size may be a multiple. A kernel that takes a size as so many units, and not as a constant, is
compiled once for many sizes, and still fetches several numbers at a time."""


def in_units(*sizes: int) -> tuple[list[int], list[int]]:
    """How many units each size has, and the largest units that there are for them."""
    units = [next(unit for unit in UNITS if n % unit == 0) for n in sizes]
    return [n // unit for n, unit in zip(sizes, units, strict=True)], units


def channels_last(x: Tensor) -> Tensor:
    """[G, B, C, h, w] as contiguous [G, B, h, w, C]."""
    return x.permute(0, 1, 3, 4, 2).contiguous()
