"""The weighted sum of what clients send, in one kernel: large messages are read once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from . import kernels
from .kernels import AVAILABLE, jit
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

CLIENTS, BLOCK = 16, 256
"""Clients and numbers of a tile."""


@late
@jit
def _weighted(x, w, y, size, clients, CLIENTS: tl.constexpr, BLOCK: tl.constexpr):
    """y[i] = sum over clients g of x[g, i] * w[g]; whose weight is zero may hold anything."""
    at = tl.program_id(0).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
    sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, clients, CLIENTS):
        g = first + tl.arange(0, CLIENTS)
        weight = tl.load(w + g, mask=g < clients, other=0.0)
        real = (weight != 0)[:, None] & (at < size)[None, :]
        each = tl.load(x + g.to(tl.int64)[:, None] * size + at[None, :], mask=real, other=0.0)
        sum += tl.sum(each * tl.where(real, weight[:, None], 0.0), 0)
    tl.store(y + at, sum, mask=at < size)


def total(x: Tensor, w: Tensor) -> Tensor:
    """The sum over clients of x [G, ...] times w [G], or [G, ...] with fewer axes; a weight of zero leaves out what may
    be no number."""
    if kernels.takes(x) and x.dtype == torch.float32 and w.dim() == 1 and x.numel():
        y = blank(*x.shape[1:], dtype=x.dtype, device=x.device)
        grid = (-(-y.numel() // BLOCK),)
        _weighted[grid](x.contiguous(), w.to(x.dtype).contiguous(), y, y.numel(), len(x), CLIENTS, BLOCK)
        return y
    w = w.reshape(w.shape + (1,) * (x.dim() - w.dim()))
    return torch.where(w != 0, x * w.to(x.dtype), torch.zeros_like(x)).sum(0)
