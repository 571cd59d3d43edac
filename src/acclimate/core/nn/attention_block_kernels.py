"""Triton kernels for the gradient of attention over few tokens, by blocks of queries, and by blocks of keys.

The kernel in `attention_kernels` holds all keys of a head, so that few programs fit on a processor, and each waits for
itself. Here one kernel has a block of queries and goes over the keys, and another has a block of keys and goes over the
queries. Weights are made twice, but nothing that is computed leaves a thread's registers before it is done, and several
programs share a processor. What is left over of the tokens (5 of 197) is a small block of its own. Sums have
a fixed order, so results repeat to the bit.
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

LEAST = 16
"""Tokens of the smallest block that the hardware multiplies."""


class Blocks(NamedTuple):
    """How tokens are cut into blocks."""

    own: int
    """Queries or keys that a program has."""
    keys: int
    """Keys that a program with queries takes at a time."""
    queries: int
    """Queries that a program with keys takes at a time; no more than it has keys."""
    warps: int
    stages: int
    """How many loads are under way."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "blocks " + "-".join(map(str, self))


BLOCKS = (
    (Blocks(32, 32, 16, 4, 1),)
    if INTERPRETED
    else (Blocks(64, 64, 32, 4, 2), Blocks(64, 64, 64, 4, 2), Blocks(64, 64, 32, 4, 3))
)
"""What is tried. Compiled for Hopper no register is spilled, and four programs of the first share a processor."""


@jit
def _read(of, r, T: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    """Rows r of one head; unless all of these are there, zeros for the others."""
    at = of + (r[:, None] * WIDE + tl.arange(0, D)[None, :])
    return tl.load(at) if WHOLE else tl.load(at, mask=(r < T)[:, None], other=0.0)


@jit
def _write(to, values, r, T: tl.constexpr, WIDE: tl.constexpr, D: tl.constexpr, WHOLE: tl.constexpr):
    at = to + (r[:, None] * WIDE + tl.arange(0, D)[None, :])
    if WHOLE:
        tl.store(at, values.to(to.dtype.element_ty))
    else:
        tl.store(at, values.to(to.dtype.element_ty), mask=(r < T)[:, None])


@jit
def _mix_step(
    q, top, total, acc, keys, first, base,
    T: tl.constexpr, W: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """What a block of keys adds to the output of a block of queries: `top` is the highest logit so far, of base two,
    and sums are of powers relative to it."""
    t = first + tl.arange(0, ROWS)
    k, v = _read(keys, t, T, 3 * W, D, WHOLE), _read(keys + W, t, T, 3 * W, D, WHOLE)
    logits = tl.dot(q, tl.trans(k))
    if not WHOLE:
        logits = tl.where((t < T)[None, :], logits, float("-inf"))
    peak = tl.maximum(top, tl.max(logits, 1) * base)
    p = tl.math.exp2(logits * base - peak[:, None])
    fade = tl.math.exp2(top - peak)
    return peak, total * fade + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, acc * fade[:, None])


@jit
def _mix_block(
    qkv, out, sums, begin, scale, T: tl.constexpr, W: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, WHOLE: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    r = begin + tl.arange(0, OWN)
    q = _read(qkv, r, T, 3 * W, D, WHOLE)
    top = tl.full((OWN,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((OWN,), dtype=tl.float32)
    acc = tl.zeros((OWN, D), dtype=tl.float32)
    whole: tl.constexpr = (T // OTHERS) * OTHERS
    base = scale * LOG
    if REST:
        top, total, acc = _mix_step(q, top, total, acc, qkv + W, whole, base, T, W, D, REST, False)
    for first in tl.range(0, whole, OTHERS):
        top, total, acc = _mix_step(q, top, total, acc, qkv + W, first, base, T, W, D, OTHERS, True)
    _write(out, acc / total[:, None], r, T, W, D, WHOLE)
    tl.store(sums + r, (top + tl.math.log2(total)) / LOG, mask=r < T)


@late
@jit
def _mix(
    qkv, out, sums, scale, T: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The output of attention for OWN queries of a head, or for what is left over, and the logarithms of sums."""
    blocks: tl.constexpr = (T + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    row, column = (head // H) * T, (head % H) * D
    qkv, out, sums = qkv + row * (3 * W) + column, out + row * W + column, sums + head * T
    if begin + OWN <= T:
        _mix_block(qkv, out, sums, begin, scale, T, W, LOG, D, OWN, True, OTHERS, REST)
    elif OWN_REST:
        _mix_block(qkv, out, sums, begin, scale, T, W, LOG, D, OWN_REST, False, OTHERS, REST)


@jit
def _query_step(
    q, dy, total, along, keys, first, base, acc,
    T: tl.constexpr, W: tl.constexpr, D: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr,
):  # fmt: skip
    """What a block of keys adds to the gradient of a block of queries."""
    t = first + tl.arange(0, ROWS)
    k, v = _read(keys, t, T, 3 * W, D, WHOLE), _read(keys + W, t, T, 3 * W, D, WHOLE)
    log = tl.dot(q, tl.trans(k)) * base - total[:, None]
    p = tl.math.exp2(log if WHOLE else tl.where((t < T)[None, :], log, float("-inf")))
    s = (p * (tl.dot(dy, tl.trans(v)) - along[:, None])).to(q.dtype)
    return tl.dot(s, k, acc)


@jit
def _query_block(
    qkv, out, g, sums, to, notes, begin, scale, T: tl.constexpr, W: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, WHOLE: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    r = begin + tl.arange(0, OWN)
    q, dy, y = _read(qkv, r, T, 3 * W, D, WHOLE), _read(g, r, T, W, D, WHOLE), _read(out, r, T, W, D, WHOLE)
    total = tl.load(sums + r, mask=r < T, other=float("inf")) * LOG
    along = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    tl.store(notes + r, total)
    tl.store(notes + PADDED + r, along)
    acc = tl.zeros((OWN, D), dtype=tl.float32)
    whole: tl.constexpr = (T // OTHERS) * OTHERS
    base = scale * LOG
    if REST:  # first: after the loop it would have all products wait for each other
        acc = _query_step(q, dy, total, along, qkv + W, whole, base, acc, T, W, D, REST, False)
    for first in tl.range(0, whole, OTHERS):
        acc = _query_step(q, dy, total, along, qkv + W, first, base, acc, T, W, D, OTHERS, True)
    _write(to, acc * scale, r, T, 3 * W, D, WHOLE)


@late
@jit
def _to_queries(
    qkv, out, g, sums, to, notes, scale, T: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The gradients for OWN queries of a head, or for what is left over. `notes` [heads, 2, PADDED] get the logarithms
    of base two of the sums, and the products of g with the output."""
    blocks: tl.constexpr = (T + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    row, column = (head // H) * T, (head % H) * D
    qkv, to = qkv + row * (3 * W) + column, to + row * (3 * W) + column
    out, g = out + row * W + column, g + row * W + column
    sums, notes = sums + head * T, notes + head * (2 * PADDED)
    if begin + OWN <= T:
        _query_block(
            qkv, out, g, sums, to, notes, begin, scale, T, W, LOG, D, OWN, True, OTHERS, REST, PADDED
        )  # fmt: skip
    elif OWN_REST:
        _query_block(
            qkv, out, g, sums, to, notes, begin, scale, T, W, LOG, D, OWN_REST, False, OTHERS, REST, PADDED
        )  # fmt: skip


@jit
def _key_step(
    t, k, v, qkv, g, notes, begin, base, to_k, to_v, T: tl.constexpr, W: tl.constexpr,
    D: tl.constexpr, HELD: tl.constexpr, ROWS: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """What a block of queries adds to the gradients of the keys t and their values, which are all there if HELD."""
    r = begin + tl.arange(0, ROWS)
    q, dy = _read(qkv, r, T, 3 * W, D, WHOLE), _read(g, r, T, W, D, WHOLE)
    total, along = tl.load(notes + r), tl.load(notes + PADDED + r)
    log = tl.dot(k, tl.trans(q)) * base - total[None, :]
    p = tl.math.exp2(log if HELD else tl.where((t < T)[:, None], log, float("-inf")))
    to_v = tl.dot(p.to(q.dtype), dy, to_v)
    s = (p * (tl.dot(v, tl.trans(dy)) - along[None, :])).to(q.dtype)
    return tl.dot(s, q, to_k), to_v


@jit
def _key_block(
    qkv, g, to, notes, first, scale, T: tl.constexpr, W: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, WHOLE: tl.constexpr,
    OTHERS: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    t = first + tl.arange(0, OWN)
    k, v = _read(qkv + W, t, T, 3 * W, D, WHOLE), _read(qkv + 2 * W, t, T, 3 * W, D, WHOLE)
    to_k = tl.zeros((OWN, D), dtype=tl.float32)
    to_v = tl.zeros((OWN, D), dtype=tl.float32)
    whole: tl.constexpr = (T // OTHERS) * OTHERS
    base = scale * LOG
    if REST:  # first, as above
        to_k, to_v = _key_step(t, k, v, qkv, g, notes, whole, base, to_k, to_v, T, W, D, WHOLE, REST, False, PADDED)
    for begin in tl.range(0, whole, OTHERS):
        to_k, to_v = _key_step(t, k, v, qkv, g, notes, begin, base, to_k, to_v, T, W, D, WHOLE, OTHERS, True, PADDED)
    _write(to + W, to_k * scale, t, T, 3 * W, D, WHOLE)
    _write(to + 2 * W, to_v, t, T, 3 * W, D, WHOLE)


@late
@jit
def _to_keys(
    qkv, g, to, notes, scale, T: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    """The gradients for OWN keys and values of a head, or for what is left over, with the notes of `_to_queries`."""
    blocks: tl.constexpr = (T + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, first = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    row, column = (head // H) * T, (head % H) * D
    qkv, to, g = qkv + row * (3 * W) + column, to + row * (3 * W) + column, g + row * W + column
    notes += head * (2 * PADDED)
    if first + OWN <= T:
        _key_block(qkv, g, to, notes, first, scale, T, W, LOG, D, OWN, True, OTHERS, REST, PADDED)
    elif OWN_REST:
        _key_block(qkv, g, to, notes, first, scale, T, W, LOG, D, OWN_REST, False, OTHERS, REST, PADDED)


def _rest(tokens: int, size: int) -> int:
    """The block for what is left over of the tokens; 0 where nothing is."""
    return max(LEAST, triton.next_power_of_2(tokens % size)) if tokens % size else 0


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int, cut: Blocks) -> Tensor:
    """As `attention_kernels.back`."""
    (samples, tokens, width), to = out.shape, blank_like(qkv)
    own, d, count = cut.own, width // heads, -(-tokens // cut.own)
    notes = blank(samples * heads, 2, count * own, dtype=torch.float32, device=qkv.device)
    known = (notes, d**-0.5, tokens, heads, 1 / math.log(2), d, own, _rest(tokens, own))
    options: dict[str, Any] = {"num_warps": cut.warps, "num_stages": cut.stages}
    grid = (samples * heads * count,)
    _to_queries[grid](
        qkv, out, g, sums, to, *known, cut.keys, _rest(tokens, cut.keys), count * own, **options
    )  # fmt: skip
    _to_keys[grid](qkv, g, to, *known, cut.queries, _rest(tokens, cut.queries), count * own, **options)
    return to


def forward(qkv: Tensor, heads: int, cut: Blocks) -> tuple[Tensor, Tensor]:
    """Attention's output [B, T, heads * d] and the logarithms of the sums of weights [B, heads, T], of contiguous
    queries, keys and values [B, T, 3 * heads * d]."""
    samples, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    own, d, count = cut.own, width // heads, -(-tokens // cut.own)
    out = blank(samples, tokens, width, dtype=qkv.dtype, device=qkv.device)
    sums = blank(samples, heads, tokens, dtype=torch.float32, device=qkv.device)
    sizes = (own, _rest(tokens, own), cut.keys, _rest(tokens, cut.keys))
    _mix[(samples * heads * count,)](
        qkv, out, sums, d**-0.5, tokens, heads, 1 / math.log(2), d, *sizes, num_warps=cut.warps, num_stages=cut.stages
    )
    return out, sums
