"""The gradient of attention with a whole head in a processor's memory, in Gluon, for Hopper's warpgroups.

A program takes 64 queries at a time, and then 64 keys; two programs share a processor, so that one computes while the
other waits. The small block is among the columns of products alone: what it is given by queries, or by keys, lies, and
is written last. Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from .attention_head_kernels import _bring, _part, _put
from .rehearsal import late
from .resident_kernels import _barrier, _jit, _view, gl, gluon

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
def _note(out, g, sums, notes, more, scale, T: gl.constexpr, W: gl.constexpr, D: gl.constexpr, ALL: gl.constexpr):
    """For every query what is added to its logits, so that powers of them are weights, and to the products of its
    gradient with values."""
    FLAT: gl.constexpr = gl.BlockedLayout([1, 8], [256 // D, D // 8], [4, 1], [1, 0])
    c = gl.arange(0, D, layout=gl.SliceLayout(0, FLAT))
    r = gl.arange(0, ALL, layout=gl.SliceLayout(1, FLAT))
    at, real = r[:, None] * W + c[None, :], (r < T)[:, None] & (c < D)[None, :]
    y, dy = gl.load(out + at, mask=real, other=0.0), gl.load(g + at, mask=real, other=0.0)
    gl.store(notes + r, gl.load(sums + r, mask=r < T, other=0.0) / -scale, mask=r < T)
    gl.store(more + r, -gl.sum(y.to(gl.float32) * dy.to(gl.float32), 1), mask=r < T)


@_jit
def _times(a, part, ROWS: gl.constexpr):
    """The products of 64 rows with others, under way."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    nothing = gl.zeros([64, ROWS], gl.float32, SUMS)
    return warpgroup_mma(a, part.permute((1, 0)), nothing, use_acc=False, is_async=True)


@_jit
def _weights(logits, begin, total, base, ROWS: gl.constexpr, MASKED: gl.constexpr, T: gl.constexpr):
    """The weights of ROWS keys, zero for those that are not there."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, ROWS, 16])
    p = gl.exp2(logits * base + gl.convert_layout(total, gl.SliceLayout(1, SUMS))[:, None])
    if MASKED:
        t = begin + gl.arange(0, ROWS, layout=gl.SliceLayout(0, SUMS))
        p = gl.where((t < T)[None, :], p, 0.0)
    return p


@_jit
def _query_step(
    n: gl.constexpr, ahead, q, dy, pool, total, along, base, acc,
    T: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr, SIZE: gl.constexpr,
):  # fmt: skip
    """What a step's keys add to the gradient of 64 queries, and the logits of the next keys; both are under way."""
    begin: gl.constexpr = n * SIZE
    LAST: gl.constexpr = n + 1 == WHOLE * 64 // SIZE
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    FACTOR: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16]), 2)
    k, v = _part(pool, 1, begin, SIZE, D, WHOLE, LEFT), _part(pool, 2, begin, SIZE, D, WHOLE, LEFT)
    steep = _times(dy, v, SIZE)
    logits = warpgroup_mma_wait(2 if n > 0 else 1, (ahead,))
    p = _weights(logits, begin, total, base, SIZE, begin + SIZE > T, T)
    if not LAST:
        ahead = _times(q, _part(pool, 1, begin + SIZE, SIZE, D, WHOLE, LEFT), SIZE)
    elif LEFT:
        ahead = _times(q, _part(pool, 1, WHOLE * 64, 16, D, WHOLE, LEFT), 16)
    steep = warpgroup_mma_wait(0 if LAST and not LEFT else 1, (steep,))
    s = (p * (steep + gl.convert_layout(along, gl.SliceLayout(1, SUMS))[:, None])).to(gl.bfloat16)
    return ahead, warpgroup_mma(gl.convert_layout(s, FACTOR), k, acc, is_async=True)


@_jit
def _to_queries(
    j, pool, given, rest_k, rest_v,
    T: gl.constexpr, W: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr,
    SIZE: gl.constexpr,
):  # fmt: skip
    """The gradient for the queries of block j, and what they add to those for keys and values of the small block."""
    y, to, notes, more, scale, base, sample, column = given
    OWN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    r = j * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, OWN))
    total = gl.load(notes + r, mask=r < T, other=float("-inf")) * base
    along = gl.load(more + r, mask=r < T, other=0.0)
    q, dy = _part(pool, 0, j * 64, 64, D, WHOLE, LEFT), _part(pool, 3, j * 64, 64, D, WHOLE, LEFT)
    acc = gl.zeros([64, D], gl.float32, OWN)
    ahead = _times(q, _part(pool, 1, 0, SIZE, D, WHOLE, LEFT), SIZE)
    for n in gl.static_range(WHOLE * 64 // SIZE):
        ahead, acc = _query_step(n, ahead, q, dy, pool, total, along, base, acc, T, D, WHOLE, LEFT, SIZE)
    if LEFT:
        k, v = _part(pool, 1, WHOLE * 64, 16, D, WHOLE, LEFT), _part(pool, 2, WHOLE * 64, 16, D, WHOLE, LEFT)
        steep = _times(dy, v, 16)
        logits = warpgroup_mma_wait(2, (ahead,))
        p = _weights(logits, WHOLE * 64, total, base, 16, True, T)
        steep = warpgroup_mma_wait(0, (steep,))
        s = (p * (steep + gl.convert_layout(along, gl.SliceLayout(1, SUMS))[:, None])).to(gl.bfloat16)
        acc = warpgroup_mma(gl.convert_layout(s, gl.DotOperandLayout(0, OWN, 2)), k, acc, is_async=True)
        tma.store_wait(0)
        rest_k, rest_v = _small(q, dy, s, p.to(gl.bfloat16), to, rest_k, rest_v)
        acc, rest_k, rest_v = warpgroup_mma_wait(0, (acc, rest_k, rest_v))
    else:
        acc = warpgroup_mma_wait(0, (acc,))
    tma.store_wait(0)
    whole = _view(to, gl.bfloat16, [64, D], gl.NVMMASharedLayout(2 * D, 16, 2))
    _put(acc * scale, whole, y, sample, j * 64, column, D)
    return rest_k, rest_v


@_jit
def _small(q, dy, s, p, to, rest_k, rest_v):
    """What 64 queries add to the gradients for the keys and values of the small block, which lie: a column is a key."""
    to.index(0).store(s)
    to.index(1).store(p)
    fence_async_shared()
    _barrier()
    rest_k = warpgroup_mma(q.permute((1, 0)), to.index(0), rest_k, is_async=True)
    return rest_k, warpgroup_mma(dy.permute((1, 0)), to.index(1), rest_v, is_async=True)


@_jit
def _products(
    k, v, q, dy, notes, more, base, begin, SIZE: gl.constexpr, T: gl.constexpr, ADD: gl.constexpr,
    to_v, D: gl.constexpr,
):  # fmt: skip
    """Of 64 keys and SIZE queries: slopes of the logits, and the gradient for values with what these queries add."""
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, SIZE, 16])
    FACTOR: gl.constexpr = gl.DotOperandLayout(0, gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16]), 2)
    r = begin + gl.arange(0, SIZE, layout=gl.SliceLayout(0, SUMS))
    logits = gl.load(notes + r, mask=r < T, other=float("-inf"))[None, :] + gl.zeros([64, SIZE], gl.float32, SUMS)
    logits = warpgroup_mma(k, q.permute((1, 0)), logits, is_async=True)
    steep = gl.load(more + r, mask=r < T, other=0.0)[None, :] + gl.zeros([64, SIZE], gl.float32, SUMS)
    steep = warpgroup_mma(v, dy.permute((1, 0)), steep, is_async=True)
    logits = warpgroup_mma_wait(1, (logits,))
    p = gl.exp2(logits * base)
    if ADD:
        to_v = warpgroup_mma(gl.convert_layout(p.to(gl.bfloat16), FACTOR), dy, to_v, is_async=True)
        steep = warpgroup_mma_wait(1, (steep,))
    else:
        steep = warpgroup_mma_wait(0, (steep,))
    return p * steep, to_v


@_jit
def _to_keys(
    i, pool, given, rest_q,
    T: gl.constexpr, W: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr,
    SIZE: gl.constexpr,
):  # fmt: skip
    """The gradients for the keys of block i and their values, and what they add to that for the queries of the small
    block."""
    y, to, notes, more, scale, base, sample, column = given
    OWN: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, D, 16])
    FACTOR: gl.constexpr = gl.DotOperandLayout(0, OWN, 2)
    k, v = _part(pool, 1, i * 64, 64, D, WHOLE, LEFT), _part(pool, 2, i * 64, 64, D, WHOLE, LEFT)
    to_k = warpgroup_mma_init(gl.zeros([64, D], gl.float32, OWN))
    to_v = warpgroup_mma_init(gl.zeros([64, D], gl.float32, OWN))
    for begin in range(0, WHOLE * 64, SIZE):
        q, dy = _part(pool, 0, begin, SIZE, D, WHOLE, LEFT), _part(pool, 3, begin, SIZE, D, WHOLE, LEFT)
        s, to_v = _products(k, v, q, dy, notes, more, base, begin, SIZE, T, True, to_v, D)
        to_k = warpgroup_mma(gl.convert_layout(s.to(gl.bfloat16), FACTOR), q, to_k, is_async=True)
    if LEFT:
        few, also = _part(pool, 0, WHOLE * 64, 16, D, WHOLE, LEFT), _part(pool, 3, WHOLE * 64, 16, D, WHOLE, LEFT)
        slopes, to_v = _products(k, v, few, also, notes, more, base, WHOLE * 64, 16, T, True, to_v, D)
        slopes = slopes.to(gl.bfloat16)
        to_k = warpgroup_mma(gl.convert_layout(slopes, FACTOR), few, to_k, is_async=True)
        to.index(0).store(slopes)
        fence_async_shared()
        _barrier()
        rest_q = warpgroup_mma(k.permute((1, 0)), to.index(0), rest_q, is_async=True)
        to_k, to_v, rest_q = warpgroup_mma_wait(0, (to_k, to_v, rest_q))
    else:
        to_k, to_v = warpgroup_mma_wait(0, (to_k, to_v))
    _barrier()
    _put(to_k * scale, k, y, sample, i * 64, column + W, D)  # nobody else needs these keys and values by now
    _put(to_v, v, y, sample, i * 64, column + 2 * W, D)
    return rest_q


@_jit
def _put_small(value, of, T: gl.constexpr, W: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr):
    """Write the gradients of the small block, which lie."""
    LYING: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    c = gl.arange(0, D, layout=gl.SliceLayout(1, LYING))
    t = WHOLE * 64 + gl.arange(0, 16, layout=gl.SliceLayout(0, LYING))
    gl.store(of + (t[None, :] * (3 * W) + c[:, None]), value.to(gl.bfloat16), mask=(t < T)[None, :] & (c < D)[:, None])


@_jit
def _corner(pool, given, rest_q, rest_k, rest_v, T: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr):
    """What the queries of the small block and its keys add to each other's gradients."""
    y, to, notes, more, scale, base, sample, column = given
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    q, dy = _part(pool, 0, WHOLE * 64, 64, D, WHOLE, 1), _part(pool, 3, WHOLE * 64, 64, D, WHOLE, 1)
    k, v = _part(pool, 1, WHOLE * 64, 64, D, WHOLE, 1), _part(pool, 2, WHOLE * 64, 64, D, WHOLE, 1)
    few_k, few_v = _part(pool, 1, WHOLE * 64, 16, D, WHOLE, 1), _part(pool, 2, WHOLE * 64, 16, D, WHOLE, 1)
    few_q, few_dy = _part(pool, 0, WHOLE * 64, 16, D, WHOLE, 1), _part(pool, 3, WHOLE * 64, 16, D, WHOLE, 1)
    r = WHOLE * 64 + gl.arange(0, 64, layout=gl.SliceLayout(1, SUMS))
    t = WHOLE * 64 + gl.arange(0, 16, layout=gl.SliceLayout(0, SUMS))
    real = (r < T)[:, None] & (t < T)[None, :]
    total = gl.load(notes + r, mask=r < T, other=float("-inf")) * base
    along = gl.load(more + r, mask=r < T, other=0.0)
    logits, steep = _times(q, few_k, 16), _times(dy, few_v, 16)
    logits, steep = warpgroup_mma_wait(0, (logits, steep))
    p = gl.exp2(logits * base + total[:, None])
    s = (p * (steep + along[:, None])).to(gl.bfloat16)
    tma.store_wait(0)
    rest_k, rest_v = _small(q, dy, s, p.to(gl.bfloat16), to, rest_k, rest_v)
    slopes, _ = _products(k, v, few_q, few_dy, notes, more, base, WHOLE * 64, 16, T, False, 0, D)
    rest_k, rest_v = warpgroup_mma_wait(0, (rest_k, rest_v))
    _barrier()
    to.index(0).store(gl.where(real, slopes, 0.0).to(gl.bfloat16))
    fence_async_shared()
    _barrier()
    rest_q = warpgroup_mma(k.permute((1, 0)), to.index(0), rest_q, is_async=True)
    return warpgroup_mma_wait(0, (rest_q,)), rest_k, rest_v


@late
@_jit
def _held_back(
    x, x_rest, d, d_rest, y, grad, out, g, sums, notes, scale,
    T: gl.constexpr, H: gl.constexpr, D: gl.constexpr, WHOLE: gl.constexpr, LEFT: gl.constexpr,
    KEYS: gl.constexpr, QUERIES: gl.constexpr, ALL: gl.constexpr, LOG: gl.constexpr,
):  # fmt: skip
    """The gradients for a head's queries, keys and values. x, d and y are descriptors of qkv, of the gradient for the
    output, and of the gradient for qkv; `notes` are two numbers for every query."""
    W: gl.constexpr = H * D
    head = gl.program_id(0)
    sample, column = head // H, (head % H) * D
    pool = gl.allocate_shared_memory(gl.bfloat16, [4 * (WHOLE * 4 + LEFT)] + x_rest.block_type.shape, x_rest.layout)
    to = gl.allocate_shared_memory(gl.bfloat16, [4, 64, 16], gl.NVMMASharedLayout(32, 16, 2))
    ready = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    mbarrier.init(ready, count=1)
    fence_async_shared()
    mbarrier.expect(ready, 4 * (WHOLE * x.block_type.nbytes + LEFT * x_rest.block_type.nbytes))
    _bring(x, x_rest, pool, ready, 0, sample, column, D, WHOLE, LEFT)
    _bring(x, x_rest, pool, ready, 1, sample, column + W, D, WHOLE, LEFT)
    _bring(x, x_rest, pool, ready, 2, sample, column + 2 * W, D, WHOLE, LEFT)
    _bring(d, d_rest, pool, ready, 3, sample, column, D, WHOLE, LEFT)
    wide, sums = sample.to(gl.int64) * (T * W) + column, sums + head.to(gl.int64) * T
    notes, grad = notes + head.to(gl.int64) * (2 * T), grad + (sample.to(gl.int64) * (3 * T * W) + column)
    _note(out + wide, g + wide, sums, notes, notes + T, scale, T, W, D, ALL)
    given = (y, to, notes, notes + T, scale, scale * LOG, sample, column)
    _barrier()  # notes are of all threads
    mbarrier.wait(ready, 0)
    LYING: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, 16, 16])
    rest_q = gl.zeros([64, 16], gl.float32, LYING)
    rest_k = gl.zeros([64, 16], gl.float32, LYING)
    rest_v = gl.zeros([64, 16], gl.float32, LYING)
    for j in range(WHOLE):
        rest_k, rest_v = _to_queries(j, pool, given, rest_k, rest_v, T, W, D, WHOLE, LEFT, KEYS)
    if LEFT:
        rest_q, rest_k, rest_v = _corner(pool, given, rest_q, rest_k, rest_v, T, D, WHOLE)
        _put_small(rest_k * scale, grad + W, T, W, D, WHOLE)
        _put_small(rest_v, grad + 2 * W, T, W, D, WHOLE)
    for i in range(WHOLE):
        rest_q = _to_keys(i, pool, given, rest_q, T, W, D, WHOLE, LEFT, QUERIES)
    if LEFT:
        _put_small(rest_q * scale, grad, T, W, D, WHOLE)
    tma.store_wait(0)
