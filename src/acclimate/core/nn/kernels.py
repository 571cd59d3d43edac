"""Triton kernels for what torch computes slowly when every client has weights and random numbers of its own.

- `patches` and `unpatch`: what each output pixel of a convolution sees, written out as a matrix, and the transpose of
  that map. Between them a convolution is a batched matrix product, which the hardware does at several times the rate of
  a grouped convolution.
- `pool`, `unpool`, `pick`: 2 x 2 maximum pooling, its gradient, and the gradient of that.
- `mix`: the scrambling step of the random numbers, in one pass instead of nine.

Every sum has a fixed order, so results repeat to the bit. Triton comes with PyTorch's CUDA builds; where it is missing
or too old `AVAILABLE` is False and callers use torch's own operations.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from functools import partial
from typing import Any

import torch
from torch import Tensor

from .available import AVAILABLE as AVAILABLE
from .available import INTERPRETED as INTERPRETED
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton
    import triton.language as tl

BLOCK = 1024
"""Numbers that one program writes."""


def jit(f: Any = None, **options: Any) -> Any:
    """A Triton kernel of this function, or the function itself where there is no Triton. Of numbers that are not named
    in `do_not_specialize` Triton compiles a kernel anew where one is 1, or a multiple of 16."""
    made = triton.jit if AVAILABLE else lambda f, **_: f
    return partial(made, **options) if f is None else made(f, **options)


def usable(x: Tensor) -> bool:
    """Whether the floating-point kernels take this tensor."""
    return AVAILABLE and x.is_cuda and x.dtype in (torch.float32, torch.bfloat16, torch.float16)


def takes(x: Tensor) -> bool:
    """The same; what Triton interprets takes tensors of a CPU, too."""
    return usable(x) or (INTERPRETED and not x.is_cuda and x.dtype == torch.float32)


@late
@jit
def _patches(
    x,
    cols,
    pixels,
    IN: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STEP: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
    ROWS: tl.constexpr,
    RUN: tl.constexpr,
):
    """cols[n, oy, ox, (dy, dx, i)] = x[n, oy * step + dy - pad, ox * step + dx - pad, i], zero where outside.

    With a pixel's channels side by side, each row of a patch is one run of memory, in the source as in the result.
    """
    pixel = tl.program_id(0).to(tl.int64) * ROWS + tl.arange(0, ROWS)
    real = pixel < pixels
    place = (pixel % (OH * OW)).to(tl.int32)
    top, left = (place // OW) * STEP - PAD_H, (place % OW) * STEP - PAD_W
    image = (pixel // (OH * OW)) * (H * W * IN) + left * IN
    e = tl.arange(0, RUN)
    column = left[:, None] + (e // IN)[None, :]
    within = real[:, None] & (e < KW * IN)[None, :]
    inside = within & (column >= 0) & (column < W)
    for dy in tl.static_range(KH):
        row = top + dy
        seen = inside & ((row >= 0) & (row < H))[:, None]
        value = tl.load(x + (image + row * (W * IN))[:, None] + e[None, :], mask=seen, other=0.0)
        tl.store(cols + (pixel * PADDED)[:, None] + (dy * KW * IN + e)[None, :], value, mask=within)
    if PADDED > KH * KW * IN:
        tail = KH * KW * IN + tl.arange(0, 8)
        value = tl.zeros((ROWS, 8), dtype=cols.dtype.element_ty)
        tl.store(cols + (pixel * PADDED)[:, None] + tail[None, :], value, mask=real[:, None] & (tail < PADDED)[None, :])


@late
@jit
def _patches_of_few(
    x,
    cols,
    total,
    IN: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STEP: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`_patches` number by number: for runs too short to be worth a program's while. `total` is below 2^31."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    pixel, k = at // PADDED, at % PADDED
    n, place = pixel // (OH * OW), pixel % (OH * OW)
    dy, e = k // (KW * IN), k % (KW * IN)
    row = (place // OW) * STEP + dy - PAD_H
    left = (place % OW) * STEP - PAD_W
    seen = (at < total) & (k < KH * KW * IN) & (row >= 0) & (row < H)
    if PAD_W > 0:
        seen = seen & (left + e // IN >= 0) & (left + e // IN < W)
    value = tl.load(x + ((n * H + row) * W + left) * IN + e, mask=seen, other=0.0)
    tl.store(cols + at, value, mask=at < total)


@late
@jit
def _unpatch(
    cols,
    x,
    total,
    IN: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    OH: tl.constexpr,
    OW: tl.constexpr,
    KH: tl.constexpr,
    KW: tl.constexpr,
    STEP: tl.constexpr,
    PAD_H: tl.constexpr,
    PAD_W: tl.constexpr,
    PADDED: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """x[n, h, w, i] = the sum of every cols[n, oy, ox, (dy, dx, i)] that was read from there."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    i = (at % IN).to(tl.int32)
    pixel = at // IN
    n = pixel // (H * W)
    place = (pixel % (H * W)).to(tl.int32)
    y, z = place // W + PAD_H, place % W + PAD_W
    sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for tap in tl.static_range(KH * KW):
        row, col = y - tap // KW, z - tap % KW
        seen = (at < total) & (row >= 0) & (col >= 0)
        if STEP > 1:
            seen = seen & (row % STEP == 0) & (col % STEP == 0)
            row, col = row // STEP, col // STEP
        seen = seen & (row < OH) & (col < OW)
        from_ = cols + ((n * OH + row) * OW + col) * PADDED + tap * IN + i
        sum += tl.load(from_, mask=seen, other=0.0).to(tl.float32)
    tl.store(x + at, sum.to(x.dtype.element_ty), mask=at < total)


@late
@jit
def _pool(
    x, y, which, total, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr
):
    """The largest of each 2 x 2 block of [.., A, B, C] over A and B, and which of the four (of equals, the first); with
    RELU, 4 where that lets nothing through."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    HA: tl.constexpr = A // 2
    HB: tl.constexpr = B // 2
    c = at % C
    b = (at // C) % HB
    a = (at // (C * HB)) % HA
    n = at // (C * HB * HA)
    corner = x + ((n * A + 2 * a) * B + 2 * b) * C + c
    best = tl.load(corner, mask=real, other=0.0)
    choice = tl.zeros((BLOCK,), dtype=tl.int32)
    for other in tl.static_range(1, 4):
        value = tl.load(corner + ((other // 2) * B + other % 2) * C, mask=real, other=0.0)
        better = (value > best) | (value != value)
        best = tl.where(better, value, best)
        choice = tl.where(better, other, choice)
    if RELU:
        choice = tl.where(best <= 0, 4, choice)
        best = tl.where(best <= 0, 0.0, best)
    tl.store(y + at, best, mask=real)
    tl.store(which + at, choice.to(tl.uint8), mask=real)


@late
@jit
def _unpool(
    dy, which, dx, total, of_image, of_row, of_col, of_channel,
    A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """dx of `_pool`: each dy at the place its maximum came from, zero elsewhere. Blocks at an odd end are cut off, and
    have no dy."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    HA: tl.constexpr = A // 2
    HB: tl.constexpr = B // 2
    down: tl.constexpr = (A + 1) // 2
    right: tl.constexpr = (B + 1) // 2
    c = at % C
    b = (at // C) % right
    a = (at // (C * right)) % down
    n = at // (C * right * down)
    known = (at < total) & (a < HA) & (b < HB)
    choice = tl.load(which + ((n * HA + a) * HB + b) * C + c, mask=known, other=4)
    value = tl.load(dy + n * of_image + a * of_row + b * of_col + c * of_channel, mask=known, other=0.0)
    for place in tl.static_range(4):
        row, col = 2 * a + place // 2, 2 * b + place % 2
        inside = (at < total) & (row < A) & (col < B)
        tl.store(dx + ((n * A + row) * B + col) * C + c, tl.where(choice == place, value, 0.0), mask=inside)


@late
@jit
def _pick(x, which, y, total, A: tl.constexpr, B: tl.constexpr, C: tl.constexpr, BLOCK: tl.constexpr):
    """y[..] = the x that `which` names, of each 2 x 2 block."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    HA: tl.constexpr = A // 2
    HB: tl.constexpr = B // 2
    c = at % C
    b = (at // C) % HB
    a = (at // (C * HB)) % HA
    n = at // (C * HB * HA)
    choice = tl.load(which + at, mask=real, other=0).to(tl.int64)
    from_ = ((n * A + 2 * a + choice // 2) * B + 2 * b + choice % 2) * C + c
    value = tl.load(x + from_, mask=real & (choice < 4), other=0.0)
    tl.store(y + at, value, mask=real)


@late
@jit(do_not_specialize=["total", "a", "b", "c", "d"])
def _mix(
    x, y, total, a: tl.uint64, b: tl.uint64, c: tl.uint64, d: tl.uint64,
    M1: tl.constexpr, M2: tl.constexpr, FOLDS: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """splitmix64's finaliser; the shifts are logical. Once for each of the first FOLDS of four numbers, which is
    combined before: no constants, or every name would have a kernel of its own."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = tl.load(x + at, mask=at < total, other=0).to(tl.uint64, bitcast=True)
    folds = (a, b, c, d)
    for i in tl.static_range(FOLDS):
        v = v ^ folds[i].to(tl.uint64)
        v = (v ^ (v >> 30)) * tl.full((), M1, dtype=tl.uint64)
        v = (v ^ (v >> 27)) * tl.full((), M2, dtype=tl.uint64)
        v = v ^ (v >> 31)
    tl.store(y + at, v.to(tl.int64, bitcast=True), mask=at < total)


def _grid(total: int) -> tuple[int]:
    return (-(-total // BLOCK),)


def patches(x: Tensor, out: tuple[int, int], kernel: tuple[int, int], step: int, pad: tuple[int, int]) -> Tensor:
    """[N, oh * ow, K] of x [N, I, h, w] (any strides): what each output pixel sees, ordered (row, column, channel).

    K is kh * kw * I, rounded up with zeros to a multiple of 8, which aligned matrix products need.
    """
    count, channels, height, width = x.shape
    length = kernel[0] * kernel[1] * channels
    padded = -(-length // 8) * 8
    x = x.permute(0, 2, 3, 1).contiguous()
    if padded == channels and step == 1 and not any(pad):
        return x.flatten(1, 2)  # a pixel sees itself
    cols = blank(count, out[0] * out[1], padded, dtype=x.dtype, device=x.device)
    shape = (channels, height, width, *out, *kernel, step, *pad, padded)
    run, pixels, total = triton.next_power_of_2(kernel[1] * channels), count * out[0] * out[1], cols.numel()
    if run < 64 and total < 2**31 - BLOCK:
        _patches_of_few[_grid(total)](x, cols, total, *shape, BLOCK)
    else:
        rows = max(1, 2 * BLOCK // run)
        _patches[(-(-pixels // rows),)](x, cols, pixels, *shape, rows, run)
    return cols


def unpatch(
    cols: Tensor,
    channels: int,
    image: tuple[int, int],
    out: tuple[int, int],
    kernel: tuple[int, int],
    step: int,
    pad: tuple[int, int],
) -> Tensor:
    """[N, I, h, w] of cols [N, oh * ow, K]: the transpose of `patches`. A pixel's channels lie side by side."""
    if cols.shape[-1] == channels and step == 1 and not any(pad):
        return cols.unflatten(1, out).permute(0, 3, 1, 2)
    x = blank(len(cols), *image, channels, dtype=cols.dtype, device=cols.device)
    _unpatch[_grid(x.numel())](
        cols, x, x.numel(), channels, *image, *out, *kernel, step, *pad, cols.shape[-1], BLOCK
    )  # fmt: skip
    return x.permute(0, 3, 1, 2)


def pool(x: Tensor, relu: bool = False) -> tuple[Tensor, Tensor]:
    """2 x 2 maxima of the two axes before the last of x [N, a, b, c], and which of the four each was (uint8).

    With `relu` that follows, and 4 says that it lets nothing through."""
    count, a, b, c = x.shape
    y = blank(count, a // 2, b // 2, c, dtype=x.dtype, device=x.device)
    which = blank(*y.shape, dtype=torch.uint8, device=x.device)
    _pool[_grid(y.numel())](x.contiguous(), y, which, y.numel(), a, b, c, relu, BLOCK)
    return y, which


def unpool(dy: Tensor, which: Tensor, size: tuple[int, int]) -> Tensor:
    """The gradient of `pool`'s input, whose pooled axes have this size; dy may lie in any order."""
    count, channels = dy.shape[0], dy.shape[-1]
    dx = blank(count, *size, channels, dtype=dy.dtype, device=dy.device)
    blocks = count * -(-size[0] // 2) * -(-size[1] // 2) * channels
    _unpool[_grid(blocks)](dy, which.contiguous(), dx, blocks, *dy.stride(), *size, channels, BLOCK)
    return dx


def pick(x: Tensor, which: Tensor) -> Tensor:
    """The entries of x that `pool` chose: the gradient of `unpool`."""
    y = blank(*which.shape, dtype=x.dtype, device=x.device)
    _pick[_grid(y.numel())](x.contiguous(), which.contiguous(), y, y.numel(), *x.shape[1:], BLOCK)
    return y


def mix(x: Tensor, first: int, second: int, folds: tuple[int, ...] = (0,)) -> Tensor:
    """Scramble 64-bit integers with two odd multipliers (given unsigned), once for each of `folds`, which is combined
    with them before."""
    x = x.contiguous()
    y = blank_like(x)
    for at in range(0, len(folds) if x.numel() else 0, 4):
        some = folds[at : at + 4]
        _mix[_grid(x.numel())](x, y, x.numel(), *some, *[0] * (4 - len(some)), first, second, len(some), BLOCK)
        x = y  # number by number, so that a result may take the place of what it is made of
    return y
