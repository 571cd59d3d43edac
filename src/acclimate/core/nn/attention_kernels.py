"""A Triton kernel for the gradient of attention over few tokens, whose queries, keys and values lie side by side.

Torch's kernels are made for long sequences: they go over keys in blocks, add up the gradient of the queries elsewhere,
and leave three tensors that must be put together. Up to 256 tokens one program has a whole head, so that gradients are
written in their place. Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit

if AVAILABLE:
    import triton
    import triton.language as tl

MOST = 256
"""Tokens up to which a program has all of a head."""
KEYS, QUERIES, WARPS, STAGES = 128, 32, 4, 2
"""Keys and queries that a program takes at a time, its warps, and how many loads are under way."""


@jit
def _back(
    qkv, out, g, sums, to, T, H, scale,
    LOG: tl.constexpr, KEYS: tl.constexpr, D: tl.constexpr, QUERIES: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of one head of one sample [T, 3, H, D]: the gradients for queries, keys and values.

    Keys are taken in turns. Between them, what has come to the queries lies in `to`.
    """
    head = tl.program_id(0).to(tl.int64)
    W = H * D
    first_row, column = (head // H) * T, (head % H) * D
    qkv, to = qkv + first_row * (3 * W) + column, to + first_row * (3 * W) + column
    out, g, sums = out + first_row * W + column, g + first_row * W + column, sums + head * T
    d = tl.arange(0, D)[None, :]
    for first in range(0, T, KEYS):
        t = first + tl.arange(0, KEYS)
        real, keys = (t < T)[:, None], t[:, None] * (3 * W) + d
        k = tl.load(qkv + W + keys, mask=real, other=0.0)
        v = tl.load(qkv + 2 * W + keys, mask=real, other=0.0)
        to_k = tl.zeros((KEYS, D), dtype=tl.float32)
        to_v = tl.zeros((KEYS, D), dtype=tl.float32)
        for begin in tl.range(0, T, QUERIES, num_stages=STAGES):
            r = begin + tl.arange(0, QUERIES)
            seen, at, place = (r < T)[:, None], r[:, None] * W + d, r[:, None] * (3 * W) + d
            q = tl.load(qkv + place, mask=seen, other=0.0)
            dy = tl.load(g + at, mask=seen, other=0.0)
            y = tl.load(out + at, mask=seen, other=0.0)
            total = tl.load(sums + r, mask=r < T, other=float("inf"))
            p = tl.math.exp2(tl.dot(k, tl.trans(q)) * (scale * LOG) - (total * LOG)[None, :])
            p = tl.where(real, p, 0.0)
            to_v = tl.dot(p.to(dy.dtype), dy, to_v)
            along = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
            s = (p * (tl.dot(v, tl.trans(dy)) - along[None, :])).to(q.dtype)
            to_k = tl.dot(s, q, to_k)
            to_q = tl.trans(tl.dot(tl.trans(k), s)) * scale  # so that the long axes are those that must be long
            to_q += tl.load(to + place, mask=seen & (first > 0), other=0.0).to(tl.float32)
            tl.store(to + place, to_q.to(to.dtype.element_ty), mask=seen)
        tl.store(to + W + keys, (to_k * scale).to(to.dtype.element_ty), mask=real)
        tl.store(to + 2 * W + keys, to_v.to(to.dtype.element_ty), mask=real)
        tl.debug_barrier()  # the next turn reads what all threads have written


def usable(qkv: Tensor, heads: int) -> bool:
    """Whether the kernel takes [B, T, 3 * heads * d]."""
    width = qkv.shape[-1] // (3 * heads)
    fits = AVAILABLE and 16 <= width <= 64 and width & (width - 1) == 0 and 16 <= qkv.shape[1] <= MOST
    kinds = (torch.float32,) if INTERPRETED else (torch.float16, torch.bfloat16)
    return fits and qkv.dtype in kinds and (qkv.is_cuda or INTERPRETED)


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int) -> Tensor:
    """The gradient for qkv [B, T, 3, heads, d] of attention's output [B, T, heads, d] and of the one for it, g; `sums`
    [B, heads, T] are the logarithms of the sums of weights. All are contiguous, the axes behind T one."""
    (samples, tokens, width), to = out.shape, torch.empty_like(qkv)
    d = width // heads
    keys = min(triton.next_power_of_2(tokens), KEYS)
    _back[(samples * heads,)](
        qkv, out, g, sums, to, tokens, heads, d**-0.5, 1 / math.log(2), keys, d, QUERIES, STAGES, num_warps=WARPS
    )
    return to
