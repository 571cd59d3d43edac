"""Triton kernels for the products around the GELU of a frozen MLP: GELU and its slope happen before a tile is written.

    h = x W1^T + b1, gelu(h)        forward, both from one product
    (g W2) gelu'(h)                 backward, one product and one multiplication

As passes of their own, GELU and its gradient read and write all hidden activations once more. Tiles are read and
written by the GPU's copy engine, which Hopper and later GPUs have. A tile is cut in a few ways (`CUTS`), and which is
fastest is measured (`trials`). Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .product_kernels import usable as fits
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor


class Tiling(NamedTuple):
    """How a product is cut."""

    rows: int
    columns: int
    """Of a tile."""
    depth: int
    """Length of a piece of the sum."""
    warps: int
    stages: int
    """How many loads are under way."""
    parts: int
    """In how many parts, one or two, a tile is written."""
    lasting: bool
    """Whether a program goes on to other tiles; else there is one program for each."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "-".join(str(int(n)) for n in self)


CUTS = (
    (Tiling(32, 64, 32, 4, 1, 1, False), Tiling(64, 32, 32, 4, 1, 2, True))
    if INTERPRETED
    else (
        Tiling(128, 128, 64, 4, 3, 1, False),
        Tiling(128, 128, 64, 4, 2, 2, False),
        Tiling(128, 256, 64, 8, 3, 2, True),
    )
)
"""The cuts that are tried. Of the first, two programs share a processor, of the second three: some compute while one
writes. The third reads less, and has a processor to itself."""


@jit
def bent(x, FAST: tl.constexpr):
    """tanh(x q(x^2)) and half of the slope of x q(x^2): (1 + tanh) / 2 is the normal distribution to 1e-5, times x.

    q is the polynomial of second order with the least such error, up to where tanh is one. FAST is the instruction of
    NVIDIA's GPUs, right to 5e-4, which is a quarter of what rounding to bfloat16 costs.
    """
    t = tl.minimum(x * x, 30.0)
    z = x * (0.79750541 + t * (0.037007955 - t * 0.00035189531))
    if FAST:
        bend = tl.inline_asm_elementwise(
            "tanh.approx.f32 $0, $1;", "=f,f", [z], dtype=tl.float32, is_pure=True, pack=1
        )  # fmt: skip
    else:
        bend = 1.0 - 2.0 / (1.0 + tl.math.exp2(tl.minimum(z * 2.8853901, 64.0)))
    return bend, 0.39875271 + t * (0.055511932 - t * 0.00087973827)


@jit
def _finish(
    acc, kept, y, bias, m, n, N, BACK: tl.constexpr, BIAS: tl.constexpr, FAST: tl.constexpr, WIDE: tl.constexpr
):
    """Write what comes of a tile of sums [rows, WIDE]."""
    if BACK:
        value = kept.load([m, n]).to(tl.float32)
        bend, slope = bent(value, FAST)
        rise = value * slope
        y.store([m, n], (acc * (0.5 + rise + bend * (0.5 - rise * bend))).to(y.dtype))
    else:
        if BIAS:
            cols = n + tl.arange(0, WIDE)
            acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        kept.store([m, n], acc.to(y.dtype))
        bend, _ = bent(acc, FAST)
        half = 0.5 * acc
        y.store([m, n], (half + half * bend).to(y.dtype))


@jit
def _tile(
    tile, x, w, kept, y, bias, N, K,
    BACK: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One tile, which is written in one or two parts."""
    across = tl.cdiv(N, BN)
    n, m = (tile % across) * BN, (tile // across) * BM
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    for k in range(0, K, BK):
        part = x.load([m, k])
        acc = tl.dot(part, w.load([k, n]) if TURNED else w.load([n, k]).T, acc)
    if PARTS == 2:
        left, right = acc.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        _finish(left, kept, y, bias, m, n, N, BACK, BIAS, FAST, BN // 2)
        _finish(right, kept, y, bias, m, n + BN // 2, N, BACK, BIAS, FAST, BN // 2)
    else:
        _finish(acc, kept, y, bias, m, n, N, BACK, BIAS, FAST, BN)


@late
@jit(do_not_specialize=["tiles"])
def _hidden(
    x, w, kept, y, bias, N, K, tiles,
    BACK: tl.constexpr, BIAS: tl.constexpr, TURNED: tl.constexpr, FAST: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, PARTS: tl.constexpr, LASTING: tl.constexpr,
):  # fmt: skip
    """Tiles of y: gelu(x w + bias), which leaves x w + bias in `kept`; with BACK, x w times the slope of GELU at
    `kept`. x, w, kept and y are descriptors. A LASTING program goes on to other tiles."""
    if LASTING:
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _tile(tile, x, w, kept, y, bias, N, K, BACK, BIAS, TURNED, FAST, BM, BN, BK, PARTS)
    else:
        _tile(tl.program_id(0), x, w, kept, y, bias, N, K, BACK, BIAS, TURNED, FAST, BM, BN, BK, PARTS)


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes rows [N, inputs] and a weight [outputs, inputs] like these, where they lie."""
    return fits(x, weight) and x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0


def forward(x: Tensor, weight: Tensor, bias: Tensor | None, cut: Tiling) -> tuple[Tensor, Tensor]:
    """gelu(h) and h = x W^T + b, of x [N, inputs] and W [outputs, inputs]."""
    kept = blank(len(x), len(weight), dtype=x.dtype, device=x.device)
    return _run(x, weight, kept, bias, False, cut), kept


def backward(g: Tensor, weight: Tensor, kept: Tensor, cut: Tiling) -> Tensor:
    """(g W) gelu'(h), of g [N, outputs], W [outputs, hidden] and h [N, hidden]."""
    return _run(g, weight.mT, kept.contiguous(), None, True, cut)


def _run(x: Tensor, weight: Tensor, kept: Tensor, bias: Tensor | None, back: bool, cut: Tiling) -> Tensor:
    x, (rows, inputs), outputs = x.contiguous(), x.shape, len(weight)
    y, turned = blank_like(kept), weight.stride(-1) != 1
    bm, bn, bk = cut[:3]
    wide = bn // cut.parts
    shared = (weight.mT, [bk, bn]) if turned else (weight, [bn, bk])
    boxes: tuple[tuple[Tensor, list[int]], ...] = ((x, [bm, bk]), shared, (kept, [bm, wide]), (y, [bm, wide]))
    described: list[Any] = [TensorDescriptor.from_tensor(t, box) for t, box in boxes]
    tiles = -(-rows // bm) * -(-outputs // bn)
    processors = torch.cuda.get_device_properties(x.device).multi_processor_count if x.is_cuda else 2
    _hidden[(min(tiles, processors) if cut.lasting else tiles,)](
        *described, y if bias is None else bias, outputs, inputs, tiles, back, bias is not None, turned,
        not INTERPRETED, bm, bn, bk, cut.parts, cut.lasting, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return y
