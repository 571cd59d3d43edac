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
"""Numbers of a tile, and the most columns of a row."""
BACK = 2048
"""Numbers of a tile of the gradient, which has more tensors under way."""
RANK = 8
"""The highest rank of what is added to a gradient before its norm."""


@late
@jit(do_not_specialize=["rows"])
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
@jit(do_not_specialize=["rows"])
def _norm_back(
    more, dy, low, a, s, weight, mean, unit, ds, rows,
    C: tl.constexpr, ADD: tl.constexpr, RANK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """ds of dy, with a RANK of dy + low A for A [RANK, C] of each client, and with ADD of what else came to s."""
    down = tl.cdiv(rows, ROWS)
    client, own = (tl.program_id(0) // down).to(tl.int64), (tl.program_id(0) % down) * ROWS + tl.arange(0, ROWS)
    r, c, there = client * rows + own, tl.arange(0, COLS), own < rows
    real = there[:, None] & (c < C)[None, :]
    at = r[:, None] * C + c[None, :]
    g = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
    v = tl.load(s + at, mask=real, other=0.0).to(tl.float32)
    beside = tl.load(more + at, mask=real, other=0.0) if ADD else 0.0  # under way before the first sum
    scale = tl.load(unit + r, mask=there, other=0.0)
    centre = tl.load(mean + r, mask=there, other=0.0)
    w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    for k in tl.static_range(RANK):
        part = tl.load(low + r * RANK + k, mask=there, other=0.0).to(tl.float32)
        along = tl.load(a + (client * RANK + k) * C + c, mask=c < C, other=0.0).to(tl.float32)
        g += part[:, None] * along[None, :]
    v = tl.where(real, v - centre[:, None], 0.0) * scale[:, None]
    g *= w[None, :]
    g = (g - tl.sum(g, 1)[:, None] / C - v * (tl.sum(g * v, 1)[:, None] / C)) * scale[:, None]
    if ADD:
        g += beside.to(tl.float32)  # type: ignore[union-attr]
    tl.store(ds + at, g.to(ds.dtype.element_ty), mask=real)


def _cut(x: Tensor, numbers: int = TILE) -> tuple[int, int, int, int]:
    """Programs, and the number of columns, rows and padded columns of a tile with so many numbers."""
    columns = triton.next_power_of_2(x.shape[-1])
    tile = max(numbers // columns, 1)
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


def norm_back(
    more: Tensor | None,
    dy: Tensor,
    s: Tensor,
    weight: Tensor,
    mean: Tensor,
    unit: Tensor,
    low: Tensor | None = None,
    a: Tensor | None = None,
) -> Tensor:
    """The gradient for s, of that for the norm and of what else came to s. With a `low` [G, N, rank] for s [G, N, C],
    the gradient for the norm is dy + low A, of A [G, rank, C]."""
    ds, other, columns = blank_like(s), dy if more is None else more, s.shape[-1]
    groups, rank = (1, 0) if low is None else (len(s), low.shape[-1])
    programs, _, *tile = _cut(s[0] if rank else s, BACK)
    given = (dy, dy) if low is None else (low, a)
    _norm_back[(groups * programs,)](
        other, dy, *given, s, weight, mean, unit, ds, s.numel() // columns // groups, columns, more is not None, rank,
        *tile, num_warps=2 if rank else 4,
    )  # fmt: skip
    return ds
