"""Triton kernels that make tokens of images, for a frozen trunk: images cut into patches, and patches put in places.

    patches [N, (H/P)(W/P), C P P]  from images [N, C, H, W]
    tokens [N, T + 1, width]        0 and y, along the tokens, + places [T + 1, width]

torch cuts with one slow copy, and puts a token before the others and adds places with two passes more.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

BLOCK = 1024
"""Numbers of a program."""


@late
@jit
def _cut(x, to, blocks, C: tl.constexpr, H: tl.constexpr, W: tl.constexpr, P: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers of one image, in the order of patches: that of the image takes half as long again."""
    image, at = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    patch, within = at // (C * P * P), at % (C * P * P)
    channel, row, column = within // (P * P), (within // P) % P, within % P
    place = (channel * H + (patch // (W // P)) * P + row) * W + (patch % (W // P)) * P + column
    base = image * (C * H * W)
    tl.store(to + base + at, tl.load(x + base + place, mask=at < C * H * W), mask=at < C * H * W)


@late
@jit
def _placed(y, places, to, numbers, blocks, WIDTH: tl.constexpr, BLOCK: tl.constexpr):
    """Numbers of one image's tokens, of which y has those after the first."""
    image, at = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(y + image * (numbers - WIDTH) + at - WIDTH, mask=(at >= WIDTH) & (at < numbers), other=0.0)
    place = tl.load(places + at, mask=at < numbers, other=0.0)
    total = value.to(tl.float32) + place.to(tl.float32)
    tl.store(to + image * numbers + at, total.to(to.dtype.element_ty), mask=at < numbers)


def usable(x: Tensor) -> bool:
    """Whether the kernels take tensors like this one."""
    kinds = (torch.float32, torch.float16, torch.bfloat16)
    return AVAILABLE and (x.is_cuda or INTERPRETED) and x.dtype in kinds and x[0].numel() < 2**30


def cut(x: Tensor, side: int) -> Tensor:
    """Patches [N, T, C * side * side] of contiguous images [N, C, H, W]."""
    images, channels, high, wide = x.shape
    shape, blocks = (high // side * (wide // side), channels * side * side), -(-x[0].numel() // BLOCK)
    to = blank(images, *shape, dtype=x.dtype, device=x.device)
    _cut[(images * blocks,)](x, to, blocks, channels, high, wide, side, BLOCK)
    return to


def placed(y: Tensor, places: Tensor) -> Tensor:
    """Tokens [N, T + 1, width], of contiguous y [N, T, width] and places [T + 1, width]."""
    images, numbers = len(y), places.numel()
    blocks = -(-numbers // BLOCK)
    to = blank(images, *places.shape, dtype=y.dtype, device=y.device)
    _placed[(images * blocks,)](y, places, to, numbers, blocks, places.shape[1], BLOCK)
    return to
