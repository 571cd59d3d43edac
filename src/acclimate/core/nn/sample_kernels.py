"""Triton kernels for norms with statistics of every sample: group norm and layer norm, one pass each way."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .cutting import in_units
from .kernels import AVAILABLE, jit
from .norm_kernels import LEAST, PROGRAMS, TILE, _cut, _power, _together
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton.language as tl


@late
@jit
def _group(
    x, other, weight, bias, y, mean, var, batch, eps,
    GROUPS: tl.constexpr, EACH: tl.constexpr, P: tl.constexpr, SP: tl.constexpr, SC: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, BG: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """One sample [P, GROUPS * EACH]: mean and variance of every group, and y as `norm_kernels._scale` has it."""
    C: tl.constexpr = GROUPS * EACH
    sample = tl.program_id(0).to(tl.int64)
    client = sample // batch
    group, within = tl.arange(0, BG), tl.arange(0, BC)
    c = group[:, None] * EACH + within[None, :]
    live = (group < GROUPS)[:, None] & (within < EACH)[None, :]
    total = tl.zeros((BG,), dtype=tl.float32)
    for begin in range(0, P, ROWS):
        p = begin + tl.arange(0, ROWS)
        real = (p < P)[:, None, None] & live[None, :, :]
        at = sample * (P * C) + (p * SP)[:, None, None] + (c * SC)[None, :, :]
        total += tl.sum(tl.sum(tl.load(x + at, mask=real, other=0.0).to(tl.float32), 0), 1)
    centre = total / (P * EACH)
    total = tl.zeros((BG,), dtype=tl.float32)
    for begin in range(0, P, ROWS):
        p = begin + tl.arange(0, ROWS)
        real = (p < P)[:, None, None] & live[None, :, :]
        at = sample * (P * C) + (p * SP)[:, None, None] + (c * SC)[None, :, :]
        off = tl.load(x + at, mask=real, other=0.0).to(tl.float32) - centre[None, :, None]
        total += tl.sum(tl.sum(tl.where(real, off * off, 0.0), 0), 1)
    spread = total / (P * EACH)
    tl.store(mean + sample * GROUPS + group, centre, mask=group < GROUPS)
    tl.store(var + sample * GROUPS + group, spread, mask=group < GROUPS)
    scale = tl.load(weight + client * C + c, mask=live, other=0.0).to(tl.float32) * tl.math.rsqrt(spread + eps)[:, None]
    shift = tl.load(bias + client * C + c, mask=live, other=0.0).to(tl.float32)
    for begin in range(0, P, ROWS):
        p = begin + tl.arange(0, ROWS)
        real = (p < P)[:, None, None] & live[None, :, :]
        at = sample * (P * C) + (p * SP)[:, None, None] + (c * SC)[None, :, :]
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        v = (v - centre[None, :, None]) * scale[None, :, :] + shift[None, :, :]
        if ADD:
            v += tl.load(other + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            v = tl.where(v < 0, 0.0, v)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=real)


@late
@jit
def _group_back(
    dy, x, y, weight, mean, var, dx, slopes, batch, eps,
    GROUPS: tl.constexpr, EACH: tl.constexpr, P: tl.constexpr, SP: tl.constexpr, SC: tl.constexpr,
    RELU: tl.constexpr, ROWS: tl.constexpr, BG: tl.constexpr, BC: tl.constexpr,
):  # fmt: skip
    """dx of one sample, and its share in the slopes of bias and weight."""
    C: tl.constexpr = GROUPS * EACH
    sample = tl.program_id(0).to(tl.int64)
    client = sample // batch
    group, within = tl.arange(0, BG), tl.arange(0, BC)
    c = group[:, None] * EACH + within[None, :]
    live = (group < GROUPS)[:, None] & (within < EACH)[None, :]
    centre = tl.load(mean + sample * GROUPS + group, mask=group < GROUPS, other=0.0)
    unit = tl.math.rsqrt(tl.load(var + sample * GROUPS + group, mask=group < GROUPS, other=1.0) + eps)
    scale = tl.load(weight + client * C + c, mask=live, other=0.0).to(tl.float32)
    first = tl.zeros((BG, BC), dtype=tl.float32)
    second = tl.zeros((BG, BC), dtype=tl.float32)
    for begin in range(0, P, ROWS):
        p = begin + tl.arange(0, ROWS)
        real = (p < P)[:, None, None] & live[None, :, :]
        at = sample * (P * C) + (p * SP)[:, None, None] + (c * SC)[None, :, :]
        d = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            d = tl.where(tl.load(y + at, mask=real, other=0.0).to(tl.float32) > 0, d, 0.0)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        first += tl.sum(d, 0)
        second += tl.sum(d * (v - centre[None, :, None]), 0)
    second = second * unit[:, None]
    tl.store(slopes + sample * (2 * C) + c, first, mask=live)
    tl.store(slopes + sample * (2 * C) + C + c, second, mask=live)
    flat = tl.sum(first * scale, 1) / (P * EACH)
    tilt = tl.sum(second * scale, 1) / (P * EACH) * unit
    for begin in range(0, P, ROWS):
        p = begin + tl.arange(0, ROWS)
        real = (p < P)[:, None, None] & live[None, :, :]
        at = sample * (P * C) + (p * SP)[:, None, None] + (c * SC)[None, :, :]
        d = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            d = tl.where(tl.load(y + at, mask=real, other=0.0).to(tl.float32) > 0, d, 0.0)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        d = d * scale[None, :, :] - flat[None, :, None] - (v - centre[None, :, None]) * tilt[None, :, None]
        tl.store(dx + at, (d * unit[None, :, None]).to(dx.dtype.element_ty), mask=real)


@late
@jit(do_not_specialize=["count"])
def _layer(
    x, weight, bias, y, mean, var, rows, span, count, eps, C: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr
):
    """Rows [C] of one client, each with statistics of its own."""
    part = tl.program_id(0) % count
    client = (tl.program_id(0) // count).to(tl.int64)
    c = tl.arange(0, COLS)
    known = c < C
    scale = tl.load(weight + client * C + c, mask=known, other=0.0).to(tl.float32)
    shift = tl.load(bias + client * C + c, mask=known, other=0.0).to(tl.float32)
    end = tl.minimum(part * span + span, rows)
    for begin in range(part * span, end, ROWS):
        r = client * rows + begin + tl.arange(0, ROWS)
        here = r < client * rows + end
        real = here[:, None] & known[None, :]
        v = tl.load(x + r[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)
        centre = tl.sum(v, 1) / C
        off = tl.where(real, v - centre[:, None], 0.0)
        spread = tl.sum(off * off, 1) / C
        tl.store(mean + r, centre, mask=here)
        tl.store(var + r, spread, mask=here)
        v = off * tl.math.rsqrt(spread + eps)[:, None] * scale[None, :] + shift[None, :]
        tl.store(y + r[:, None] * C + c[None, :], v.to(y.dtype.element_ty), mask=real)


@late
@jit(do_not_specialize=["count"])
def _layer_back(
    dy, x, weight, mean, var, dx, parts, rows, span, count, eps,
    C: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dx of rows [C] of one client, and their share in the slopes of bias and weight."""
    part = tl.program_id(0) % count
    client = (tl.program_id(0) // count).to(tl.int64)
    c = tl.arange(0, COLS)
    known = c < C
    scale = tl.load(weight + client * C + c, mask=known, other=0.0).to(tl.float32)
    first = tl.zeros((COLS,), dtype=tl.float32)
    second = tl.zeros((COLS,), dtype=tl.float32)
    end = tl.minimum(part * span + span, rows)
    for begin in range(part * span, end, ROWS):
        r = client * rows + begin + tl.arange(0, ROWS)
        here = r < client * rows + end
        real = here[:, None] & known[None, :]
        d = tl.load(dy + r[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)
        v = tl.load(x + r[:, None] * C + c[None, :], mask=real, other=0.0).to(tl.float32)
        centre = tl.load(mean + r, mask=here, other=0.0)
        unit = tl.math.rsqrt(tl.load(var + r, mask=here, other=1.0) + eps)
        v = tl.where(real, (v - centre[:, None]) * unit[:, None], 0.0)
        first += tl.sum(d, 0)
        second += tl.sum(d * v, 0)
        d = d * scale[None, :]
        d = d - (tl.sum(d, 1) / C)[:, None] - v * (tl.sum(d * v, 1) / C)[:, None]
        tl.store(dx + r[:, None] * C + c[None, :], (d * unit[:, None]).to(dx.dtype.element_ty), mask=real)
    to = parts + (client * count + part) * (2 * C) + c
    tl.store(to, first, mask=known)
    tl.store(to + C, second, mask=known)


def _shape(x: Tensor, groups: int) -> tuple[int, ...]:
    """Constants of the kernels for x [G, B, C, P]: sizes and strides, then the tile."""
    _, _, channels, places = x.shape
    each = channels // groups
    tile = max(TILE // (_power(groups) * _power(each)), 1)
    return groups, each, places, x.stride(3), x.stride(2), min(tile, _power(places)), _power(groups), _power(each)


def group_scale(
    x: Tensor, weight: Tensor, bias: Tensor, other: Tensor | None, groups: int, eps: float, relu: bool
) -> tuple[Tensor, Tensor, Tensor]:
    """y of x [G, B, C, P] and weight, bias [G, C], with mean and variance [G, B, groups]; `other` lies as x does."""
    clients, batch = x.shape[:2]
    shape, y = _shape(x, groups), blank_like(x)
    mean, var = blank(2, clients, batch, groups, dtype=torch.float32, device=x.device)
    _group[(clients * batch,)](
        x, x if other is None else other, weight, bias, y, mean, var, batch, eps,
        *shape[:5], other is not None, relu, *shape[5:],
    )  # fmt: skip
    return y, mean, var


def group_back(
    dy: Tensor, x: Tensor, y: Tensor | None, args: tuple[Tensor, ...], groups: int, eps: float
) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias, of weight [G, C], mean and variance [G, B, groups]; y where ReLU followed."""
    clients, batch, channels, _ = x.shape
    shape, dx = _shape(x, groups), blank_like(x)
    slopes = blank(clients, batch, 2, channels, dtype=torch.float32, device=x.device)
    _group_back[(clients * batch,)](
        dy, x, x if y is None else y, *args, dx, slopes, batch, eps, *shape[:5], y is not None, *shape[5:]
    )  # fmt: skip
    total = slopes.sum(1)
    return dx, total[:, 1], total[:, 0]


def _cut_rows(x: Tensor) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """(rows, span, parts) of x [G, R, C], and constants of the kernels."""
    clients, rows, channels = x.shape
    columns = _power(channels)
    tile = max(TILE // columns, 1)
    span = _cut(_cut(rows, max(min(_cut(PROGRAMS, clients), rows // min(LEAST, tile)), 1)), tile) * tile
    return (rows, span, _cut(rows, span)), (channels, tile, columns)


def layer_scale(x: Tensor, weight: Tensor, bias: Tensor, eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """y of x [G, R, C] and weight, bias [G, C], with mean and variance [G, R]."""
    cut, shape = _cut_rows(x)
    y = blank_like(x)
    mean, var = blank(2, *x.shape[:2], dtype=torch.float32, device=x.device)
    _layer[(len(x) * cut[2],)](x, weight, bias, y, mean, var, *cut, eps, *shape)
    return y, mean, var


def layer_back(dy: Tensor, x: Tensor, args: tuple[Tensor, ...], eps: float) -> tuple[Tensor, Tensor, Tensor]:
    """dx, dweight and dbias, of weight [G, C], mean and variance [G, R]."""
    cut, shape = _cut_rows(x)
    clients, channels = len(x), x.shape[2]
    dx = blank_like(x)
    parts = blank(clients, cut[2], 2, channels, dtype=torch.float32, device=x.device)
    _layer_back[(clients * cut[2],)](dy, x, *args, dx, parts, *cut, eps, *shape)
    slopes = blank(2, clients, channels, dtype=torch.float32, device=x.device)
    columns, ((size,), (unit,)) = min(shape[2], 64), in_units(channels)
    _together[(clients * _cut(channels, columns),)](parts, slopes, *cut, size, unit, True, False, columns)
    return dx, slopes[1], slopes[0]
