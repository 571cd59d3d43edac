"""Dropout of many clients in one kernel, whose masks are drawn from keys: under `vmap`, to any order.

The mask is never written: the gradient draws it again from its key. The numbers are those of `rng.uniform`.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from .. import rng
from . import kernels
from .kernels import AVAILABLE, jit
from .mapping import is_batched, led
from .rehearsal import blank_like, late

if AVAILABLE:
    import triton.language as tl

BLOCK = 1024
"""Numbers that one program writes."""


@late
@jit
def _drop(
    x, key, y, size, p, kept,
    GAMMA: tl.constexpr, M1: tl.constexpr, M2: tl.constexpr, BLOCK: tl.constexpr,
):  # fmt: skip
    """y[g, i] = x[g, i] / kept where the i-th number of key[g] is at least p, else 0 * x[g, i]."""
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    v = (at + 1).to(tl.uint64) * tl.full((), GAMMA, dtype=tl.uint64)
    v += tl.load(key + client).to(tl.uint64, bitcast=True)
    v = (v ^ (v >> 30)) * tl.full((), M1, dtype=tl.uint64)
    v = (v ^ (v >> 27)) * tl.full((), M2, dtype=tl.uint64)
    v = (v ^ (v >> 31)) >> 40
    keep = v.to(tl.int32).to(tl.float32) * (1.0 / 16777216.0) >= p
    a = tl.load(x + client * size + at, mask=at < size, other=0.0).to(tl.float32)
    b = tl.math.div_rn(a * tl.where(keep, 1.0, 0.0), tl.zeros_like(a) + kept)
    tl.store(y + client * size + at, b.to(y.dtype.element_ty), mask=at < size)


def serves(x: Tensor, p: float) -> bool:
    """Whether the kernel is for this input, clients mapped over."""
    return kernels.takes(x) and is_batched(x) and p < 1 and 0 < x.numel() < 2**31 - BLOCK


def dropped(x: Tensor, key: Tensor, p: float) -> Tensor:
    """x with each number left out with probability p, and the others over 1 - p."""
    y: Tensor = _Drop.apply(x.unsqueeze(0), key.unsqueeze(0), p).squeeze(0)
    return y


class _Drop(torch.autograd.Function):
    """y [G, ...] of x [G, ...] and keys [G]. It is linear in x, and its own gradient."""

    @staticmethod
    def forward(x: Tensor, key: Tensor, p: float) -> Tensor:
        x = x.contiguous()
        y, size = blank_like(x), x[0].numel()
        grid = (-(-size // BLOCK), len(x))
        _drop[grid](x, key.contiguous(), y, size, p, 1 - p, *rng.MULTIPLIERS, BLOCK)
        return y

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        _, key, ctx.p = inputs
        ctx.save_for_backward(key)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor, None, None]:
        return _Drop.apply(dy, ctx.saved_tensors[0], ctx.p), None, None

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], x: Tensor, key: Tensor, p: float) -> tuple[Tensor, int]:
        y = _Drop.apply(*led(info.batch_size, in_dims, (x, key)), p)
        return y.unflatten(0, (info.batch_size, -1)), 0
