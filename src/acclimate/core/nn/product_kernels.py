"""A Triton kernel for products of rows with weights that all clients share, and each client's own pair of low rank.

    y = x W^T + b + (x A^T) V^T

W and b are the same for all clients, A and V each client's own. Bias and pair cost passes over x and y if they are
kernels of their own; here they happen before y is written. Tiles are read and written by the GPU's copy engine, which
Hopper and later GPUs have. Sums have a fixed order, so results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank, late

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
    lasting: int
    """How many programs of a processor go on to other tiles; 0 where there is one program for each tile."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "-".join(map(str, self))

    def programs(self, tiles: int, x: Tensor) -> int:
        """How many programs there are for so many tiles, on the device of x."""
        return min(tiles, self.lasting * processors(x)) or tiles


def processors(x: Tensor) -> int:
    """How many processors the device of x has."""
    return int(torch.cuda.get_device_properties(x.device).multi_processor_count) if x.is_cuda else 2


CUTS = (
    (Tiling(32, 64, 32, 4, 1, 1, 1), Tiling(32, 64, 32, 4, 1, 2, 0))
    if INTERPRETED
    else (
        Tiling(256, 128, 64, 8, 3, 1, 1),
        Tiling(256, 128, 64, 8, 3, 2, 1),
        Tiling(128, 128, 64, 4, 3, 1, 0),
        Tiling(128, 128, 64, 4, 2, 2, 2),
    )
)
"""The cuts that are tried. Of the last two, two programs share a processor: one computes while the other writes."""
RANK = 16
"""The least rank that the hardware multiplies."""


def filled(rank: int) -> int:
    """The rank that is multiplied with, a power of two: what is missing is filled up with zeros."""
    return max(RANK, 1 << max(rank - 1, 0).bit_length())


def lies(v: Tensor) -> bool:
    """Whether V [G, outputs, rank] is read with its outputs side by side; the copy engine wants rows of 16 bytes."""
    return v.stride(-1) != 1 or v.shape[-1] * v.element_size() % 16 != 0


@jit
def _write(acc, y, bias, client, m, n, N, BIAS: tl.constexpr, BM: tl.constexpr, WIDE: tl.constexpr):
    """Write sums [BM, WIDE] of y."""
    if BIAS:
        cols = n + tl.arange(0, WIDE)
        acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
    y.store([client, m, n], acc.to(y.dtype).reshape(1, BM, WIDE))


@jit
def _tile(
    tile, x, w, a, v, y, u, bias, scale, rows, N, K,
    RANKS: tl.constexpr, BIAS: tl.constexpr, GIVEN: tl.constexpr, TURNED: tl.constexpr, LYING: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One tile, which is written in one or two parts."""
    across, down = tl.cdiv(N, BN), tl.cdiv(rows, BM)
    n, m, client = (tile % across) * BN, ((tile // across) % down) * BM, tile // (across * down)
    acc = tl.zeros((BM, BN), dtype=tl.float32)
    low = tl.zeros((BM, R), dtype=tl.float32)
    for k in range(0, K, BK):
        part = x.load([client, m, k]).reshape(BM, BK)
        acc = tl.dot(part, w.load([k, n]) if TURNED else w.load([n, k]).T, acc)
        if not GIVEN:
            low = tl.dot(part, a.load([client, 0, k]).reshape(R, BK).T, low)
    r, c = m + tl.arange(0, BM), tl.arange(0, R)
    at = (client * rows + r).to(tl.int64)[:, None] * RANKS + c[None, :]
    real = (r < rows)[:, None] & (c < RANKS)[None, :]
    if GIVEN:
        rounded = tl.load(u + at, mask=real, other=0.0)
    else:
        rounded = (low * scale).to(u.dtype.element_ty)
        if n == 0:
            tl.store(u + at, rounded, mask=real)
    own = v.load([client, 0, n]).reshape(R, BN) if LYING else v.load([client, n, 0]).reshape(BN, R).T
    acc = tl.dot(rounded, own, acc)
    if PARTS == 2:
        left, right = acc.reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
        _write(left, y, bias, client, m, n, N, BIAS, BM, BN // 2)
        _write(right, y, bias, client, m, n + BN // 2, N, BIAS, BM, BN // 2)
    else:
        _write(acc, y, bias, client, m, n, N, BIAS, BM, BN)


@late
@jit(do_not_specialize=["rows", "tiles"])
def _product(
    x, w, a, v, y, u, bias, scale, rows, N, K, tiles,
    RANKS: tl.constexpr, BIAS: tl.constexpr, GIVEN: tl.constexpr, TURNED: tl.constexpr, LYING: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, PARTS: tl.constexpr, LASTING: tl.constexpr,
):  # fmt: skip
    """Tiles of y. x, w, a, v and y are descriptors; u gets, or has, x A^T times the scale. V has its outputs side by
    side if LYING, else its ranks. A LASTING program goes on to other tiles."""
    if LASTING:
        for tile in tl.range(tl.program_id(0), tiles, tl.num_programs(0), flatten=True):
            _tile(
                tile, x, w, a, v, y, u, bias, scale, rows, N, K, RANKS, BIAS, GIVEN, TURNED, LYING, BM, BN, BK, R,
                PARTS,
            )  # fmt: skip
    else:
        _tile(
            tl.program_id(0), x, w, a, v, y, u, bias, scale, rows, N, K, RANKS, BIAS, GIVEN, TURNED, LYING, BM, BN, BK,
            R, PARTS,
        )  # fmt: skip


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes rows [..., inputs] and a weight [outputs, inputs] like these."""
    if not AVAILABLE or any(n % 8 for n in weight.shape) or 1 not in weight.stride() or not x.numel():
        return False
    if not x.is_cuda:
        return INTERPRETED and x.dtype == torch.float32
    return x.dtype in (torch.float16, torch.bfloat16) and torch.cuda.get_device_capability(x.device)[0] >= 9


def dense(t: Tensor) -> Tensor:
    """A tensor in the plain order, by its strides too where an axis has length one."""
    return t.reshape(-1).view(t.shape)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float = 1.0, cut: Tiling = CUTS[0]
) -> tuple[Tensor, Tensor]:
    """x W^T + b + u V^T and u = scale x A^T, of x [G, N, inputs], weight [outputs, inputs], A [G, rank, inputs] and V
    [G, outputs, rank]."""
    u = blank(*x.shape[:2], a.shape[1], dtype=x.dtype, device=x.device)
    return _run(x, weight, bias, a, v, u, scale, False, cut), u


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor, cut: Tiling = CUTS[0]) -> Tensor:
    """x W^T + u V^T, of u [G, N, rank]."""
    return _run(x, weight, None, x, v, u.contiguous(), 1.0, True, cut)


def _run(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, u: Tensor, scale: float, given: bool,
    cut: Tiling,
) -> Tensor:  # fmt: skip
    x, (groups, rows, inputs), (outputs, rank) = dense(x), x.shape, (len(weight), u.shape[2])
    y = blank(groups, rows, outputs, dtype=x.dtype, device=x.device)
    (bm, bn, bk), r = cut[:3], filled(rank)
    turned, lying = weight.stride(-1) != 1, lies(v)
    own = (dense(v.mT), [1, r, bn]) if lying else (dense(v), [1, bn, r])
    shared = (weight.mT, [bk, bn]) if turned else (weight, [bn, bk])
    boxes: tuple[tuple[Tensor, list[int]], ...] = (
        (x, [1, bm, bk]), shared, (dense(a), [1, r, bk]), own, (y, [1, bm, bn // cut.parts]),
    )  # fmt: skip
    described: list[Any] = [TensorDescriptor.from_tensor(t, box) for t, box in boxes]
    tiles = groups * -(-rows // bm) * -(-outputs // bn)
    _product[(cut.programs(tiles, x),)](
        *described, u, x if bias is None else bias, scale, rows, outputs, inputs, tiles, rank, bias is not None, given,
        turned, lying, bm, bn, bk, r, cut.parts, cut.lasting > 0, num_warps=cut.warps, num_stages=cut.stages,
    )  # fmt: skip
    return y
