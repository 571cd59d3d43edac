"""Triton kernels for norm layers of many clients, each with scales and shifts of its own.

Scale, shift, a sum with another tensor and ReLU (ReLU6 of batch norm, where RELU is 6) are one pass, after one that
finds statistics. Sums have a fixed order, so results repeat to the bit. Images are taken in the order they lie in,
channels or places side by side.

- batch norm: sums over a client's samples and places, cut into parts, are put together in order.
- group norm: a program has one sample; a number of channels share statistics.
- layer norm: a program has rows, each with statistics of its own.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .cutting import in_units
from .kernels import AVAILABLE, jit
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton.language as tl

TILE = 4096
"""Numbers of a tile."""
PROGRAMS, LEAST = 1024, 128
"""Programs that fill a device, and the rows that a part of a sum has at least."""


@jit
def _places(begin, c, C, P, ROWS: tl.constexpr, P_UNIT: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr):
    """Where channels c of rows, of samples and places, lie; with LAST a place's channels side by side. A tile begins at
    a multiple of ROWS, which the compiler cannot know; without PLACES it lies in one image."""
    r = begin + tl.arange(0, ROWS)
    if LAST:
        at = (r * C)[:, None] + c[None, :]
    elif PLACES > 0:
        place = tl.max_contiguous(tl.multiple_of(r % PLACES, P_UNIT), P_UNIT)
        at = (tl.max_constancy(r // PLACES, P_UNIT) * (C * PLACES) + place)[:, None] + (c * PLACES)[None, :]
    else:
        place = tl.max_contiguous(tl.multiple_of(begin % P + tl.arange(0, ROWS), P_UNIT), P_UNIT)
        at = ((begin // P) * (C * P) + place)[:, None] + (c * P)[None, :]
    return at


@jit
def _passed(d, y, RELU: tl.constexpr):
    """What of a gradient goes through ReLU, or ReLU6, whose result is y."""
    d = tl.where(y > 0, d, 0.0)
    if RELU == 6:
        d = tl.where(y < 6, d, 0.0)
    return d


@jit
def _counting(counts, client, r, rows, P: tl.constexpr, known):
    """Which rows are of samples whose count is not zero."""
    return tl.load(counts + client * (rows // P) + r // P, mask=known, other=0.0) != 0


@late
@jit(do_not_specialize=["count", "channels", "places"])
def _moments(
    x, counts, parts, rows, span, count, channels, places,
    C_UNIT: tl.constexpr, P_UNIT: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr,
    COUNTED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Mean, and sum of squares around it, of one part of a client's rows; parts are put together as they come. Where
    COUNTED, of those rows whose sample's count is not zero, and how many these were."""
    C, P = channels * C_UNIT, places * P_UNIT
    across = tl.cdiv(C, COLS)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % count
    client = (tl.program_id(0) // (across * count)).to(tl.int64)
    x += client * rows * C
    end = tl.minimum(part * span + span, rows)
    seen = 0.0
    mean = tl.zeros((COLS,), dtype=tl.float32)
    square = tl.zeros((COLS,), dtype=tl.float32)
    for begin in range(part * span, end, ROWS):
        r = begin + tl.arange(0, ROWS)
        known = r < end
        here = tl.minimum(end - begin, ROWS).to(tl.float32)
        if COUNTED:
            known = known & _counting(counts, client, r, rows, PLACES, known)
            here = tl.sum(known.to(tl.float32), 0)
        real = known[:, None] & (c < C)[None, :]
        at = _places(begin, c, C, P, ROWS, P_UNIT, PLACES, LAST)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        own = tl.sum(v, 0) / tl.maximum(here, 1.0)
        off = tl.where(real, v - own[None, :], 0.0)
        both = seen + here
        apart, most = own - mean, tl.maximum(both, 1.0)
        square += tl.sum(off * off, 0) + apart * apart * (seen * here / most)
        mean += apart * (here / most)
        seen = both
    wide = 3 * C if COUNTED else 2 * C
    to = parts + (client * count + part) * wide + c
    tl.store(to, mean, mask=c < C)
    tl.store(to + C, square, mask=c < C)
    if COUNTED:
        tl.store(to + 2 * C, tl.zeros((COLS,), dtype=tl.float32) + seen, mask=c < C)


@late
@jit(do_not_specialize=["count", "channels"])
def _together(
    parts, out, rows, span, count, channels, C_UNIT: tl.constexpr, SUMS: tl.constexpr, COUNTED: tl.constexpr,
    COLS: tl.constexpr,
):  # fmt: skip
    """out[0, g], out[1, g] = mean and variance of all rows from those of parts; or with SUMS, sums of two sums. Where
    COUNTED, each part says how many of its rows there are."""
    C = channels * C_UNIT
    across = tl.cdiv(C, COLS)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    client = (tl.program_id(0) // across).to(tl.int64)
    real = c < C
    first = tl.zeros((COLS,), dtype=tl.float32)
    second = tl.zeros((COLS,), dtype=tl.float32)
    seen = tl.zeros((COLS,), dtype=tl.float32)
    wide = 3 * C if COUNTED else 2 * C
    for part in range(count):
        from_ = parts + (client * count + part) * wide + c
        a, b = tl.load(from_, mask=real, other=0.0), tl.load(from_ + C, mask=real, other=0.0)
        if SUMS:
            first += a
            second += b
        else:
            if COUNTED:
                here = tl.load(from_ + 2 * C, mask=real, other=0.0)
            else:
                here = tl.zeros((COLS,), dtype=tl.float32) + tl.minimum(span, rows - part * span).to(tl.float32)
            both = seen + here
            apart, most = a - first, tl.maximum(both, 1.0)
            second += b + apart * apart * (seen * here / most)
            first += apart * (here / most)
            seen = both
    if not SUMS:
        second = second / tl.maximum(seen, 1.0) if COUNTED else second / rows
    to = out + client * C + c
    tl.store(to, first, mask=real)
    tl.store(to + (tl.num_programs(0) // across).to(tl.int64) * C, second, mask=real)


@late
@jit(do_not_specialize=["count", "channels", "places"])
def _scale(
    x, other, weight, bias, mean, var, y, rows, span, count, channels, places, eps,
    C_UNIT: tl.constexpr, P_UNIT: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr,
    ADD: tl.constexpr, RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """y = (x - mean) / sqrt(var + eps) * weight + bias (+ other) (where positive); x, other and y lie alike."""
    C, P = channels * C_UNIT, places * P_UNIT
    across = tl.cdiv(C, COLS)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % count
    client = (tl.program_id(0) // (across * count)).to(tl.int64)
    known = c < C
    centre = tl.load(mean + client * C + c, mask=known, other=0.0).to(tl.float32)
    spread = tl.load(var + client * C + c, mask=known, other=1.0).to(tl.float32)
    scale = tl.load(weight + client * C + c, mask=known, other=0.0).to(tl.float32) * tl.math.rsqrt(spread + eps)
    shift = tl.load(bias + client * C + c, mask=known, other=0.0).to(tl.float32)
    end = tl.minimum(part * span + span, rows)
    for begin in range(part * span, end, ROWS):
        r = begin + tl.arange(0, ROWS)
        real = (r < end)[:, None] & known[None, :]
        at = client * rows * C + _places(begin, c, C, P, ROWS, P_UNIT, PLACES, LAST)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        v = (v - centre[None, :]) * scale[None, :] + shift[None, :]
        if ADD:
            v += tl.load(other + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            v = tl.where(v < 0, 0.0, v)  # no maximum: what is no number stays
        if RELU == 6:
            v = tl.where(v > 6, 6.0, v)
        tl.store(y + at, v.to(y.dtype.element_ty), mask=real)


@late
@jit(do_not_specialize=["count", "channels", "places"])
def _slopes(
    dy, x, y, mean, var, parts, rows, span, count, channels, places, eps,
    C_UNIT: tl.constexpr, P_UNIT: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr,
    RELU: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """Of one part of a client's rows the sums of dy, and of dy times the normalised x: slopes of bias and weight."""
    C, P = channels * C_UNIT, places * P_UNIT
    across = tl.cdiv(C, COLS)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % count
    client = (tl.program_id(0) // (across * count)).to(tl.int64)
    known = c < C
    centre = tl.load(mean + client * C + c, mask=known, other=0.0).to(tl.float32)
    spread = tl.load(var + client * C + c, mask=known, other=1.0).to(tl.float32)
    end = tl.minimum(part * span + span, rows)
    first = tl.zeros((COLS,), dtype=tl.float32)
    second = tl.zeros((COLS,), dtype=tl.float32)
    for begin in range(part * span, end, ROWS):
        r = begin + tl.arange(0, ROWS)
        real = (r < end)[:, None] & known[None, :]
        at = client * rows * C + _places(begin, c, C, P, ROWS, P_UNIT, PLACES, LAST)
        d = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            d = _passed(d, tl.load(y + at, mask=real, other=0.0).to(tl.float32), RELU)
        v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
        first += tl.sum(d, 0)
        second += tl.sum(d * (v - centre[None, :]), 0)
    to = parts + (client * count + part) * (2 * C) + c
    tl.store(to, first, mask=known)
    tl.store(to + C, second * tl.math.rsqrt(spread + eps), mask=known)


@late
@jit(do_not_specialize=["clients", "count", "channels", "places"])
def _unscale(
    dy, x, y, counts, total, weight, mean, var, slopes, dx, clients, rows, span, count, channels, places, eps,
    C_UNIT: tl.constexpr, P_UNIT: tl.constexpr, PLACES: tl.constexpr, LAST: tl.constexpr,
    OWN: tl.constexpr, RELU: tl.constexpr, COUNTED: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """dx of dy, through the statistics as well where they are x's OWN; where COUNTED, those of `total` samples of a
    client, whose counts are not zero."""
    C, P = channels * C_UNIT, places * P_UNIT
    across = tl.cdiv(C, COLS)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % count
    client = (tl.program_id(0) // (across * count)).to(tl.int64)
    known = c < C
    centre = tl.load(mean + client * C + c, mask=known, other=0.0).to(tl.float32)
    spread = tl.load(var + client * C + c, mask=known, other=1.0).to(tl.float32)
    unit = tl.math.rsqrt(spread + eps)
    scale = tl.load(weight + client * C + c, mask=known, other=0.0).to(tl.float32) * unit
    many = tl.maximum(tl.load(total + client), 1.0) * PLACES if COUNTED else rows
    flat = tl.load(slopes + client * C + c, mask=known, other=0.0) / many
    tilt = tl.load(slopes + (clients + client) * C + c, mask=known, other=0.0) / many * unit
    end = tl.minimum(part * span + span, rows)
    for begin in range(part * span, end, ROWS):
        r = begin + tl.arange(0, ROWS)
        real = (r < end)[:, None] & known[None, :]
        at = client * rows * C + _places(begin, c, C, P, ROWS, P_UNIT, PLACES, LAST)
        d = tl.load(dy + at, mask=real, other=0.0).to(tl.float32)
        if RELU:
            d = _passed(d, tl.load(y + at, mask=real, other=0.0).to(tl.float32), RELU)
        if OWN:
            v = tl.load(x + at, mask=real, other=0.0).to(tl.float32)
            if COUNTED:
                some = _counting(counts, client, r, rows, PLACES, r < end)[:, None]
                d = d - tl.where(some, flat[None, :] + (v - centre[None, :]) * tilt[None, :], 0.0)
            else:
                d = d - flat[None, :] - (v - centre[None, :]) * tilt[None, :]
        tl.store(dx + at, (d * scale[None, :]).to(dx.dtype.element_ty), mask=real)


def _cut(n: int, by: int) -> int:
    return -(-n // by)


def _power(n: int) -> int:
    return 1 << max(n - 1, 0).bit_length()


def _plan(x: Tensor, counted: bool = False) -> tuple[tuple[int, ...], tuple[Any, ...], int, int]:
    """How [G, B, C, P] is cut: (rows, span, parts, units of channels, units of places), constants of the kernels,
    programs, and programs per part. The number of places is a constant where a kernel would divide by it again and
    again, as division by constants is quicker."""
    clients, batch, channels, places = x.shape
    last = x.stride(3) != 1
    columns = min(_power(channels), 64 if last else 32)
    tile, across, rows = max(TILE // columns, 16), _cut(channels, columns), batch * places
    wanted = max(min(_cut(PROGRAMS, clients * across), rows // LEAST), 1)
    span = _cut(_cut(rows, wanted), tile) * tile
    count, (sizes, units) = _cut(rows, span), in_units(channels, places)
    constant = counted or not (last or places % tile == 0)
    units = units if constant or not last else [units[0], 1]  # nothing depends on places
    shape = (*units, places if constant else 0, last, tile, columns)
    return (rows, span, count, *sizes), shape, clients * across * count, clients * across


def batch_moments(x: Tensor, counts: Tensor | None = None) -> tuple[Tensor, Tensor]:
    """Mean and variance [G, C] (the plain mean of squares) of x [G, B, C, P], or of its samples whose counts [G, B] are
    not zero."""
    counted = counts is not None
    cut, shape, programs, few = _plan(x, counted)
    clients, _, channels, _ = x.shape
    parts = blank(clients, cut[2], 3 if counted else 2, channels, dtype=torch.float32, device=x.device)
    some = x if counts is None else counts.contiguous()
    _moments[(programs,)](x, some, parts, *cut, *shape[:4], counted, *shape[4:])
    out = blank(2, clients, channels, dtype=torch.float32, device=x.device)
    _together[(few,)](parts, out, *cut[:4], shape[0], False, counted, shape[-1])
    return out[0], out[1]


def batch_scale(x: Tensor, args: tuple[Tensor, ...], other: Tensor | None, eps: float, relu: int) -> Tensor:
    """y of x [G, B, C, P], and weight, bias, mean, variance [G, C]; `other` lies in memory as x does."""
    cut, shape, programs, _ = _plan(x)
    y = blank_like(x)
    flags: tuple[Any, ...] = (other is not None, relu)
    _scale[(programs,)](x, x if other is None else other, *args, y, *cut, eps, *shape[:4], *flags, *shape[4:])
    return y


def batch_back(
    dy: Tensor, x: Tensor, y: Tensor | None, args: tuple[Tensor, ...], eps: float, own: bool, relu: int,
    counts: Tensor | None = None,
) -> tuple[Tensor, Tensor, Tensor]:  # fmt: skip
    """dx, dweight and dbias, of weight, mean, variance [G, C]; y where ReLU followed. All lie in memory as x does.
    `counts` as in `batch_moments`."""
    cut, shape, programs, few = _plan(x, counts is not None)
    clients, _, channels, _ = x.shape
    weight, mean, var = args
    relu, after = (0, x) if y is None else (relu, y)
    parts = blank(clients, cut[2], 2, channels, dtype=torch.float32, device=x.device)
    _slopes[(programs,)](dy, x, after, mean, var, parts, *cut, eps, *shape[:4], relu, *shape[4:])
    slopes = blank(2, clients, channels, dtype=torch.float32, device=x.device)
    _together[(few,)](parts, slopes, *cut[:4], shape[0], True, False, shape[-1])
    dx, counted = blank_like(x), counts is not None
    some = (x, mean) if counts is None else (counts.contiguous(), (counts != 0).sum(1, dtype=torch.float32))
    flags = (own, relu, counted)
    _unscale[(programs,)](
        dy, x, after, *some, weight, mean, var, slopes, dx, clients, *cut, eps, *shape[:4], *flags, *shape[4:]
    )  # fmt: skip
    return dx, slopes[1], slopes[0]
