"""A Triton kernel for the gradient of attention over few tokens, whose queries, keys and values lie side by side.

Torch's kernels are made for long sequences: they go over keys in blocks, add up the gradient of the queries elsewhere,
and leave three tensors that must be put together. Up to 256 tokens one program holds all keys and values of a head, so
that each gradient is written once, in its place. Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

MOST = 256
"""Tokens up to which a program holds all of a head."""
QUERIES, WARPS = 32, 8
"""Queries that a program takes at a time, and its warps, where it holds all keys."""


class Turns(NamedTuple):
    """How keys are taken in turns."""

    keys: int
    queries: int
    warps: int
    stages: int
    """How many loads are under way."""
    registers: int
    """The most that a thread may have; 0 leaves that to the compiler."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "turns " + "-".join(map(str, self))


TURNS = (Turns(64, 64, 4, 2, 168), Turns(64, 64, 4, 2, 0), Turns(256, 32, 8, 2, 0))
"""What is tried. Of the first, three programs share a processor: some compute while another waits. The last holds all
keys, too, and leaves addresses to the copy engine."""


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


@late
@jit
def _turns(
    keyed, asked, came, gave, left, to, sums, notes, T, H, scale, LOG: tl.constexpr, D: tl.constexpr,
    KEYS: tl.constexpr, QUERIES: tl.constexpr, PADDED: tl.constexpr, SEVERAL: tl.constexpr,
):  # fmt: skip
    """The same, keys in turns of KEYS. `keyed` and `asked` are descriptors of qkv by KEYS and QUERIES rows, `came` and
    `gave` those of g and of the output, `left` that of `to` by KEYS rows. `notes` [heads, 2, PADDED] get the products
    of g with the output, and the logarithms of base two. With SEVERAL turns, what has come to the queries lies in `to`
    between them."""
    head = tl.program_id(0)
    sample, column, W = head // H, (head % H) * D, H * D
    notes += head.to(tl.int64) * (2 * PADDED)
    for begin in range(0, T, QUERIES):
        r = begin + tl.arange(0, QUERIES)
        dy = came.load([sample, begin, column]).reshape(QUERIES, D).to(tl.float32)
        y = gave.load([sample, begin, column]).reshape(QUERIES, D).to(tl.float32)
        tl.store(notes + r, tl.sum(y * dy, 1))
        total = tl.load(sums + head.to(tl.int64) * T + r, mask=r < T, other=float("inf"))
        tl.store(notes + PADDED + r, total * LOG)
    tl.debug_barrier()  # what threads have written others read
    for first in range(0, T, KEYS):
        real = (first + tl.arange(0, KEYS) < T)[:, None]
        k = keyed.load([sample, first, W + column]).reshape(KEYS, D)
        v = keyed.load([sample, first, 2 * W + column]).reshape(KEYS, D)
        to_k = tl.zeros((KEYS, D), dtype=tl.float32)
        to_v = tl.zeros((KEYS, D), dtype=tl.float32)
        for begin in range(0, T, QUERIES):
            r = begin + tl.arange(0, QUERIES)
            q = asked.load([sample, begin, column]).reshape(QUERIES, D)
            dy = came.load([sample, begin, column]).reshape(QUERIES, D)
            p = tl.math.exp2(tl.dot(k, tl.trans(q)) * (scale * LOG) - tl.load(notes + PADDED + r)[None, :])
            p = tl.where(real, p, 0.0)
            to_v = tl.dot(p.to(dy.dtype), dy, to_v)
            s = (p * (tl.dot(v, tl.trans(dy)) - tl.load(notes + r)[None, :])).to(q.dtype)
            to_k = tl.dot(s, q, to_k)
            to_q = tl.trans(tl.dot(tl.trans(k), s)) * scale
            place = (sample.to(tl.int64) * T + r)[:, None] * (3 * W) + column + tl.arange(0, D)[None, :]
            if SEVERAL:
                to_q += tl.load(to + place, mask=(r < T)[:, None] & (first > 0), other=0.0).to(tl.float32)
            tl.store(to + place, to_q.to(to.dtype.element_ty), mask=(r < T)[:, None])
        left.store([sample, first, W + column], (to_k * scale).to(to.dtype.element_ty).reshape(1, KEYS, D))
        left.store([sample, first, 2 * W + column], to_v.to(to.dtype.element_ty).reshape(1, KEYS, D))
        tl.debug_barrier()  # the next turn reads what all threads have written


def usable(qkv: Tensor, heads: int) -> bool:
    """Whether the kernel takes [B, T, 3 * heads * d]."""
    width = qkv.shape[-1] // (3 * heads)
    fits = AVAILABLE and 16 <= width <= 64 and width & (width - 1) == 0 and 16 <= qkv.shape[1] <= MOST
    kinds = (torch.float32,) if INTERPRETED else (torch.float16, torch.bfloat16)
    return fits and qkv.dtype in kinds and (qkv.is_cuda or INTERPRETED)


def takes_turns(qkv: Tensor) -> bool:
    """Whether this device has a copy engine, which the kernel that takes turns needs."""
    return not qkv.is_cuda or torch.cuda.get_device_capability(qkv.device)[0] >= 9


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int, turns: Turns | None = None) -> Tensor:
    """The gradient for qkv [B, T, 3, heads, d] of attention's output [B, T, heads, d] and of the one for it, g; `sums`
    [B, heads, T] are the logarithms of the sums of weights. All are contiguous, the axes behind T one."""
    (samples, tokens, width), to = out.shape, blank_like(qkv)
    d = width // heads
    if turns is not None:
        return _in_turns(qkv, out, g, sums, to, heads, turns)
    keys = triton.next_power_of_2(tokens)
    _back[(samples * heads,)](
        qkv, out, g, sums, to, tokens, heads, d**-0.5, 1 / math.log(2), keys, d, QUERIES, num_warps=WARPS
    )
    return to


def _in_turns(
    qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, to: Tensor, heads: int, turns: Turns
) -> Tensor:  # fmt: skip
    (samples, tokens, width), (keys, queries) = out.shape, turns[:2]
    d, padded = width // heads, max(triton.next_power_of_2(tokens), queries)
    notes = blank(samples * heads, 2, padded, dtype=torch.float32, device=qkv.device)
    boxes = ((qkv, keys), (qkv, queries), (g, queries), (out, queries), (to, keys))
    described: list[Any] = [TensorDescriptor.from_tensor(t, [1, rows, d]) for t, rows in boxes]
    more: dict[str, int] = {"maxnreg": turns.registers} if turns.registers else {}
    _turns[(samples * heads,)](
        *described, to, sums, notes, tokens, heads, d**-0.5, 1 / math.log(2), d, keys, queries, padded, keys < tokens,
        num_warps=turns.warps, num_stages=turns.stages, **more,
    )  # fmt: skip
    return to
