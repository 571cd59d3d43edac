"""Triton kernels for GELU and its gradient in half precision: as fast as memory is read.

    gelu(x) = x P(x),  its slope P(x) + x p(x),  P and p the normal distribution and its density

torch computes the error function for float32, which takes longer than the reading. Here the distribution's tail is a
polynomial of fifth order times the density (Abramowitz and Stegun, 7.1.26), right to 1e-7.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank_like, late

if AVAILABLE:
    import triton.language as tl

BLOCK, WARPS = 4096, 8
"""Numbers of a program, and its warps."""


@jit
def normal(x):
    """The normal distribution's share below x, and exp(-x^2 / 2)."""
    t = 1.0 / (1.0 + 0.23164189 * tl.abs(x))  # 0.3275911 of x / sqrt(2)
    e = tl.math.exp2(x * x * -0.72134752)  # half of 1 / log(2)
    tail = t * (0.12741480 + t * (-0.14224837 + t * (0.71070687 + t * (-0.72657601 + t * 0.53070271)))) * e
    return tl.where(x > 0, 1.0 - tail, tail), e


@late
@jit
def _gelu(x, y, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    below, _ = normal(value)
    tl.store(y + at, (value * below).to(y.dtype.element_ty), mask=at < size)


@late
@jit
def _gelu_back(g, x, to, size, BLOCK: tl.constexpr):
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    value = tl.load(x + at, mask=at < size, other=0.0).to(tl.float32)
    below, e = normal(value)
    slope = below + value * e * 0.39894228
    came = tl.load(g + at, mask=at < size, other=0.0).to(tl.float32)
    tl.store(to + at, (came * slope).to(to.dtype.element_ty), mask=at < size)


def usable(x: Tensor) -> bool:
    """Whether the kernels take this tensor."""
    if not AVAILABLE or not x.numel():
        return False
    return x.dtype in (torch.float16, torch.bfloat16) if x.is_cuda else INTERPRETED and x.dtype == torch.float32


def gelu(x: Tensor) -> Tensor:
    """GELU of a contiguous tensor."""
    y = blank_like(x)
    _gelu[(-(-x.numel() // BLOCK),)](x, y, x.numel(), BLOCK, num_warps=WARPS)
    return y


def gelu_back(g: Tensor, x: Tensor) -> Tensor:
    """The gradient for x of the one for its GELU; both contiguous. It takes the place of g."""
    _gelu_back[(-(-x.numel() // BLOCK),)](g, x, g, x.numel(), BLOCK, num_warps=WARPS)
    return g
