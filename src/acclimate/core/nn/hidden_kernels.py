"""Triton kernels for the products around the GELU of a frozen MLP: GELU and its slope happen before a tile is written.

    gelu(h) and the slope gelu'(h), of h = x W1^T + b1    forward, both from one product
    (g W2) gelu'(h)                                       backward, one product and one multiplication

As passes of their own, GELU and its gradient read and write all hidden activations once more. A gradient needs nothing
of h but the slope, which lies between -0.13 and 1.13, so one byte keeps it (`slopes`), right to 0.005: half of that is
the byte's, and half that of float16, in which it is computed (`BENT`). Tiles are read and written by the GPU's copy
engine, which Hopper and later GPUs have; bytes go from where a thread has its sums to where the same thread of the
other kernel wants them. A tile is cut in a few ways (`CUTS`), and which is fastest is measured (`trials`). Sums have a
fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import struct

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .product_kernels import Tiling, dense
from .product_kernels import usable as fits
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

STEPS, ZERO = 200.0, 26.0
"""A slope is kept as the nearest whole number to STEPS times it and ZERO more."""


def _pair(x: float) -> str:
    """A number twice, in float16, as the assembler reads it."""
    return f"0x{2 * struct.pack('>e', x).hex().upper()}"


_CONSTANTS = {
    "most": 30.25, "one": 1.0, "half": 0.5, "steps": STEPS,
    "zero": 1024 + ZERO, "q2": -0.00035189531, "q1": 0.037007955, "q0": 0.79750541,
    "p2": -0.00087973827, "p1": 0.055511932, "p0": 0.39875271,
}  # fmt: skip
BENT = f"""{{
.reg .b32 x, t, q, b, p, w, s, {", ".join(_CONSTANTS)};
.reg .b16 low, high;
.reg .f32 f0, f1;
{"".join(f"mov.b32 {name}, {_pair(value)};" for name, value in _CONSTANTS.items())}
cvt.rn.satfinite.f16x2.f32 x, $4, $3;
mul.f16x2 t, x, x;
min.f16x2 t, t, most;
fma.rn.f16x2 q, t, q2, q1;
fma.rn.f16x2 q, t, q, q0;
mul.f16x2 q, x, q;
tanh.approx.f16x2 b, q;
fma.rn.f16x2 p, t, p2, p1;
fma.rn.f16x2 p, t, p, p0;
fma.rn.f16x2 w, b, half, half;
neg.f16x2 s, b;
fma.rn.f16x2 s, s, b, one;
mul.f16x2 s, p, s;
fma.rn.f16x2 s, x, s, w;
fma.rn.f16x2 s, s, steps, zero;
mov.b32 {{low, high}}, w;
cvt.f32.f16 f0, low;
cvt.f32.f16 f1, high;
mul.f32 f0, f0, $3;
mul.f32 f1, f1, $4;
cvt.rn.bf16x2.f32 $0, f1, f0;
mov.b32 $1, s;
mov.b32 $2, s;
}}"""
"""GELU of two numbers, by the polynomials of `bent`, and in the bytes 0 and 2 of a third the slopes: added to 1024,
whose last digit in float16 is one, they are rounded to whole numbers. Where squares are cut off, tanh is one, and the
part of the slope that it multiplies is zero before a number of any size meets it."""
if AVAILABLE:
    _BENT = tl.constexpr(BENT)

CUTS = (
    (Tiling(64, 64, 32, 4, 1, 1, 0), Tiling(64, 128, 32, 4, 1, 2, 1))
    if INTERPRETED
    else (
        Tiling(128, 128, 64, 4, 3, 1, 0),
        Tiling(128, 128, 64, 4, 3, 2, 2),
        Tiling(128, 256, 64, 8, 3, 2, 1),
        Tiling(256, 128, 64, 8, 3, 2, 1),
    )
)
"""The cuts that are tried; parts have 64 columns or a multiple of it. Of the first two, two programs share a processor:
one computes while the other writes. The others read less, and have a processor to themselves."""


@jit
def bent(x):
    """tanh(x q(x^2)) and half of the slope of x q(x^2): (1 + tanh) / 2 is the normal distribution to 1e-5, times x.

    q is the polynomial of second order with the least such error, up to where tanh is one.
    """
    t = tl.minimum(x * x, 30.0)
    z = x * (0.79750541 + t * (0.037007955 - t * 0.00035189531))
    bend = 1.0 - 2.0 / (1.0 + tl.math.exp2(tl.minimum(z * 2.8853901, 64.0)))
    return bend, 0.39875271 + t * (0.055511932 - t * 0.00087973827)


@jit
def _places(m, n, high, wide, BM: tl.constexpr, WIDE: tl.constexpr, WARPS: tl.constexpr):
    """Where the slopes of a tile [BM, WIDE] lie, in fours, ordered as by `_packed`, and which there is room for."""
    i = tl.arange(0, BM * WIDE // (512 * WARPS))[None, :, None]
    across: tl.constexpr = 2 * (WIDE // 64)
    warp = (i // across) * WARPS + tl.arange(0, WARPS)[:, None, None]
    row, column = m // 64 + warp // 4, n // 64 + (i % across) // 2
    block = (row * wide + column) * 8 + (i % 2) * 4 + warp % 4
    return block * 128 + tl.arange(0, 128)[None, None, :], (row < high) & (column < wide)


@jit
def _packed(t, FAST: tl.constexpr, BM: tl.constexpr, WIDE: tl.constexpr, WARPS: tl.constexpr):
    """A tile [BM, WIDE] of bytes, as numbers, as [WARPS, .., 128] of four bytes each, in the order in which threads
    have sums: those that a thread has of 64 columns lie side by side. FAST if every number has its neighbour's byte,
    too, as `BENT` makes them."""
    t = t.reshape(BM // (16 * WARPS), WARPS, 2, 8, WIDE // 64, 4, 2, 4, 2).permute(1, 0, 4, 2, 3, 7, 5, 6, 8)
    even, odd = t.split()
    first, third = even.split()
    if FAST:
        fours = tl.inline_asm_elementwise(
            "prmt.b32 $0, $1, $2, 0x6420;", "=r,r,r", [first, third], dtype=tl.int32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        second, fourth = odd.split()
        fours = first | (second << 8) | (third << 16) | (fourth << 24)
    return fours.reshape(WARPS, BM * WIDE // (512 * WARPS), 128)


@jit
def _slope(fours, BM: tl.constexpr, WIDE: tl.constexpr, WARPS: tl.constexpr):
    """The reverse of `_packed`, as slopes: a byte is put where a number of float32 between 1 and 2 has its digits."""
    first, second = ((fours << 8) & 0xFF00) | 0x3F800000, (fours & 0xFF00) | 0x3F800000
    third, fourth = ((fours >> 8) & 0xFF00) | 0x3F800000, ((fours >> 16) & 0xFF00) | 0x3F800000
    t = tl.join(tl.join(first, third), tl.join(second, fourth))
    t = t.reshape(WARPS, BM // (16 * WARPS), WIDE // 64, 2, 8, 4, 4, 2, 2).permute(1, 0, 3, 4, 2, 6, 7, 5, 8)
    return t.reshape(BM, WIDE).to(tl.float32, bitcast=True) * (32768 / 200.0) - (32768 + 26.0) / 200.0


@jit
def _finish(
    acc, kept, known, y, bias, client, m, n, N, high, wide,
    BACK: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, WIDE: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """Write what comes of a tile of sums [BM, WIDE]. A slope becomes a byte without the instruction for that, which is
    slow: it is added to a number whose last digit is one. FAST is for NVIDIA's GPUs."""
    if BACK:
        value = acc * _slope(known, BM, WIDE, WARPS)
    else:
        if BIAS:
            cols = n + tl.arange(0, WIDE)
            acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        if FAST:
            value, byte = tl.inline_asm_elementwise(
                _BENT, "=r,=r,=r,f,f", [acc], dtype=(tl.bfloat16, tl.int32), is_pure=True, pack=2
            )  # fmt: skip
        else:
            bend, half = bent(acc)
            below = 0.5 + 0.5 * bend
            slope = below + acc * half * (1.0 - bend * bend)
            byte = (slope * 200.0 + (8388608 + 26.0)).to(tl.int32, bitcast=True) & 0xFF
            value = acc * below
        at, real = _places(m, n, high, wide, BM, WIDE, WARPS)
        tl.store(kept + at, _packed(byte, FAST, BM, WIDE, WARPS), mask=real)
    y.store([client, m, n], value.to(y.dtype).reshape(1, BM, WIDE))


@jit
def _tile(
    tile, x, w, kept, y, bias, rows, N, K,
    BACK: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, WARPS: tl.constexpr,
):  # fmt: skip
    """One tile, which is written in one or two parts."""
    across, down = tl.cdiv(N, BN), tl.cdiv(rows, BM)
    n, m, client = (tile % across) * BN, ((tile // across) % down) * BM, tile // (across * down)
    WIDE: tl.constexpr = BN // PARTS
    high, wide = tl.cdiv(rows, 64), tl.cdiv(N, 64)
    own, first, second = kept + client.to(tl.int64) * high * wide * 1024, 0, 0
    if BACK:  # under way while the sums are made
        at, real = _places(m, n, high, wide, BM, WIDE, WARPS)
        first = tl.load(own + at, mask=real, other=0)
        if PARTS == 2:
            at, real = _places(m, n + WIDE, high, wide, BM, WIDE, WARPS)
            second = tl.load(own + at, mask=real, other=0)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        part = x.load([client, m, k]).reshape(BM, BK)
        acc = tl.dot(part, w.load([k, n]) if TURNED else w.load([n, k]).T, acc)
    if PARTS == 2:
        left, right = acc.reshape(BM, 2, WIDE).permute(0, 2, 1).split()
        _finish(left, own, first, y, bias, client, m, n, N, high, wide, BACK, BIAS, FAST, BM, WIDE, WARPS)
        _finish(right, own, second, y, bias, client, m, n + WIDE, N, high, wide, BACK, BIAS, FAST, BM, WIDE, WARPS)
    else:
        _finish(acc, own, first, y, bias, client, m, n, N, high, wide, BACK, BIAS, FAST, BM, WIDE, WARPS)


@late
@jit(do_not_specialize=["rows", "tiles"])
def _hidden(
    x, w, kept, y, bias, rows, N, K, tiles,
    BACK: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, WARPS: tl.constexpr,
    LASTING: tl.constexpr,
):  # fmt: skip
    """Tiles of y: gelu(x w + bias), which leaves the slope there in `kept`; with BACK, x w times the slope in `kept`.
    x, w and y are descriptors. A LASTING program goes on to other tiles."""
    if LASTING:
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _tile(tile, x, w, kept, y, bias, rows, N, K, BACK, BIAS, TURNED, FAST, BM, BN, BK, PARTS, WARPS)
    else:
        _tile(tl.program_id(0), x, w, kept, y, bias, rows, N, K, BACK, BIAS, TURNED, FAST, BM, BN, BK, PARTS, WARPS)


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes rows [G, N, inputs] and a weight [outputs, inputs] like these, where they lie. For
    float16 one byte is too little."""
    aligned = x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0
    return fits(x, weight) and aligned and x.dtype != torch.float16


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, cut: Tiling) -> tuple[Tensor, Tensor]:
    """gelu(h) and the slope there, in bytes, of h = x W^T + b, for x [G, N, inputs] and W [outputs, inputs]."""
    kept = room(x, len(weight))
    return _run(x, weight, kept, bias, False, cut), kept


def room(x: Tensor, hidden: int) -> Tensor:
    """Memory for the bytes of so many slopes of every row of x."""
    groups, rows, _ = x.shape
    return blank(groups, -(-rows // 64), -(-hidden // 64) * 4096, dtype=torch.uint8, device=x.device)


def backward(g: Tensor, weight: Tensor, kept: Tensor, cut: Tiling) -> Tensor:
    """(g W) gelu'(h), of g [G, N, outputs], W [outputs, hidden] and the slopes in bytes."""
    return _run(g, weight.mT, kept.contiguous(), None, True, cut)


def slopes(kept: Tensor, rows: int, hidden: int) -> Tensor:
    """The slopes [G, rows, hidden] that are kept as bytes."""
    blocks = kept.view(len(kept), -(-rows // 64), -(-hidden // 64), 2, 4, 8, 4, 8, 2)
    whole = blocks.permute(0, 1, 4, 3, 5, 2, 7, 6, 8).reshape(len(kept), -(-rows // 64) * 64, -1)
    return (whole[:, :rows, :hidden].float() - ZERO) / STEPS


def _run(x: Tensor, weight: Tensor, kept: Tensor, bias: Tensor | None, back: bool, cut: Tiling) -> Tensor:
    x, (groups, rows, inputs), outputs = dense(x), x.shape, len(weight)
    y, turned = blank(groups, rows, outputs, dtype=x.dtype, device=x.device), weight.stride(-1) != 1
    bm, bn, bk = cut[:3]
    shared = (weight.mT, [bk, bn]) if turned else (weight, [bn, bk])
    boxes: tuple[tuple[Tensor, list[int]], ...] = ((x, [1, bm, bk]), shared, (y, [1, bm, bn // cut.parts]))
    at_x, at_w, at_y = (TensorDescriptor.from_tensor(t, box) for t, box in boxes)
    tiles = groups * -(-rows // bm) * -(-outputs // bn)
    _hidden[(cut.programs(tiles, x),)](
        at_x, at_w, kept.view(torch.int32), at_y, y if bias is None else bias, rows, outputs, inputs, tiles, back,
        bias is not None, turned, not INTERPRETED, bm, bn, bk, cut.parts, cut.warps, cut.lasting > 0,
        num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return y
