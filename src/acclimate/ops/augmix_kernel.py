"""AugMix's chains and their mixture as one Triton kernel: a program per view and channel, the image in registers.

torch's own operations write every table and every warp of every chain to memory, whichever operation was drawn; a
program here runs the one that was. Values are those of `augmix`'s torch code but for rounding: a bilinear warp whose
exact value lies half-way between two levels may end on the other one.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from ..core.nn import kernels
from ..core.nn.rehearsal import blank, late
from .augmix_chains import joined

if kernels.AVAILABLE:
    import triton
    import triton.language as tl
else:  # a CPU build of PyTorch
    triton = tl = None

LARGEST = 4096
"""Pixels of an image that one program holds."""


@kernels.jit
def _autocontrast(v, real):
    low, high = tl.min(tl.where(real, v, 255.0)), tl.max(tl.where(real, v, 0.0))
    wide = tl.maximum(high - low, 1.0)
    stretched = tl.floor(tl.div_rn((v - low) * 255.0, tl.zeros_like(v) + wide))
    return tl.where(high > low, tl.minimum(tl.maximum(stretched, 0.0), 255.0), v)


@kernels.jit
def _equalize(v, real, PIXELS: tl.constexpr):
    level = v.to(tl.int32)
    bins = tl.arange(0, 256)
    counts = tl.histogram(level, 256, mask=real)
    top = tl.sum(tl.where(bins == tl.max(tl.where(real, level, 0)), counts, 0))
    step = (PIXELS - top) // 255
    below = tl.cumsum(counts, 0) - counts
    table = tl.minimum((step // 2 + below) // tl.maximum(step, 1), 255)
    return tl.where(step > 0, tl.gather(table, level, 0), level).to(tl.float32)


@kernels.jit
def _warp(v, e, matrix, GREY: tl.constexpr, H: tl.constexpr, W: tl.constexpr):
    x, y = (e % W).to(tl.float32) + 0.5, (e // W).to(tl.float32) + 0.5
    px = tl.load(matrix) * x + (tl.load(matrix + 1) * y + tl.load(matrix + 2))
    py = tl.load(matrix + 3) * x + (tl.load(matrix + 4) * y + tl.load(matrix + 5))
    across = tl.minimum(tl.maximum(px - 0.5, 0.0), W - 1.0)
    down = tl.minimum(tl.maximum(py - 0.5, 0.0), H - 1.0)
    left, top = tl.floor(across), tl.floor(down)
    a, b = across - left, down - top
    i, j = left.to(tl.int32), top.to(tl.int32)
    right, bottom = tl.minimum(i + 1, W - 1), tl.minimum(j + 1, H - 1)
    upper = tl.gather(v, j * W + i, 0) * (1.0 - a) + tl.gather(v, j * W + right, 0) * a
    lower = tl.gather(v, bottom * W + i, 0) * (1.0 - a) + tl.gather(v, bottom * W + right, 0) * a
    seen = upper * (1.0 - b) + lower * b
    whole = tl.floor(seen)  # to the nearest, and of two to the even one, as torch rounds
    rest = seen - whole
    odd = (whole.to(tl.int32) % 2) == 1
    seen = whole + tl.where((rest > 0.5) | ((rest == 0.5) & odd), 1.0, 0.0)
    outside = (px < 0.0) | (px >= W) | (py < 0.0) | (py >= H)
    return tl.where(outside, GREY, seen)


@late
@kernels.jit
def _mixture(
    base,
    op,
    amount,
    matrix,
    weight,
    keep,
    out,
    CHANNELS: tl.constexpr,
    H: tl.constexpr,
    W: tl.constexpr,
    CHAINS: tl.constexpr,
    DEPTH: tl.constexpr,
    GREY: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """out[m, c] = (keep * base + (1 - keep) * sum of weight * chain(base)) / 255 of one channel of one view."""
    program = tl.program_id(0).to(tl.int64)
    view = program // CHANNELS
    e = tl.arange(0, BLOCK)
    real = e < H * W
    first = tl.load(base + program * (H * W) + e, mask=real, other=0.0)
    mixed = tl.zeros((BLOCK,), dtype=tl.float32)
    for chain in range(CHAINS):
        v = first
        for t in range(DEPTH):
            at = (view * CHAINS + chain) * DEPTH + t
            drawn = tl.load(op + at)
            if drawn == 0:
                v = _autocontrast(v, real)
            elif drawn == 1:
                v = _equalize(v, real, H * W)
            elif drawn == 2:
                width = tl.load(amount + at)  # posterize: a power of two, so the division is exact
                v = tl.floor(v / width) * width
            elif drawn == 3:
                v = tl.where(v < tl.load(amount + at), v, 255.0 - v)
            elif drawn < 9:
                v = _warp(v, e, matrix + at * 6, GREY, H, W)
        mixed += tl.load(weight + view * CHAINS + chain) * v
    kept = tl.load(keep + view)
    tl.store(
        out + program * (H * W) + e,
        tl.div_rn(kept * first + (1.0 - kept) * mixed, tl.zeros_like(mixed) + 255.0),
        mask=real,
    )


def usable(base: Tensor) -> bool:
    """Whether the kernel takes images like these."""
    return kernels.usable(base) and base.shape[-1] * base.shape[-2] <= LARGEST


class ChainMixture(torch.autograd.Function):
    """Views [M, C, H, W] in 0..1 of cropped images `base` in levels, mixed from the chains that were drawn for them.

    `op` and `amount` are [M, chains, depth], `matrix` [M, chains, depth, 2, 3], `weight` [M, chains], `keep` [M].
    """

    @staticmethod
    def forward(
        base: Tensor, op: Tensor, amount: Tensor, matrix: Tensor, weight: Tensor, keep: Tensor, grey: float
    ) -> Tensor:
        count, channels, height, width = base.shape
        out = blank(*base.shape, dtype=torch.float32, device=base.device)
        given = [t.contiguous() for t in (base, op, amount, matrix, weight, keep)]
        block = triton.next_power_of_2(height * width)
        _mixture[(count * channels,)](*given, out, channels, height, width, *op.shape[1:], grey, max(block, 256))
        return out

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], *inputs: Any) -> tuple[Tensor, int]:
        """Every view is on its own: the mapped axis joins theirs."""
        *tensors, grey = inputs
        return ChainMixture.apply(*joined(info, in_dims, tensors), grey).unflatten(0, (info.batch_size, -1)), 0
