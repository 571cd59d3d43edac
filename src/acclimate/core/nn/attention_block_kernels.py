"""Triton kernels for the gradient of attention over few tokens, by blocks of queries, and by blocks of keys.

The kernel in `attention_kernels` holds all keys of a head, so that one program fills a processor, and waits for itself.
Here one kernel has a block of queries and all keys pass by, and another has a block of keys and all queries pass by.
Weights are made twice, but nothing that is computed leaves a thread's registers before it is done, and several programs
share a processor. What is left over of the tokens (5 of 197) is a small block of its own. Sums have a fixed order, so
results repeat to the bit.
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
    registers: int
    """The most that a thread may have in the gradient; 0 leaves that to the compiler."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "blocks " + "-".join(map(str, self))


BLOCKS = (Blocks(32, 32, 16, 4, 0),) if INTERPRETED else (Blocks(64, 64, 32, 4, 168), Blocks(64, 64, 64, 4, 0))
"""What is tried. Compiled for Hopper no register is spilled, and three programs of the first share a processor."""


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
def _both(
    one, other, WIDE: tl.constexpr, T: tl.constexpr, W: tl.constexpr, D: tl.constexpr,
    SIZE: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """All rows of two tensors, the second with WIDE numbers from row to row, in tiles of SIZE rows and, in the end, of
    REST. One after the other they would be waited for; here all loads are under way before the first is used."""
    tiles = ()
    for i in tl.static_range(T // SIZE):
        r = i * SIZE + tl.arange(0, SIZE)
        tiles += (_read(one, r, T, 3 * W, D, True), _read(other, r, T, WIDE, D, True))  # type: ignore[assignment]
    if REST:
        r = (T // SIZE) * SIZE + tl.arange(0, REST)
        tiles += (_read(one, r, T, 3 * W, D, False), _read(other, r, T, WIDE, D, False))  # type: ignore[assignment]
    return tiles


@jit
def _mix_step(q, k, v, t, top, total, acc, base, T: tl.constexpr, WHOLE: tl.constexpr):
    """What the keys t add to the output of a block of queries: `top` is the highest logit so far, of base two, and sums
    are of powers relative to it."""
    logits = tl.dot(q, tl.trans(k))
    if not WHOLE:
        logits = tl.where((t < T)[None, :], logits, float("-inf"))
    peak = tl.maximum(top, tl.max(logits, 1) * base)
    p = tl.math.exp2(logits * base - peak[:, None])
    fade = tl.math.exp2(top - peak)
    return peak, total * fade + tl.sum(p, 1), tl.dot(p.to(v.dtype), v, acc * fade[:, None])


@jit
def _mix_block(
    qkv, out, sums, begin, scale, T: tl.constexpr, ASKED: tl.constexpr, W: tl.constexpr, LOG: tl.constexpr,
    D: tl.constexpr, OWN: tl.constexpr, WHOLE: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    r = begin + tl.arange(0, OWN)
    q = _read(qkv, r, ASKED, 3 * W, D, WHOLE)
    here, last = tl.arange(0, OTHERS), (T // OTHERS) * OTHERS + tl.arange(0, REST or 1)
    tiles = _both(qkv + W, qkv + 2 * W, 3 * W, T, W, D, OTHERS, REST)
    top = tl.full((OWN,), float("-inf"), dtype=tl.float32)
    total = tl.zeros((OWN,), dtype=tl.float32)
    acc = tl.zeros((OWN, D), dtype=tl.float32)
    for i in tl.static_range(T // OTHERS):
        top, total, acc = _mix_step(q, tiles[2 * i], tiles[2 * i + 1], here, top, total, acc, scale * LOG, T, True)
    if REST:
        top, total, acc = _mix_step(q, tiles[-2], tiles[-1], last, top, total, acc, scale * LOG, T, False)
    _write(out, acc / total[:, None], r, ASKED, W, D, WHOLE)
    tl.store(sums + r, (top + tl.math.log2(total)) / LOG, mask=r < ASKED)


@late
@jit
def _mix(
    qkv, out, sums, scale, T: tl.constexpr, ASKED: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr, D: tl.constexpr,
    OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
):  # fmt: skip
    """The output of attention for OWN queries of a head, or for what is left over, and the logarithms of sums. Of T
    tokens, the first ASKED have queries."""
    blocks: tl.constexpr = (ASKED + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    sample, column = head // H, (head % H) * D
    qkv, out = qkv + sample * (T * 3 * W) + column, out + sample * (ASKED * W) + column
    sums += head * ASKED
    if begin + OWN <= ASKED:
        _mix_block(qkv, out, sums, begin, scale, T, ASKED, W, LOG, D, OWN, True, OTHERS, REST)
    elif OWN_REST:
        _mix_block(qkv, out, sums, begin, scale, T, ASKED, W, LOG, D, OWN_REST, False, OTHERS, REST)


@jit
def _query_step(q, dy, k, v, t, total, along, base, acc, T: tl.constexpr, WHOLE: tl.constexpr):
    """What the keys t add to the gradient of a block of queries."""
    log, slope = tl.dot(q, tl.trans(k)), tl.dot(dy, tl.trans(v))
    log = log * base - total[:, None]
    p = tl.math.exp2(log if WHOLE else tl.where((t < T)[None, :], log, float("-inf")))
    return tl.dot((p * (slope - along[:, None])).to(q.dtype), k, acc)


@jit
def _query_block(
    qkv, out, g, sums, to, notes, begin, scale, T: tl.constexpr, ASKED: tl.constexpr, W: tl.constexpr,
    LOG: tl.constexpr, D: tl.constexpr, OWN: tl.constexpr, WHOLE: tl.constexpr,
    OTHERS: tl.constexpr, REST: tl.constexpr, PADDED: tl.constexpr,
):  # fmt: skip
    r = begin + tl.arange(0, OWN)
    q = _read(qkv, r, ASKED, 3 * W, D, WHOLE)
    dy, y = _read(g, r, ASKED, W, D, WHOLE), _read(out, r, ASKED, W, D, WHOLE)
    total = tl.load(sums + r, mask=r < ASKED, other=float("inf")) * LOG
    here, last = tl.arange(0, OTHERS), (T // OTHERS) * OTHERS + tl.arange(0, REST or 1)
    tiles = _both(qkv + W, qkv + 2 * W, 3 * W, T, W, D, OTHERS, REST)
    along = tl.sum(y.to(tl.float32) * dy.to(tl.float32), 1)
    tl.store(notes + r, total)
    tl.store(notes + PADDED + r, along)
    acc = tl.zeros((OWN, D), dtype=tl.float32)
    for i in tl.static_range(T // OTHERS):
        acc = _query_step(q, dy, tiles[2 * i], tiles[2 * i + 1], here, total, along, scale * LOG, acc, T, True)
    if REST:
        acc = _query_step(q, dy, tiles[-2], tiles[-1], last, total, along, scale * LOG, acc, T, False)
    _write(to, acc * scale, r, ASKED, 3 * W, D, WHOLE)


@late
@jit
def _to_queries(
    qkv, out, g, sums, to, notes, scale, T: tl.constexpr, ASKED: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr,
    D: tl.constexpr, OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The gradients for OWN queries of a head, or for what is left over. `notes` [heads, 2, PADDED] get the logarithms
    of base two of the sums, and the products of g with the output."""
    blocks: tl.constexpr = (ASKED + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, begin = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    sample, column = head // H, (head % H) * D
    qkv, to = qkv + sample * (T * 3 * W) + column, to + sample * (T * 3 * W) + column
    out, g = out + sample * (ASKED * W) + column, g + sample * (ASKED * W) + column
    sums, notes = sums + head * ASKED, notes + head * (2 * PADDED)
    if begin + OWN <= ASKED:
        _query_block(
            qkv, out, g, sums, to, notes, begin, scale, T, ASKED, W, LOG, D, OWN, True, OTHERS, REST, PADDED
        )  # fmt: skip
    elif OWN_REST:
        _query_block(
            qkv, out, g, sums, to, notes, begin, scale, T, ASKED, W, LOG, D, OWN_REST, False, OTHERS, REST, PADDED
        )  # fmt: skip


@jit
def _key_step(
    k, v, q, dy, notes, r, t, base, to_k, to_v, T: tl.constexpr, WHOLE: tl.constexpr, PADDED: tl.constexpr
):  # fmt: skip
    """What the queries r add to the gradients of the keys t, which are all there if WHOLE, and of their values."""
    log, slope = tl.dot(k, tl.trans(q)), tl.dot(v, tl.trans(dy))
    log = log * base - tl.load(notes + r)[None, :]
    p = tl.math.exp2(log if WHOLE else tl.where((t < T)[:, None], log, float("-inf")))
    to_v = tl.dot(p.to(q.dtype), dy, to_v)
    s = p * (slope - tl.load(notes + PADDED + r)[None, :])
    return tl.dot(s.to(q.dtype), q, to_k), to_v


@jit
def _key_block(
    qkv, g, to, notes, first, scale, T: tl.constexpr, ASKED: tl.constexpr, W: tl.constexpr, LOG: tl.constexpr,
    D: tl.constexpr, OWN: tl.constexpr, WHOLE: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    t = first + tl.arange(0, OWN)
    k, v = _read(qkv + W, t, T, 3 * W, D, WHOLE), _read(qkv + 2 * W, t, T, 3 * W, D, WHOLE)
    here, last = tl.arange(0, OTHERS), (ASKED // OTHERS) * OTHERS + tl.arange(0, REST or 1)
    tiles = _both(qkv, g, W, ASKED, W, D, OTHERS, REST)
    to_k = tl.zeros((OWN, D), dtype=tl.float32)
    to_v = tl.zeros((OWN, D), dtype=tl.float32)
    if ASKED < T:
        at = to + (t[:, None] * (3 * W) + tl.arange(0, D)[None, :])
        tl.store(at, tl.zeros((OWN, D), dtype=to.dtype.element_ty), mask=((t >= ASKED) & (t < T))[:, None])
    for i in tl.static_range(ASKED // OTHERS):
        to_k, to_v = _key_step(
            k, v, tiles[2 * i], tiles[2 * i + 1], notes, i * OTHERS + here, t, scale * LOG, to_k, to_v, T, WHOLE, PADDED
        )  # fmt: skip
    if REST:
        to_k, to_v = _key_step(
            k, v, tiles[-2], tiles[-1], notes, last, t, scale * LOG, to_k, to_v, T, WHOLE, PADDED
        )  # fmt: skip
    _write(to + W, to_k * scale, t, T, 3 * W, D, WHOLE)
    _write(to + 2 * W, to_v, t, T, 3 * W, D, WHOLE)


@late
@jit
def _to_keys(
    qkv, g, to, notes, scale, T: tl.constexpr, ASKED: tl.constexpr, H: tl.constexpr, LOG: tl.constexpr,
    D: tl.constexpr, OWN: tl.constexpr, OWN_REST: tl.constexpr, OTHERS: tl.constexpr, REST: tl.constexpr,
    PADDED: tl.constexpr,
):  # fmt: skip
    """The gradients for OWN keys and values of a head, or for what is left over, with the notes of `_to_queries`; and
    zeros for queries that nobody ASKED."""
    blocks: tl.constexpr = (T + OWN - 1) // OWN
    W: tl.constexpr = H * D
    head, first = (tl.program_id(0) // blocks).to(tl.int64), (tl.program_id(0) % blocks) * OWN
    sample, column = head // H, (head % H) * D
    qkv, to = qkv + sample * (T * 3 * W) + column, to + sample * (T * 3 * W) + column
    g, notes = g + sample * (ASKED * W) + column, notes + head * (2 * PADDED)
    if first + OWN <= T:
        _key_block(qkv, g, to, notes, first, scale, T, ASKED, W, LOG, D, OWN, True, OTHERS, REST, PADDED)
    elif OWN_REST:
        _key_block(qkv, g, to, notes, first, scale, T, ASKED, W, LOG, D, OWN_REST, False, OTHERS, REST, PADDED)


def _rest(tokens: int, size: int) -> int:
    """The block for what is left over of the tokens; 0 where nothing is."""
    return max(LEAST, triton.next_power_of_2(tokens % size)) if tokens % size else 0


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int, cut: Blocks) -> Tensor:
    """As `attention_kernels.back`; output and gradient [B, asked, heads * d] may be those of the first tokens alone."""
    (samples, asked, width), tokens, to = out.shape, qkv.shape[1], blank_like(qkv)
    own, d, count = cut.own, width // heads, -(-asked // cut.own)
    notes = blank(samples * heads, 2, count * own, dtype=torch.float32, device=qkv.device)
    known = (notes, d**-0.5, tokens, asked, heads, 1 / math.log(2), d, own)
    options: dict[str, Any] = {"num_warps": cut.warps, **({"maxnreg": cut.registers} if cut.registers else {})}
    sizes = _rest(asked, own), cut.keys, _rest(tokens, cut.keys), count * own
    _to_queries[(samples * heads * count,)](qkv, out, g, sums, to, *known, *sizes, **options)
    sizes = _rest(tokens, own), cut.queries, _rest(asked, cut.queries), count * own
    _to_keys[(samples * heads * -(-tokens // own),)](qkv, g, to, *known, *sizes, **options)
    return to


def forward(qkv: Tensor, heads: int, cut: Blocks, asked: int) -> tuple[Tensor, Tensor]:
    """Attention's output [B, asked, heads * d] for the first tokens, and the logarithms of the sums of weights [B,
    heads, asked], of contiguous queries, keys and values [B, T, 3 * heads * d]."""
    samples, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    own, d, count = cut.own, width // heads, -(-asked // cut.own)
    out = blank(samples, asked, width, dtype=qkv.dtype, device=qkv.device)
    sums = blank(samples, heads, asked, dtype=torch.float32, device=qkv.device)
    sizes = (own, _rest(asked, own), cut.keys, _rest(tokens, cut.keys))
    _mix[(samples * heads * count,)](
        qkv, out, sums, d**-0.5, tokens, asked, heads, 1 / math.log(2), d, *sizes, num_warps=cut.warps
    )  # fmt: skip
    return out, sums
