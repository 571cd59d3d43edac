"""Triton kernels for the hidden layer of an MLP whose weights all clients share: products that apply GELU themselves.

    forward:   kept = h W1^T + b1 and gelu(kept)        backward:   (g W2) * the slope of GELU at kept

As passes of their own, GELU and its gradient read and write the widest activations of a transformer once more each.
Tiles are read and written by the GPU's copy engine, which Hopper and later GPUs have. Results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import NamedTuple

import torch
from torch import Tensor

from .gelu_kernels import normal
from .kernels import AVAILABLE, INTERPRETED, jit
from .product_kernels import usable as usable

if AVAILABLE:
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor


class Shape(NamedTuple):
    """How a product is cut: rows and columns of a tile, a piece of the sum, warps, stages, programs per processor."""

    rows: int
    columns: int
    piece: int
    warps: int
    stages: int
    programs: int


FORWARD = Shape(32, 64, 32, 4, 2, 1) if INTERPRETED else Shape(128, 128, 64, 4, 3, 2)
BACKWARD = Shape(32, 64, 32, 4, 2, 1) if INTERPRETED else Shape(128, 128, 64, 4, 3, 2)


@jit
def _forward(h, w, kept, out, bias, M, N, K, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Tiles of kept and of its GELU, one after the other. All but the bias are descriptors; w is [N, K]."""
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = (tile // across) * BM, (tile % across) * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(h.load([m, k]), w.load([n, k]).T, acc)
        cols = n + tl.arange(0, BN)
        acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        rounded = acc.to(kept.dtype)
        kept.store([m, n], rounded)
        value = rounded.to(tl.float32)
        below, _ = normal(value)
        out.store([m, n], (value * below).to(out.dtype))


@jit
def _backward(g, w, kept, to, M, N, K, tiles, BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr):
    """Tiles of what comes to `kept`. All are descriptors; w is [K, N]."""
    across = tl.cdiv(N, BN)
    for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
        m, n = (tile // across) * BM, (tile % across) * BN
        acc = tl.zeros((BM, BN), dtype=tl.float32)
        for k in range(0, K, BK):
            acc = tl.dot(g.load([m, k]), w.load([k, n]), acc)
        value = kept.load([m, n]).to(tl.float32)
        below, e = normal(value)
        to.store([m, n], (acc * (below + value * e * 0.39894228)).to(to.dtype))


def _launch(kernel, cut: Shape, boxes, rest, m: int, n: int, k: int):
    tiles = -(-m // cut.rows) * -(-n // cut.columns)
    device = boxes[0][0].device
    processors = torch.cuda.get_device_properties(device).multi_processor_count if device.type == "cuda" else 2
    described = [TensorDescriptor.from_tensor(t, box) for t, box in boxes]
    kernel[(min(tiles, cut.programs * processors),)](
        *described, *rest, m, n, k, tiles, *cut[:3], num_warps=cut.warps, num_stages=cut.stages
    )


def forward(h: Tensor, w1: Tensor, b1: Tensor, cut: Shape = FORWARD) -> tuple[Tensor, Tensor]:
    """kept and its GELU of contiguous rows h [M, inputs], W1 [hidden, inputs] and b1."""
    (m, k), n = h.shape, len(w1)
    kept, out = h.new_empty(m, n), h.new_empty(m, n)
    bm, bn, bk = cut[:3]
    boxes = ((h, [bm, bk]), (w1, [bn, bk]), (kept, [bm, bn]), (out, [bm, bn]))
    _launch(_forward, cut, boxes, (b1,), m, n, k)
    return kept, out


def backward(g: Tensor, w2: Tensor, kept: Tensor, cut: Shape = BACKWARD) -> Tensor:
    """What comes to `kept` [M, hidden] from contiguous rows g [M, outputs] through W2 [outputs, hidden]."""
    (m, k), n = g.shape, w2.shape[1]
    to = torch.empty_like(kept)
    bm, bn, bk = cut[:3]
    _launch(_backward, cut, ((g, [bm, bk]), (w2, [bk, bn]), (kept, [bm, bn]), (to, [bm, bn])), (), m, n, k)
    return to
