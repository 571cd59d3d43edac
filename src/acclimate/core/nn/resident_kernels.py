"""Products of many rows with a weight that stays on the processor, in Gluon, for Hopper's warpgroups.

    (g W) gelu'(h)                                            `lowered`
    x W^T + b + u V^T, u = scale x A^T                        `product`
    x W^T + u V^T                                             `summed`

A processor keeps 128 rows of W, whole, and goes over tiles of x. One warp has the copy engine bring pieces of x, many
at a time; two or three warpgroups take tiles in turns: one multiplies while the others finish their tiles and have them
written. GELU's slopes are read from bytes that lie as `hidden_kernels` has them. Sums have a fixed order, so results
repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

from .kernels import AVAILABLE, INTERPRETED
from .rehearsal import late

gluon: Any = None
gl: Any = None
_load: Any = None
_store: Any = None
_barrier: Any = None
_view: Any = None
if AVAILABLE and not INTERPRETED:
    try:
        from triton.experimental import gluon  # type: ignore[no-redef]
        from triton.experimental.gluon import language as gl  # type: ignore[no-redef]
        from triton.experimental.gluon.language.nvidia.hopper import (
            fence_async_shared,
            mbarrier,
            tma,
            warpgroup_mma,
            warpgroup_mma_init,  # noqa: F401 - files beside this one want these two
            warpgroup_mma_wait,
        )
        from triton.experimental.gluon.nvidia.hopper import TensorDescriptor  # noqa: F401

        _memory = gl.shared_memory_descriptor
        _load = getattr(tma, "async_load", None) or tma.async_copy_global_to_shared  # by their names since Triton 3.9
        _store = getattr(tma, "async_store", None) or tma.async_copy_shared_to_global
        _view = getattr(_memory, "reinterpret", None) or _memory._reinterpret
        _barrier = getattr(gl, "thread_barrier", None) or gl.barrier  # since Triton 3.7
    except (ImportError, AttributeError):  # a Triton with another Gluon
        gluon = None


def _jit(f: Any = None, **options: Any) -> Any:
    """A kernel of this function, or the function itself where there is no Gluon."""
    if gluon is None:
        return f if f is not None else (lambda g: g)
    return gluon.jit(**options)(f) if f is not None else (lambda g: gluon.jit(**options)(g))


@_jit
def _halves(acc, BM: gl.constexpr, BN: gl.constexpr):
    """The left and the right columns of a tile."""
    return gl.split(acc.reshape(BM, 2, BN // 2).permute(0, 2, 1))


@_jit
def _ordered(t, BM: gl.constexpr):
    """A tile [BM, 64] with threads' sums in the order of `hidden_kernels`' bytes, and the first and third of every four
    of them: each stands for two."""
    even, odd = gl.split(t.reshape(BM // 64, 4, 2, 8, 1, 4, 2, 4, 2).permute(1, 0, 4, 2, 3, 7, 5, 6, 8))
    first, third = gl.split(even)
    return first.reshape(4, BM // 32, 128), third.reshape(4, BM // 32, 128)


@_jit
def _places(m, n, high, wide, BM: gl.constexpr):
    """Where the slopes of a tile [BM, 64] lie, in fours, and which there is room for."""
    i = gl.expand_dims(gl.expand_dims(gl.arange(0, BM // 32), 0), 2)
    warp = gl.expand_dims(gl.expand_dims(gl.arange(0, 4), 1), 2)
    thread = gl.expand_dims(gl.expand_dims(gl.arange(0, 128), 0), 1)
    row = m // 64 + i // 2
    block = (row * wide + n // 64) * 8 + (i % 2) * 4 + warp
    real = (row < high) & (warp >= 0) & (thread >= 0)  # the latter hold always, and give it the shape of places
    return block * 128 + thread, real


@_jit
def _read(kept, m, n, high, wide, BM: gl.constexpr, BN: gl.constexpr, LAYOUT: gl.constexpr):
    """The slopes of a half of a tile, in fours, where the threads have the sums."""
    left, right = _halves(gl.full([BM, BN], 0, gl.int32, LAYOUT), BM, BN)
    first, third = _ordered(left, BM)
    at, real = _places(m, n, high, wide, BM)
    ORDER: gl.constexpr = first.type.layout
    return gl.load(kept + gl.set_auto_layout(at, ORDER), mask=gl.set_auto_layout(real, ORDER), other=0)


@_jit
def _steep(acc, fours, BM: gl.constexpr):
    """Sums times their slopes, which were in bytes: each is put where a number between 1 and 2 has its digits."""
    first, second = ((fours << 8) & 0xFF00) | 0x3F800000, (fours & 0xFF00) | 0x3F800000
    third, fourth = ((fours >> 8) & 0xFF00) | 0x3F800000, ((fours >> 16) & 0xFF00) | 0x3F800000
    t = gl.join(gl.join(first, third), gl.join(second, fourth))
    t = t.reshape(4, BM // 64, 1, 2, 8, 4, 4, 2, 2).permute(1, 0, 3, 4, 2, 6, 7, 5, 8).reshape(BM, 64)
    slope = t.to(gl.float32, bitcast=True) * (32768 / 200.0) - (32768 + 26.0) / 200.0
    return (acc * gl.convert_layout(slope, acc.type.layout, assert_trivial=True)).to(gl.bfloat16)


@_jit
def _write(value, to, y, client, m, n, BM: gl.constexpr):
    """Have the copy engine write a half of a tile, once it has read the one before."""
    tma.store_wait(0)
    to.reshape([BM, value.shape[1]]).store(value)
    fence_async_shared()
    _store(y, [client, m, n], to)


@_jit
def _bring(
    given,
    KIND: gl.constexpr, KT: gl.constexpr, STAGES: gl.constexpr, TURNED: gl.constexpr, LYING: gl.constexpr,
    BM: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Bring W once, and of every tile x, A's and V's parts."""
    boxes, places, bars, n, first, step, tiles, down = given
    x, w, a, v, y = boxes
    xs, ws, as_, vs, ys = places
    whole, ready, empty, here, gone, turns = bars
    mbarrier.expect(whole, KT * w.block_type.nbytes)
    for k in gl.static_range(KT):
        if TURNED:
            _load(w, [k * BK, n], whole, ws.index(k))
        else:
            _load(w, [n, k * BK], whole, ws.index(k))
    at = 0
    turn = 0
    for tile in range(first, tiles, step):
        client = tile // down
        m = (tile % down) * BM
        if KIND == "product" or KIND == "summed":
            which = turn % GROUPS
            mbarrier.wait(gone.index(which), ((turn // GROUPS) & 1) ^ 1)
            mbarrier.expect(here.index(which), v.block_type.nbytes)
            if LYING:
                _load(v, [client, 0, n], here.index(which), vs.index(which))
            else:
                _load(v, [client, n, 0], here.index(which), vs.index(which))
            turn += 1
        for piece in range(KT):
            stage = at % STAGES
            mbarrier.wait(empty.index(stage), ((at // STAGES) & 1) ^ 1)
            if KIND == "product":
                mbarrier.expect(ready.index(stage), x.block_type.nbytes + a.block_type.nbytes)
                _load(a, [client, 0, piece * BK], ready.index(stage), as_.index(stage))
            else:
                mbarrier.expect(ready.index(stage), x.block_type.nbytes)
            _load(x, [client, m, piece * BK], ready.index(stage), xs.index(stage))
            at += 1


@_jit
def _low_rows(u, client, m, rows, RANKS: gl.constexpr, R: gl.constexpr, BM: gl.constexpr, LAYOUT: gl.constexpr):
    """Where rows of u lie, and which there are."""
    r = m + gl.arange(0, BM, layout=gl.SliceLayout(1, LAYOUT))
    c = gl.arange(0, R, layout=gl.SliceLayout(0, LAYOUT))
    at = (client.to(gl.int64) * rows + r).to(gl.int64) * RANKS
    return u + (at[:, None] + c[None, :]), (r < rows)[:, None] & (c < RANKS)[None, :]


@_jit
def _multiply(
    which: gl.constexpr, given,
    KIND: gl.constexpr, KT: gl.constexpr, STAGES: gl.constexpr, TURNED: gl.constexpr, LYING: gl.constexpr,
    BIAS: gl.constexpr, RANKS: gl.constexpr, R: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Every second or third tile. Warpgroups wait for each other's turn: a barrier only tells whether its last round is
    over, so nobody may look at it a round too early."""
    boxes, places, bars, kept, u, bias, scale, n, first, step, tiles, down, rows, high, wide = given
    x, w, a, v, y = boxes
    xs, ws, as_, vs, ys = places
    whole, ready, empty, here, gone, turns = bars
    SUMS: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, BN, 16])
    LOW: gl.constexpr = gl.NVMMADistributedLayout([3, 0], [4, 1], [16, R, 16])
    FACTOR: gl.constexpr = gl.DotOperandLayout(0, SUMS, 2)
    OWN: gl.constexpr = KIND == "product" or KIND == "summed"
    HALF: gl.constexpr = BN // 2
    to = ys.index(which)
    mbarrier.wait(whole, 0)
    at = which * KT
    turn = 0
    for tile in range(first + which * step, tiles, GROUPS * step):
        client = tile // down
        m = (tile % down) * BM
        own = kept + client.to(gl.int64) * high * wide * 1024
        if KIND == "lowered":  # under way while the sums are made
            left_fours = _read(own, m, n, high, wide, BM, BN, SUMS)
            right_fours = _read(own, m, n + HALF, high, wide, BM, BN, SUMS)
        if KIND == "summed":
            spot, real = _low_rows(u, client, m, rows, RANKS, R, BM, FACTOR)
            factor = gl.load(spot, mask=real, other=0.0)
        acc = gl.zeros([BM, BN], gl.float32, SUMS)
        low = gl.zeros([BM, R], gl.float32, LOW)
        mbarrier.wait(turns.index(which), (turn & 1) ^ (which == 0))
        for k in gl.static_range(KT):
            stage = at % STAGES
            mbarrier.wait(ready.index(stage), (at // STAGES) & 1)
            part = xs.index(stage).reshape([BM, BK])
            columns = ws.index(k) if TURNED else ws.index(k).permute((1, 0))
            acc = warpgroup_mma(part, columns, acc, is_async=True, use_acc=k > 0)
            if KIND == "product":
                columns = as_.index(stage).reshape([R, BK]).permute((1, 0))
                low = warpgroup_mma(part, columns, low, is_async=True, use_acc=k > 0)
                if k > 0:
                    acc, low = warpgroup_mma_wait(2, (acc, low))
            elif k > 0:
                acc = warpgroup_mma_wait(1, (acc,))
            if k > 0:
                mbarrier.arrive(empty.index((at - 1) % STAGES), count=1)
            at += 1
        mbarrier.arrive(turns.index((which + 1) % GROUPS), count=1)
        if KIND == "product":
            acc, low = warpgroup_mma_wait(0, (acc, low))
        else:
            acc = warpgroup_mma_wait(0, (acc,))
        mbarrier.arrive(empty.index((at - 1) % STAGES), count=1)
        at += (GROUPS - 1) * KT
        if KIND == "product":
            rounded = (low * scale).to(gl.bfloat16)
            if n == 0:
                spot, real = _low_rows(u, client, m, rows, RANKS, R, BM, LOW)
                gl.store(spot, rounded, mask=real)
            factor = gl.convert_layout(rounded, FACTOR)
        if OWN:
            mbarrier.wait(here.index(which), turn & 1)
            part = vs.index(which).reshape([R, BN]) if LYING else vs.index(which).reshape([BN, R]).permute((1, 0))
            acc = warpgroup_mma(factor, part, acc, is_async=True)
            acc = warpgroup_mma_wait(0, (acc,))
            mbarrier.arrive(gone.index(which), count=1)
        turn += 1  # noqa: SIM113
        if BIAS:
            cols = n + gl.arange(0, BN, layout=gl.SliceLayout(0, SUMS))
            acc += gl.load(bias + cols).to(gl.float32)[None, :]
        left, right = _halves(acc, BM, BN)
        if KIND == "lowered":
            _write(_steep(left, left_fours, BM), to, y, client, m, n, BM)
            _write(_steep(right, right_fours, BM), to, y, client, m, n + HALF, BM)
        else:
            _write(left.to(gl.bfloat16), to, y, client, m, n, BM)
            _write(right.to(gl.bfloat16), to, y, client, m, n + HALF, BM)
    tma.store_wait(0)


@late
@_jit(do_not_specialize=["rows", "tiles", "down", "high"])
def _resident(
    x, w, a, v, y, kept, u, bias, scale, rows, tiles, down, across, high, wide,
    KIND: gl.constexpr, KT: gl.constexpr, STAGES: gl.constexpr, TURNED: gl.constexpr, LYING: gl.constexpr,
    BIAS: gl.constexpr, RANKS: gl.constexpr, R: gl.constexpr,
    BM: gl.constexpr, BN: gl.constexpr, BK: gl.constexpr, MANY: gl.constexpr, FEW: gl.constexpr, GROUPS: gl.constexpr,
):  # fmt: skip
    """Tiles of y with the same columns. x, w, a, v and y are descriptors."""
    SOME: gl.constexpr = STAGES if KIND == "product" else 1
    xs = gl.allocate_shared_memory(gl.bfloat16, [STAGES] + x.block_type.shape, x.layout)
    ws = gl.allocate_shared_memory(gl.bfloat16, [KT] + w.block_type.shape, w.layout)
    as_ = gl.allocate_shared_memory(gl.bfloat16, [SOME] + a.block_type.shape, a.layout)
    vs = gl.allocate_shared_memory(gl.bfloat16, [GROUPS] + v.block_type.shape, v.layout)
    ys = gl.allocate_shared_memory(gl.bfloat16, [GROUPS] + y.block_type.shape, y.layout)
    whole = gl.allocate_shared_memory(gl.int64, [1], mbarrier.MBarrierLayout())
    ready = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    empty = gl.allocate_shared_memory(gl.int64, [STAGES, 1], mbarrier.MBarrierLayout())
    here = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    gone = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    turns = gl.allocate_shared_memory(gl.int64, [GROUPS, 1], mbarrier.MBarrierLayout())
    mbarrier.init(whole, count=1)
    for s in gl.static_range(STAGES):
        mbarrier.init(ready.index(s), count=1)
        mbarrier.init(empty.index(s), count=1)
    for s in gl.static_range(GROUPS):
        mbarrier.init(here.index(s), count=1)
        mbarrier.init(gone.index(s), count=1)
        mbarrier.init(turns.index(s), count=1)
    fence_async_shared()
    n = (gl.program_id(0) % across) * BN
    first, step = gl.program_id(0) // across, gl.num_programs(0) // across
    boxes, places, bars = (x, w, a, v, y), (xs, ws, as_, vs, ys), (whole, ready, empty, here, gone, turns)
    given = (boxes, places, bars, kept, u, bias, scale, n, first, step, tiles, down, rows, high, wide)
    brought = (boxes, places, bars, n, first, step, tiles, down)
    if GROUPS == 3:
        gl.warp_specialize([
            (_multiply, (0, given, KIND, KT, STAGES, TURNED, LYING, BIAS, RANKS, R, BM, BN, BK, GROUPS)),
            (_multiply, (1, given, KIND, KT, STAGES, TURNED, LYING, BIAS, RANKS, R, BM, BN, BK, GROUPS)),
            (_multiply, (2, given, KIND, KT, STAGES, TURNED, LYING, BIAS, RANKS, R, BM, BN, BK, GROUPS)),
            (_bring, (brought, KIND, KT, STAGES, TURNED, LYING, BM, BK, GROUPS)),
        ], [4, 4, 1], [MANY, MANY, FEW])  # fmt: skip
    else:
        gl.warp_specialize([
            (_multiply, (0, given, KIND, KT, STAGES, TURNED, LYING, BIAS, RANKS, R, BM, BN, BK, GROUPS)),
            (_multiply, (1, given, KIND, KT, STAGES, TURNED, LYING, BIAS, RANKS, R, BM, BN, BK, GROUPS)),
            (_bring, (brought, KIND, KT, STAGES, TURNED, LYING, BM, BK, GROUPS)),
        ], [4, 1], [MANY, FEW])  # fmt: skip
