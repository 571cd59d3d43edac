"""Triton kernels for layer norm with scales and shifts that all clients share, in one pass with a sum before it."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import AVAILABLE, jit
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton
    import triton.language as tl

TILE = 4096
"""Numbers of a tile."""


@late
@jit
def _norm(
    x, d, weight, bias, s, y, mean, unit, rows, eps,
    C: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """s = x + d in the precision of x, and the norm y of its rows; without ADD s is x and is not written."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLS)
    real = (r < rows)[:, None] & (c < C)[None, :]
    at = r[:, None] * C + c[None, :]
    v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
    if ADD:
        v += tl.load(d + at, mask=real, other=0.0).to(tl.float32)
        v = v.to(s.dtype.element_ty)
        tl.store(s + at, v, mask=real)
        v = v.to(tl.float32)
    centre = tl.sum(v, 1) / C
    off = tl.where(real, v - centre[:, None], 0.0)
    scale = tl.math.rsqrt(tl.sum(off * off, 1) / C + eps)
    tl.store(mean + r, centre, mask=r < rows)
    tl.store(unit + r, scale, mask=r < rows)
    w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    b = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    tl.store(y + at, (off * scale[:, None] * w[None, :] + b[None, :]).to(y.dtype.element_ty), mask=real)


@late
@jit
def _norm_back(
    more, dy, s, weight, mean, unit, ds, rows,
    C: tl.constexpr, ADD: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ds of dy, and with ADD of what else came to s."""
    r = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    c = tl.arange(0, COLS)
    real = (r < rows)[:, None] & (c < C)[None, :]
    at = r[:, None] * C + c[None, :]
    scale = tl.load(unit + r, mask=r < rows, other=0.0)
    centre = tl.load(mean + r, mask=r < rows, other=0.0)
    w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    v = tl.load(s + at, mask=real, other=0.0).to(tl.float32)
    v = tl.where(real, v - centre[:, None], 0.0) * scale[:, None]
    g = tl.load(dy + at, mask=real, other=0.0).to(tl.float32) * w[None, :]
    g = (g - tl.sum(g, 1)[:, None] / C - v * (tl.sum(g * v, 1)[:, None] / C)) * scale[:, None]
    if ADD:
        g += tl.load(more + at, mask=real, other=0.0).to(tl.float32)
    tl.store(ds + at, g.to(ds.dtype.element_ty), mask=real)


def _cut(x: Tensor) -> tuple[int, int, int, int]:
    """Programs, and the number of columns, rows and padded columns of a tile."""
    columns = triton.next_power_of_2(x.shape[-1])
    tile = max(TILE // columns, 1)
    return -(-(x.numel() // x.shape[-1]) // tile), x.shape[-1], tile, columns


def norm(x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, ...]:
    """s = x + d, the norm of its rows [..., C], and their means and inverse deviations; all are contiguous."""
    programs, columns, *tile = _cut(x)
    rows = x.numel() // columns
    mean, unit = blank(2, *x.shape[:-1], dtype=torch.float32, device=x.device)
    s, y = x if d is None else blank_like(x), blank_like(x)
    added = x if d is None else d
    _norm[(programs,)](x, added, weight, bias, s, y, mean, unit, rows, eps, columns, d is not None, *tile)
    return s, y, mean, unit


def norm_back(more: Tensor | None, dy: Tensor, s: Tensor, weight: Tensor, mean: Tensor, unit: Tensor) -> Tensor:
    """The gradient for s, of that for the norm and of what else came to s."""
    programs, columns, *tile = _cut(s)
    ds, other = blank_like(s), dy if more is None else more
    _norm_back[(programs,)](
        other, dy, s, weight, mean, unit, ds, s.numel() // columns, columns, more is not None, *tile
    )  # fmt: skip
    return ds
