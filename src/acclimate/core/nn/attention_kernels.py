"""A Triton kernel for the gradient of attention over few tokens, whose queries, keys and values lie side by side.

Torch's kernels are made for long sequences: they go over keys in blocks, add up the gradient of the queries elsewhere,
and leave three tensors that must be put together. Up to 256 tokens one program holds all keys and values of a head, so
that each gradient is written once, in its place. Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank_like, late

if AVAILABLE:
    import triton
    import triton.language as tl

MOST = 256
"""Tokens up to which a program holds all of a head."""
QUERIES, WARPS = 32, 8
"""Queries that a program takes at a time, and its warps, where it holds all keys."""


@late
@jit
def _back(
    qkv, out, g, sums, to, T, H, scale, LOG: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr
):
    """Of one head of one sample [T, 3, H, D]: the gradients for queries, keys and values."""
    head = tl.program_id(0).to(tl.int64)
    sample, W = head // H, H * D
    own = (head % H) * D + tl.arange(0, D)
    t = tl.arange(0, KEYS)
    real = (t < T)[:, None]
    keys = (sample * T + t)[:, None] * (3 * W) + W + own[None, :]
    k = tl.load(qkv + keys, mask=real, other=0.0)
    v = tl.load(qkv + keys + W, mask=real, other=0.0)
    to_k = tl.zeros((KEYS, D), dtype=tl.float32)
    to_v = tl.zeros((KEYS, D), dtype=tl.float32)
    for begin in range(0, T, QUERIES):
        r = begin + tl.arange(0, QUERIES)
        seen = (r < T)[:, None]
        at, place = (sample * T + r)[:, None] * W + own[None, :], (sample * T + r)[:, None] * (3 * W) + own[None, :]
        q = tl.load(qkv + place, mask=seen, other=0.0)
        dy = tl.load(g + at, mask=seen, other=0.0)
        y = tl.load(out + at, mask=seen, other=0.0)
        total = tl.load(sums + head * T + r, mask=r < T, other=float("inf"))
        p = tl.math.exp2(tl.dot(k, tl.trans(q)) * (scale * LOG) - (total * LOG)[None, :])
        p = tl.where(real, p, 0.0)
        to_v = tl.dot(p.to(dy.dtype), dy, to_v)
        along = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
        s = (p * (tl.dot(v, tl.trans(dy)) - along[None, :])).to(q.dtype)
        to_k = tl.dot(s, q, to_k)
        to_q = tl.trans(tl.dot(tl.trans(k), s)) * scale  # so that the long axes are those that the hardware wants long
        tl.store(to + place, to_q.to(to.dtype.element_ty), mask=seen)
    tl.store(to + keys, (to_k * scale).to(to.dtype.element_ty), mask=real)
    tl.store(to + keys + W, to_v.to(to.dtype.element_ty), mask=real)


def usable(qkv: Tensor, heads: int) -> bool:
    """Whether the kernel takes [B, T, 3 * heads * d]."""
    width = qkv.shape[-1] // (3 * heads)
    fits = AVAILABLE and 16 <= width <= 64 and width & (width - 1) == 0 and 16 <= qkv.shape[1] <= MOST
    kinds = (torch.float32,) if INTERPRETED else (torch.float16, torch.bfloat16)
    return fits and qkv.dtype in kinds and (qkv.is_cuda or INTERPRETED)


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int) -> Tensor:
    """The gradient for qkv [B, T, 3, heads, d] of attention's output [B, T, heads, d] and of the one for it, g; `sums`
    [B, heads, T] are the logarithms of the sums of weights. All are contiguous, the axes behind T one."""
    (samples, tokens, width), to = out.shape, blank_like(qkv)
    d = width // heads
    keys = triton.next_power_of_2(tokens)
    _back[(samples * heads,)](
        qkv, out, g, sums, to, tokens, heads, d**-0.5, 1 / math.log(2), keys, d, QUERIES, num_warps=WARPS
    )
    return to
