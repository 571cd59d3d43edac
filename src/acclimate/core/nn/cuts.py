"""How kernels of a convolution may be cut: those that are worth a measurement, for every product and size of layer."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, NamedTuple, TypeAlias

import torch
from torch import Tensor

from . import box_kernels, folded_kernels, halves, point_kernels
from .implicit_kernels import FEW, Layer, Tile

Kind: TypeAlias = Literal["convolve", "spread", "correlate", "pooled", "pooled_correlate"]


class Cut(NamedTuple):
    """A kernel for a product: of which kind, how it is cut, and how it multiplies."""

    way: str
    tile: Tile
    dot: str


FP32 = "tf32x3"
"""How a product in float32 is computed where TF32 is forbidden: as three of TF32, which is as near to the true one as
float32 is. `ieee` does without tensor cores, and takes several times as long."""
DOTS = (FP32, "tf32", "bf16x3", "bf16x6", halves.NAME, "ieee")
"""How Triton may multiply. Sums over pixels read numbers across the order that the hardware wants for those of 32 bits;
three products of halves (`bf16x3`) are nearer to the true one than one of TF32 and need no such order, and six
(`bf16x6`) are as near as float32 is. `fp16` writes halves of both factors first (`halves`), and is for sums over pixels
where TF32 is allowed: it is as near as TF32."""
SUMS = ("correlate", "pooled_correlate")
"""Products that are sums over pixels."""


def dot_of(precision: str) -> str:
    """How a kernel multiplies, unless its cut says otherwise."""
    return FP32 if precision == "fp32" else "tf32"


def dots_of(key: str) -> tuple[str, ...]:
    """How a kernel may multiply whose choice is kept under this key (`implicit.name`)."""
    by_halves = key.startswith(SUMS) and ", tf32, " in key
    return DOTS if by_halves else tuple(dot for dot in DOTS if dot != halves.NAME)


def gone(choice: Mapping[str, Any]) -> bool:
    """Whether an earlier version chose what there is no kernel for any more: its product is measured again."""
    return choice.get("way") == "folded" and choice.get("dot") == halves.NAME


def power(n: int) -> int:
    """The next power of two."""
    return 1 << max(n - 1, 0).bit_length()


def cuts(kind: Kind, layer: Layer, x: Tensor, precision: str) -> list[Cut]:
    """The kernels that are worth a try for a product of x, and another tensor of its type."""
    dot, sums = dot_of(precision), kind in SUMS
    if sums and x.dtype == torch.float32 and x.is_cuda:
        dot = "bf16x3" if precision == "tf32" else "bf16x6"
    if point_kernels.fits(kind, layer):
        return [Cut("points", *each) for each in _points(kind, layer, x.dtype, dot)]
    found = [Cut("implicit", tile, dot) for tile in candidates(kind, layer, x.dtype)]
    if folded_kernels.fits(kind, layer):
        found += [Cut("folded", tile, dot) for tile in folds(kind, layer, x.dtype)]
    if dot == "bf16x3":
        found += [Cut("implicit", tile, halves.NAME) for tile in candidates(kind, layer, torch.float16)]
    if sums or not box_kernels.fits(kind, layer, x):
        return found
    return [*(Cut("boxes", tile, dot) for tile in boxed(kind, layer, x.dtype)), *found]


def _points(kind: Kind, layer: Layer, dtype: torch.dtype, dot: str) -> list[tuple[Tile, str]]:
    """Tiles of plain products, and how each multiplies. Few of them: torch's own products are measured as well."""
    if dot == "bf16x3":
        return [(tile, halves.NAME) for tile in candidates(kind, layer, torch.float16)]
    tiles = candidates(kind, layer, dtype)
    return [(tile, dot) for tile in tiles if tile.rows <= 128]


def boxed(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of boxes."""
    width, inner = (layer.inputs, layer.outputs) if kind == "spread" else (layer.outputs, layer.inputs)
    columns, depth = min(max(power(width), 16), 64), _depth(inner, dtype != torch.float32)
    return [Tile(rows, columns, depth, 4, 4) for rows in ((128, 64) if kind == "spread" else (128,))]


def folds(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of a convolution that is folded with the pooling after it."""
    columns = 4 * min(layer.outputs, folded_kernels.WIDE)
    if kind == "pooled":
        return [Tile(64, columns, 32, 4, 1) if dtype == torch.float32 else Tile(128, columns, 32, 8, 3)]
    return [Tile(64, min(columns, 64), 64 if dtype != torch.float32 else 32, 4, 3)]


def candidates(kind: Kind, layer: Layer, dtype: torch.dtype) -> list[Tile]:
    """Tiles of the kernels in which threads gather patches. Those of one product have one depth: where numbers are
    taken apart, the order of sums depends on it."""
    small = dtype != torch.float32
    width = layer.inputs if kind == "spread" else layer.outputs
    columns = min(max(power(width), 16), 64)
    flat = layer.inputs < FEW
    if kind in SUMS:
        depth = 64 if small else 32
        tiles = [Tile(128, columns, depth, 4, 3)] if flat else [Tile(64, columns, depth, 4, 4)]
        return tiles if width <= 64 else [Tile(128, 128, depth, 8, 3), *tiles]
    depth = _depth(layer.outputs if kind == "spread" else layer.inputs, small)
    if kind != "spread" and flat:
        depth = 16 if layer.taps * layer.inputs <= 16 else 32
        return [Tile(128, columns, depth, 4, 1)]
    tile = Tile(128, columns, depth, 4, 3)
    if width > 64:  # as many numbers as a tile of 256 x 64, which fetches more
        return [Tile(128, 128, depth, 8, 3), tile]
    return [tile] if kind == "spread" else [tile, Tile(256, columns, depth, 8, 3)]


def _depth(channels: int, small: bool) -> int:
    """Summands of one step: as many as divide the channels, where some do."""
    sizes = (64, 32, 16) if small else (32, 16)
    return next((d for d in sizes if channels % d == 0), 32 if channels > 16 else 16)
