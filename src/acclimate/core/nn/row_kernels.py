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
RANK = 8
"""The highest rank of what is added to a gradient before its norm."""
LEAST, MOST = 16, 64
"""Rows and ranks that the hardware multiplies at least, and the highest rank of what is made of a norm."""


@late
@jit(do_not_specialize=["rows"])
def _norm(
    x, d, weight, bias, a, s, y, low, mean, unit, rows, eps, times,
    C: tl.constexpr, ADD: tl.constexpr, RANK: tl.constexpr, R: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """s = x + d in the precision of x, and the norm y of its rows; without ADD s is x and is not written. With a RANK,
    low = times y A^T, for A [RANK, C] of each client."""
    down = tl.cdiv(rows, ROWS)
    client, own = (tl.program_id(0) // down).to(tl.int64), (tl.program_id(0) % down) * ROWS + tl.arange(0, ROWS)
    r, c, there = client * rows + own, tl.arange(0, COLS), own < rows
    real = there[:, None] & (c < C)[None, :]
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
    tl.store(mean + r, centre, mask=there)
    tl.store(unit + r, scale, mask=there)
    w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    b = tl.load(bias + c, mask=c < C, other=0.0).to(tl.float32)
    normed = (off * scale[:, None] * w[None, :] + b[None, :]).to(y.dtype.element_ty)
    tl.store(y + at, normed, mask=real)
    if RANK:
        k = tl.arange(0, R)
        pair = tl.load(
            a + (client * RANK + k)[:, None] * C + c[None, :], mask=(k < RANK)[:, None] & (c < C)[None, :], other=0.0
        )
        narrow = (tl.dot(normed, tl.trans(pair)) * times).to(low.dtype.element_ty)
        tl.store(low + r[:, None] * RANK + k[None, :], narrow, mask=there[:, None] & (k < RANK)[None, :])


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
    scale = tl.load(unit + r, mask=there, other=0.0)
    centre = tl.load(mean + r, mask=there, other=0.0)
    w = tl.load(weight + c, mask=c < C, other=0.0).to(tl.float32)
    parts, along = (), ()
    for k in tl.static_range(RANK):  # all loads are under way before the first is used
        parts += (tl.load(low + r * RANK + k, mask=there, other=0.0),)  # type: ignore[assignment]
        column = a + (client * RANK + k) * C + c
        along += (tl.load(column, mask=c < C, other=0.0),)  # type: ignore[assignment]
    for k in tl.static_range(RANK):
        g += parts[k].to(tl.float32)[:, None] * along[k].to(tl.float32)[None, :]
    v = tl.where(real, v - centre[:, None], 0.0) * scale[:, None]
    g *= w[None, :]
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
    return _run_norm(x, d, weight, bias, eps, None, 1.0)[:4]


def norm_low(
    x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float, a: Tensor, times: float
) -> tuple[Tensor, ...]:
    """The same of rows [G, N, C], and `times` the norm's product with each group's A [G, rank, C], [G, N, rank]."""
    return _run_norm(x, d, weight, bias, eps, a, times)


def _run_norm(
    x: Tensor, d: Tensor | None, weight: Tensor, bias: Tensor, eps: float, a: Tensor | None, times: float
) -> tuple[Tensor, ...]:
    groups, rank = (1, 0) if a is None else a.shape[:2]
    programs, columns, *tile = _cut(x[0] if rank else x)
    if rank:  # the least that the hardware multiplies
        programs, tile[0] = -(-x.shape[1] // LEAST), LEAST
    mean, unit = blank(2, *x.shape[:-1], dtype=torch.float32, device=x.device)
    s, y = x if d is None else blank_like(x), blank_like(x)
    low = blank(*x.shape[:-1], rank, dtype=x.dtype, device=x.device)
    given = (x if d is None else d, weight, bias, x if a is None else a)
    _norm[(groups * programs,)](
        x, *given, s, y, low, mean, unit, x.numel() // columns // groups, eps, times, columns, d is not None, rank,
        max(LEAST, triton.next_power_of_2(rank)), *tile, num_warps=8 if rank else 4,
    )  # fmt: skip
    return s, y, mean, unit, low


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
    programs, _, *tile = _cut(s[0] if rank else s)
    given = (dy, dy) if low is None else (low, a)
    _norm_back[(groups * programs,)](
        other, dy, *given, s, weight, mean, unit, ds, s.numel() // columns // groups, columns, more is not None, rank,
        *tile,
    )  # fmt: skip
    return ds
