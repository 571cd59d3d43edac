"""Attention with a whole head in a processor's memory, in Gluon, for Hopper's warpgroups; its gradient is beside it.

The copy engine brings a head's keys and values once, and several programs share a processor, so that one computes while
another waits. A program takes 64 queries at a time. What is left over of the tokens (5 of 197) is a small block. Sums
have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from .rehearsal import late
from .resident_kernels import _jit, _load, _store, _view, gl, gluon

if gluon is not None:
    from triton.experimental.gluon.language.nvidia.hopper import (
        fence_async_shared,
        mbarrier,
        tma,
        warpgroup_mma,
        warpgroup_mma_init,
        warpgroup_mma_wait,
    )


@_jit
def _part(pool, which: gl.constexpr, row, rows: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr):
    """Rows of a tensor in the pool, whose pieces have 16 rows: small blocks lie in front. What is behind one is of
    other tensors, and what is made of that is not written."""
    LAYOUT: gl.constexpr = gl.NVMMASharedLayout(2 * D, 16, 2)
    if not LEFT:  # no view is larger than what it is made of
        parts = _view(pool, gl.bfloat16, [pool.shape[0] * 16 // rows, rows, D], LAYOUT)
        return parts.index(which * (WHOLE * 64 // rows) + row // rows)
    else:
        piece = which * (4 * WHOLE) + row // 16 + pool.shape[0] // (4 * WHOLE + 1)
        piece = gl.where(row < WHOLE * 64, piece, which)
        return _view(pool.index(piece), gl.bfloat16, [rows, D], LAYOUT)


@_jit
def _bring(
    box, rest, pool, ready, which: gl.constexpr, sample, column, D: gl.constexpr, WHOLE: gl.constexpr,
    LEFT: gl.constexpr,
):  # fmt: skip
    """Bring the tokens of a head from one tensor: whole blocks, and what is left over. Rows that are not there are
    zeros."""
    for i in gl.static_range(WHOLE):
        to = _part(pool, which, i * 64, 64, D, WHOLE, LEFT)
        _load(box, [sample, i * 64, column], ready, _view(to, gl.bfloat16, [1, 64, D], box.layout))
    if LEFT:
        _load(rest, [sample, WHOLE * 64, column], ready, pool.index(which))


@_jit
def _rows(of, first, T: gl.constexpr, WIDE: gl.constexpr, D: gl.constexpr, LAYOUT: gl.constexpr):
    """64 rows of a head, for a product, with zeros for those that are not there."""
    r = first + gl.arange(0, 64, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, D, layout=gl.SliceLayout(0, LAYOUT))
    return gl.load(of + (r[:, None] * WIDE + c[None, :]), mask=(r < T)[:, None] & (c < D)[None, :], other=0.0)


@_jit
def _put(value, to, y, sample, row, column, D: gl.constexpr):
    """Have the copy engine write 64 rows of a head."""
    to.store(value.to(gl.bfloat16))
    fence_async_shared()
    _store(y, [sample, row, column], _view(to, gl.bfloat16, [1, 64, D], y.layout))


@_jit
def _mix_step(
    q, k, v, top, total, acc, base,
    begin, SIZE: gl.constexpr, T: gl.constexpr, D: gl.constexpr, MASKED: gl.constexpr,
):  # fmt: skip
    """What SIZE keys add to the output of 64 queries: `top` is the highest logit so far, of base two, and sums are of
    powers relative to it."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    OWN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    nothing = gl.zeros([64, SIZE], gl.float32, SUMS)
    logits = warpgroup_mma(q, k.permute((1, 0)), nothing, use_acc=False, is_async=True)
    logits, acc = warpgroup_mma_wait(0, (logits, acc))
    if MASKED:
        t = begin + gl.arange(0, SIZE, layout=gl.SliceLayout(0, SUMS))
        logits = gl.where((t < T)[None, :], logits, float("-inf"))
    peak = gl.maximum(top, gl.convert_layout(gl.max(logits, 1), gl.SliceLayout(1, OWN)) * base)
    p = gl.exp2(logits * base - gl.convert_layout(peak, gl.SliceLayout(1, SUMS))[:, None])
    fade = gl.exp2(top - peak)
    total = total * fade + gl.convert_layout(gl.sum(p, 1), gl.SliceLayout(1, OWN))
    factor = gl.convert_layout(p.to(gl.bfloat16), gl.DotOperandLayout(0, OWN, 2))
    return peak, total, warpgroup_mma(factor, v, acc * fade[:, None], is_async=True)


@late
@_jit
def _held_mix(
    x, x_rest, y, qkv, sums, scale,
    T: gl.constexpr, H: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr,
    KEYS: gl.constexpr, LOG: gl.constexpr,
):  # fmt: skip
    """The output of attention for a head, and the logarithms of sums. x and y are descriptors of qkv and of the
    output."""
    W: gl.constexpr = H * D
    OWN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    head = gl.program_id(0)
    sample, column = head // H, (head % H) * D
    pool = gl.allocate_shared_memory(gl.bfloat16, [2 * (WHOLE * 4 + LEFT)] + x_rest.block_type.shape, x_rest.layout)
    to = gl.allocate_shared_memory(gl.bfloat16, [64, D], gl.NVMMASharedLayout(2 * D, 16, 2))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, 2 * (WHOLE * x.block_type.nbytes + LEFT * x_rest.block_type.nbytes))
    _bring(x, x_rest, pool, ready, 0, sample, column + W, D, WHOLE, LEFT)
    _bring(x, x_rest, pool, ready, 1, sample, column + 2 * W, D, WHOLE, LEFT)
    qkv, sums = qkv + (sample.to(gl.int64) * (3 * T * W) + column), sums + head.to(gl.int64) * T
    base = scale * LOG
    mbarrier.wait(ready, 0)
    following = _rows(qkv, 0, T, 3 * W, D, gl.DotOperandLayout(0, OWN, 2))
    for j in range(WHOLE + LEFT):
        q = following
        following = _rows(qkv, (j + 1) * 64, T, 3 * W, D, gl.DotOperandLayout(0, OWN, 2))
        top = gl.full([64], float("-inf"), gl.float32, gl.SliceLayout(1, OWN))
        total = gl.zeros([64], gl.float32, gl.SliceLayout(1, OWN))
        acc = warpgroup_mma_init(gl.zeros([64, D], gl.float32, OWN))
        for begin in range(0, WHOLE * 64, KEYS):
            k, v = _part(pool, 0, begin, KEYS, D, WHOLE, LEFT), _part(pool, 1, begin, KEYS, D, WHOLE, LEFT)
            top, total, acc = _mix_step(q, k, v, top, total, acc, base, begin, KEYS, T, D, WHOLE * 64 > T)
        if LEFT:
            k, v = _part(pool, 0, WHOLE * 64, 16, D, WHOLE, LEFT), _part(pool, 1, WHOLE * 64, 16, D, WHOLE, LEFT)
            top, total, acc = _mix_step(q, k, v, top, total, acc, base, WHOLE * 64, 16, T, D, True)
        acc = warpgroup_mma_wait(0, (acc,))
        tma.store_wait(0)
        _put(acc / total[:, None], to, y, sample, j * 64, column, D)
        r = j * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, OWN))
        gl.store(sums + r, (top + gl.log2(total)) / LOG, mask=r < T)
    tma.store_wait(0)
