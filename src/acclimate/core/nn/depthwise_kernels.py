"""Triton kernels for depthwise convolutions of many clients: every channel is convolved with a small kernel of its own.

Images lie with a pixel's channels side by side, and every load is of neighbouring channels. One thread has a few
channels of a patch of TALL x WIDE results. It reads each pixel that the patch sees once, and uses it for every tap that
meets it: from five to ten reads for a result of 5 x 5 taps, instead of 25. Sizes are arguments and no constants, so
that all layers with the same kernel and step share what is compiled.

Assumed: a square kernel and step, no dilation, zeros around the image; channels in any number, best in multiples of 16.
A client's images are dense. What is cut off at the right and at the bottom follows from the size of the result, so that
padding may be uneven. Sums are in float32, and their order is fixed: results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def,assignment"

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

TALL, WIDE = 2, 2
"""Rows and columns of the patch of results that a thread has."""
TILE, COLUMNS = {3: 512, 5: 256}, 32
"""Patches times channels of a program, by the size of the kernel, of which a thread holds all taps; and channels."""
PROGRAMS, MOST = 2048, 8
"""Programs that fill a device, and the tiles that one of them has at most where there are more."""
SLICES = 512
"""Programs of the gradient of weights, each of which has a sum of its own."""
SIZES = ["lanes", "span", "high", "long", "oh", "ow", "down", "right", "pad_h", "pad_w"]


@dataclass(frozen=True)
class Window:
    """What a depthwise convolution is besides its tensors. No tuple, as `Geometry` is none."""

    image: tuple[int, int]
    out: tuple[int, int]
    kernel: int
    step: int
    pad: tuple[int, int]
    """Rows of zeros above the image, and columns to its left."""


@jit
def _lane(tile, down, right, LANES: tl.constexpr):
    """Which patches a tile has: their number, image, row and column."""
    m = tile * LANES + tl.arange(0, LANES)
    return m, m // (down * right), (m // right) % down, m % right


@jit
def _columns(col, long, WIDE: tl.constexpr):
    """Whether the pixels in columns `col`, and in those to their right, lie in images whose rows have `long` pixels."""
    masks = ()
    for j in tl.static_range(WIDE):
        masks = masks + ((col + j >= 0) & (col + j < long),)
    return masks


@late
@jit(do_not_specialize=SIZES)
def _depthwise(
    x, w, y, far, lanes, span, high, long, oh, ow, down, right, pad_h, pad_w, C,
    K: tl.constexpr, STEP: tl.constexpr, BACK: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    LANES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """y[g, b, r, s, c] = sum over taps of x[g, b, r * STEP + dy - pad, s * STEP + dx - pad, c] * w[g, dy, dx, c]; with
    BACK, of those x[g, b, (r + pad - dy) / STEP, (s + pad - dx) / STEP, c] that there are. Images of x have `high` rows
    of `long` pixels, and clients are `far` apart."""
    across = tl.cdiv(C, COLS)
    tiles = tl.cdiv(lanes, LANES)
    parts = tl.cdiv(tiles, span)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % parts
    client = (tl.program_id(0) // (across * parts)).to(tl.int64)
    known = (c < C)[None, :]
    x += client * far
    y += client * (lanes // (down * right)) * oh * ow * C
    taps = ()
    w += client * (K * K) * C
    for tap in tl.static_range(K * K):
        one = tl.load(w + tap * C + c, mask=c < C, other=0.0).to(tl.float32)
        taps = taps + (tl.broadcast_to(one[None, :], (LANES, COLS)),)
    ahead: tl.constexpr = (K - 1) // STEP if BACK else 0
    tall: tl.constexpr = (TALL - 1) // STEP + ahead + 1 if BACK else (TALL - 1) * STEP + K
    wide: tl.constexpr = (WIDE - 1) // STEP + ahead + 1 if BACK else (WIDE - 1) * STEP + K
    A: tl.constexpr = -STEP if BACK else 1  # row i of what is seen meets row r of the patch with tap A * i + B * r + Z
    B: tl.constexpr = 1 if BACK else -STEP
    Z: tl.constexpr = ahead * STEP
    for tile in range(part * span, tl.minimum(part * span + span, tiles)):
        m, image, top, left = _lane(tile, down, right, LANES)
        if BACK:  # patches begin where the first tap meets a pixel
            top, left = top * TALL - pad_h % STEP, left * WIDE - pad_w % STEP
            row, col = (top + pad_h) // STEP - ahead, (left + pad_w) // STEP - ahead
        else:
            top, left = top * TALL, left * WIDE
            row, col = top * STEP - pad_h, left * STEP - pad_w
        from_ = x + (((image * high + row).to(tl.int64) * long + col) * C)[:, None] + c[None, :]
        sums = ()
        for o in tl.static_range(TALL * WIDE):
            sums = sums + (tl.zeros((LANES, COLS), dtype=tl.float32),)
        columns = _columns(col, long, wide)
        for i in tl.static_range(tall):
            line = from_ + i * long * C
            inside = (m < lanes) & (row + i >= 0) & (row + i < high)
            for j in tl.static_range(wide):
                v = tl.load(line + j * C, mask=(inside & columns[j])[:, None] & known, other=0.0).to(tl.float32)
                for r in tl.static_range(TALL):
                    if (A * i + B * r + Z >= 0) and (A * i + B * r + Z < K):
                        for s in tl.static_range(WIDE):
                            if (A * j + B * s + Z >= 0) and (A * j + B * s + Z < K):
                                new = tl.fma(v, taps[(A * i + B * r + Z) * K + A * j + B * s + Z], sums[r * WIDE + s])
                                sums = sums[0 : r * WIDE + s] + (new,) + sums[r * WIDE + s + 1 : TALL * WIDE]
        to = y + (((image * oh + top).to(tl.int64) * ow + left) * C)[:, None] + c[None, :]
        for o in tl.static_range(TALL * WIDE):
            r, s = top + o // WIDE, left + o % WIDE
            real = ((m < lanes) & (r >= 0) & (r < oh) & (s >= 0) & (s < ow))[:, None] & known
            tl.store(to + ((o // WIDE) * ow + o % WIDE) * C, sums[o].to(y.dtype.element_ty), mask=real)


@late
@jit(do_not_specialize=SIZES)
def _depthwise_slopes(
    x, dy, parts, far, away, lanes, span, high, long, oh, ow, down, right, pad_h, pad_w, C,
    K: tl.constexpr, STEP: tl.constexpr, TALL: tl.constexpr, WIDE: tl.constexpr,
    LANES: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """parts[g, part, tap, c] = the sum over one part of the patches of dy [g, b, r, s, c] times what its tap met in x.
    Clients of x and dy are `far` and `away` apart."""
    across = tl.cdiv(C, COLS)
    tiles = tl.cdiv(lanes, LANES)
    count = tl.cdiv(tiles, span)
    c = (tl.program_id(0) % across) * COLS + tl.arange(0, COLS)
    part = (tl.program_id(0) // across) % count
    client = (tl.program_id(0) // (across * count)).to(tl.int64)
    known = (c < C)[None, :]
    x += client * far
    dy += client * away
    tall: tl.constexpr = (TALL - 1) * STEP + K
    wide: tl.constexpr = (WIDE - 1) * STEP + K
    sums = ()
    for tap in tl.static_range(K * K):
        sums = sums + (tl.zeros((LANES, COLS), dtype=tl.float32),)
    for tile in range(part * span, tl.minimum(part * span + span, tiles)):
        m, image, top, left = _lane(tile, down, right, LANES)
        top, left = top * TALL, left * WIDE
        row, col = top * STEP - pad_h, left * STEP - pad_w
        above = dy + (((image * oh + top).to(tl.int64) * ow + left) * C)[:, None] + c[None, :]
        ways = ()
        for o in tl.static_range(TALL * WIDE):
            real = ((m < lanes) & (top + o // WIDE < oh) & (left + o % WIDE < ow))[:, None] & known
            from_ = above + ((o // WIDE) * ow + o % WIDE) * C
            ways = ways + (tl.load(from_, mask=real, other=0.0).to(tl.float32),)
        below = x + (((image * high + row).to(tl.int64) * long + col) * C)[:, None] + c[None, :]
        columns = _columns(col, long, wide)
        for i in tl.static_range(tall):
            line = below + i * long * C
            inside = (m < lanes) & (row + i >= 0) & (row + i < high)
            for j in tl.static_range(wide):
                v = tl.load(line + j * C, mask=(inside & columns[j])[:, None] & known, other=0.0).to(tl.float32)
                for r in tl.static_range(TALL - 1, -1, -1):  # the first tap first
                    if (i - r * STEP >= 0) and (i - r * STEP < K):
                        for s in tl.static_range(WIDE - 1, -1, -1):
                            if (j - s * STEP >= 0) and (j - s * STEP < K):
                                new = tl.fma(v, ways[r * WIDE + s], sums[(i - r * STEP) * K + j - s * STEP])
                                sums = (
                                    sums[0 : (i - r * STEP) * K + j - s * STEP]
                                    + (new,)
                                    + sums[(i - r * STEP) * K + j - s * STEP + 1 : K * K]
                                )
    to = parts + (client * count + part) * (K * K) * C + c
    for tap in tl.static_range(K * K):
        tl.store(to + tap * C, tl.sum(sums[tap], 0), mask=c < C)


def _cut(n: int, by: int) -> int:
    return -(-n // by)


def _plan(batch: int, channels: int, size: tuple[int, int], g: Window) -> tuple[int, int, tuple[int, int], int]:
    """Patches of a client, and the tiles that they make; rows and columns of patches; channels of a program. Results
    have this size."""
    down, right = _cut(size[0], TALL), _cut(size[1], WIDE)
    columns = min(1 << max(channels - 1, 0).bit_length(), COLUMNS)
    lanes = batch * down * right
    return lanes, _cut(lanes, TILE[g.kernel] // columns), (down, right), columns


def dense(x: Tensor) -> Tensor:
    """[G, B, C, h, w] as [G, B, h, w, C], of which every client is dense; clients may be the same one."""
    rows = x.permute(0, 1, 3, 4, 2)
    if rows[0].is_contiguous():
        return rows
    return rows[:1].contiguous().expand_as(rows) if rows.stride(0) == 0 else rows.contiguous()


def _far(x: Tensor) -> int:
    """How far clients are apart."""
    return x.stride(0) if len(x) > 1 else 0


def convolve(x: Tensor, w: Tensor, g: Window) -> Tensor:
    """y [G, B, C, oh, ow] of x [G, B, C, h, w] and w [G, C, k, k]."""
    return _run(x, w, g, g.image, g.out, g.out, False)


def spread(dy: Tensor, w: Tensor, g: Window) -> Tensor:
    """The input's gradient dx of dy and w."""
    begun = (g.image[0] + g.pad[0] % g.step, g.image[1] + g.pad[1] % g.step)  # the first patches may begin outside
    return _run(dy, w, g, g.out, g.image, begun, True)


def _run(
    x: Tensor, w: Tensor, g: Window, size: tuple[int, int], out: tuple[int, int], begun: tuple[int, int], back: bool
) -> Tensor:
    clients, batch, channels = x.shape[:3]
    x, w = dense(x), w.flatten(2).transpose(1, 2).contiguous()
    y = blank(clients, batch, *out, channels, dtype=x.dtype, device=x.device)
    lanes, tiles, patches, columns = _plan(batch, channels, begun, g)
    across = clients * _cut(channels, columns)
    span = max(min(across * tiles // PROGRAMS, MOST), 1)
    _depthwise[(across * _cut(tiles, span),)](
        x, w, y, _far(x), lanes, span, *size, *out, *patches, *g.pad, channels,
        g.kernel, g.step, back, TALL, WIDE, TILE[g.kernel] // columns, columns,
    )  # fmt: skip
    return y.permute(0, 1, 4, 2, 3)


def correlate(x: Tensor, dy: Tensor, g: Window) -> Tensor:
    """The weights' gradient dw [G, C, k, k] of x and dy."""
    clients, batch, channels = x.shape[:3]
    x, dy = dense(x), dense(dy)
    lanes, tiles, patches, columns = _plan(batch, channels, g.out, g)
    across = clients * _cut(channels, columns)
    span = _cut(tiles, max(min(_cut(SLICES, across), tiles), 1))
    count = _cut(tiles, span)
    parts = blank(clients, count, g.kernel**2, channels, dtype=torch.float32, device=x.device)
    _depthwise_slopes[(across * count,)](
        x, dy, parts, _far(x), _far(dy), lanes, span, *g.image, *g.out, *patches, *g.pad, channels,
        g.kernel, g.step, TALL, WIDE, TILE[g.kernel] // columns, columns,
    )  # fmt: skip
    dw = parts[:, 0] if count == 1 else parts.sum(1)
    return dw.transpose(1, 2).unflatten(2, (g.kernel, g.kernel)).to(x.dtype)
