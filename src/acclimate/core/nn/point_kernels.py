"""Triton kernels for convolutions that see one pixel at a time: plain matrix products of pixels and channels.

Sizes are numbers of units (`cutting.in_units`) and no constants, so that all such layers of a network share few
compiled kernels. Sums have the order that they have in `implicit_kernels` with the same tile.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from . import halves
from .cutting import Layer, Tile, channels_last, cut, in_units
from .ends import addend
from .implicit_kernels import PartialSums, added_up, parted
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl


@late
@jit(do_not_specialize=["pixels", "inner", "outer"])
def _points(
    x, w, y, bias, pixels, inner, outer, INNER_UNIT: tl.constexpr, OUTER_UNIT: tl.constexpr, EVEN: tl.constexpr,
    BIAS: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """y[g, m, n] = sum over k of x[g, m, k] * w[g, n, k]; there are `inner` units of k, and `outer` units of n. With
    EVEN, DEPTH divides the number of k."""
    ins, outs = inner * INNER_UNIT, outer * OUTER_UNIT
    across = tl.cdiv(outs, COLS)
    tiles = tl.cdiv(pixels, ROWS) * across
    client = (tl.program_id(0) // tiles).to(tl.int64)
    tile = tl.program_id(0) % tiles
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    real, column = m < pixels, n < outs
    from_x = x + client * pixels * ins + (m * ins)[:, None]
    from_w = w + client * outs * ins + (n * ins)[None, :]
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for first in range(0, ins, DEPTH):
        k = first + tl.arange(0, DEPTH)
        inside, known = real[:, None], column[None, :]
        if not EVEN:
            inside = inside & (k < ins)[None, :]
            known = known & (k < ins)[:, None]
        a = tl.load(from_x + k[None, :], mask=inside, other=0.0)
        b = tl.load(from_w + k[:, None], mask=known, other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    if BIAS:
        total += tl.load(bias + client * outs + n, mask=column, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total <= 0, 0.0, total)
    to = y + client * pixels * outs + (m * outs)[:, None] + n[None, :]
    tl.store(to, total.to(y.dtype.element_ty), mask=real[:, None] & column[None, :])


@late
@jit(do_not_specialize=["clients", "pixels", "span", "inner", "outer"])
def _point_sums(
    x, dy, parts, clients, pixels, span, inner, outer, INNER_UNIT: tl.constexpr, OUTER_UNIT: tl.constexpr,
    ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr, PRECISION: tl.constexpr,
):  # fmt: skip
    """parts[s, g, e, n] = sum over the pixels m of part s of x[g, m, e] * dy[g, m, n]."""
    ins, outs = inner * INNER_UNIT, outer * OUTER_UNIT
    across = tl.cdiv(outs, COLS)
    tiles = tl.cdiv(ins, ROWS) * across
    tile = tl.program_id(0) % tiles
    client = ((tl.program_id(0) // tiles) % clients).to(tl.int64)
    part = tl.program_id(0) // (tiles * clients)
    e = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    live, column = e < ins, n < outs
    x += client * pixels * ins
    dy += client * pixels * outs
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for begin in range(part * span, tl.minimum(part * span + span, pixels), DEPTH):
        m = begin + tl.arange(0, DEPTH)
        real = m < pixels
        a = tl.load(x + (m * ins)[None, :] + e[:, None], mask=live[:, None] & real[None, :], other=0.0)
        b = tl.load(dy + (m * outs)[:, None] + n[None, :], mask=real[:, None] & column[None, :], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    to = parts + ((part * clients + client) * ins + e[:, None]) * outs + n[None, :]
    tl.store(to, total, mask=live[:, None] & column[None, :])


def fits(kind: str, layer: Layer) -> bool:
    """Whether these kernels compute such a product."""
    plain = layer.taps == layer.step == 1 and not layer.pad_height and not layer.pad_width
    return plain and kind in ("convolve", "spread", "correlate")


def convolve(
    x: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """As `implicit_kernels.convolve`."""
    return _product(x, w.flatten(2), tile, precision, bias, relu)


def spread(dy: Tensor, w: Tensor, layer: Layer, tile: Tile, precision: str) -> Tensor:
    """As `implicit_kernels.spread`."""
    return _product(dy, w.flatten(2).transpose(1, 2), tile, precision)


def _product(
    x: Tensor, rows: Tensor, tile: Tile, precision: str, bias: Tensor | None = None, relu: bool = False
) -> Tensor:
    """y [G, B, N, h, w] of x [G, B, K, h, w] and rows [G, N, K]."""
    (clients, batch, inner, *sides), outer = x.shape, rows.shape[1]
    y = blank(clients, batch, *sides, outer, dtype=x.dtype, device=x.device)
    pixels, (sizes, units) = y[0].numel() // outer, in_units(inner, outer)
    tiles = cut(pixels, tile.rows) * cut(outer, tile.columns)
    _points[(tiles * clients,)](
        channels_last(x), rows.contiguous(), y, addend(bias, y), pixels, *sizes, *units,
        inner % tile.depth == 0, bias is not None, relu, *tile[:3], precision,
        num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3)


def correlate(x: Tensor, dy: Tensor, layer: Layer, tile: Tile, precision: str) -> Tensor:
    """As `implicit_kernels.correlate`."""
    return added_up(_parts(x, dy, layer, tile, precision), x, layer)


def _parts(x: Tensor, dy: Tensor, layer: Layer, tile: Tile, precision: str) -> PartialSums:
    """The sums over parts of the pixels."""
    if precision == halves.NAME:
        (a, of_x), (b, of_dy) = (halves.halved(channels_last(t)) for t in (x, dy))
        a, b = (t.permute(0, 1, 4, 2, 3) for t in (a, b))
        return PartialSums(_parts(a, b, layer, tile, "tf32").sums, of_x, of_dy, True)
    (clients, batch), (inner, outer) = x.shape[:2], (layer.inputs, layer.outputs)
    pixels, (sizes, units) = batch * layer.out_height * layer.out_width, in_units(inner, outer)
    span, count = parted(clients, pixels, layer)
    parts = blank(count, clients, inner, outer, dtype=torch.float32, device=x.device)
    tiles = cut(inner, tile.rows) * cut(outer, tile.columns)
    _point_sums[(tiles * clients * count,)](
        channels_last(x), channels_last(dy), parts, clients, pixels, span, *sizes, *units,
        *tile[:3], precision, num_warps=tile.warps, num_stages=tile.stages,
    )  # fmt: skip
    return PartialSums(parts, parts, parts, False)
