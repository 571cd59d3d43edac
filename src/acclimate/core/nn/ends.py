"""What follows a convolution in the same kernel: 2 x 2 maxima, a bias, and ReLU."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .cutting import Layer
from .kernels import AVAILABLE, jit
from .rehearsal import blank

if AVAILABLE:
    import triton.language as tl


@jit
def larger(a, i, b, j):
    """The larger of two numbers, and its place: what is no number is larger than all, and of equals the first is."""
    equal = (a == b) | ((a != a) & (b != b))
    second = (b > a) | ((b != b) & (a == a)) | (equal & (j < i))
    return tl.where(second, b, a), tl.where(second, j, i)


@jit
def activated(total, bias, client, n, OUT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr):
    """Sums, with bias and ReLU after them."""
    if BIAS:
        total += tl.load(bias + client * OUT + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    if RELU:
        total = tl.where(total <= 0, 0.0, total)
    return total


@jit
def end(
    best, choice, bias, y, which, to, client, n, real,
    OUT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, PLANE: tl.constexpr,
):  # fmt: skip
    """Write maxima, bias and ReLU after them, and which of four each was; 4 where ReLU lets nothing through. With
    PLANE, the number of an image's maxima, these lie channel by channel."""
    if BIAS:
        best += tl.load(bias + client * OUT + n, mask=n < OUT, other=0.0).to(tl.float32)[None, :]
    best = best.to(y.dtype.element_ty)
    if RELU:
        choice = tl.where(best <= 0, 4, choice)
        best = tl.where(best <= 0, 0.0, best).to(y.dtype.element_ty)
    at = to[:, None] + n[None, :]
    mask = real[:, None] & (n < OUT)[None, :]
    if PLANE > 0:
        pixel = to // OUT
        into = ((pixel // PLANE) * (OUT * PLANE) + pixel % PLANE)[:, None] + n[None, :] * PLANE
        tl.store(y + into, best, mask=mask)
    else:
        tl.store(y + at, best, mask=mask)
    tl.store(which + at, choice.to(tl.uint8), mask=mask)


def ends(x: Tensor, layer: Layer, planar: bool) -> tuple[Tensor, Tensor, int]:
    """Room for maxima [G, B, O, oh / 2, ow / 2], which lie channel by channel where `planar` says so, and for which
    they are; and the kernel's PLANE."""
    tall, wide = layer.out_height // 2, layer.out_width // 2
    size = (*x.shape[:2], tall, wide, layer.outputs)
    which = blank(*size, dtype=torch.uint8, device=x.device).permute(0, 1, 4, 2, 3)
    if planar:
        return blank(*which.shape, dtype=x.dtype, device=x.device), which, tall * wide
    return blank(*size, dtype=x.dtype, device=x.device).permute(0, 1, 4, 2, 3), which, 0


def addend(bias: Tensor | None, unread: Tensor) -> Tensor:
    """The bias [G, O] as kernels read it, its numbers one after the other; where there is none, what is not read.

    Where one client alone has several views, `vmap` gives them its bias as one row with steps of zero between them:
    a kernel that went on from there would read whatever lies behind it."""
    return unread if bias is None else bias.contiguous()
