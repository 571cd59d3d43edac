"""Triton kernels for the gradients of each client's own pair of low rank, in one pass over what they are made of.

Beside a product with shared weights each client has (x A^T) V^T times a scale. Of its rows x, their low products and
the gradient g for the output, these kernels make g V, (g V)^T x and g^T (x A^T), each times the scale. As products of
their own, these read g twice and leave most of a GPU idle, since their results are narrow. Here each program takes a
piece of a client's rows, and a second kernel adds up the pieces, always in the same order, so results repeat to the
bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import torch
from torch import Tensor

from .kernels import AVAILABLE, INTERPRETED, jit
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton
    import triton.language as tl

ROWS, COLUMNS, WARPS, STAGES = (32, 32, 4, 1) if INTERPRETED else (256, 64, 8, 4)
"""Rows of a program, columns that it takes at a time, its warps, and how many loads are under way."""
SUM = 1024
"""Numbers that a program adds up over all pieces."""
MOST = 64
"""The highest rank."""


@late
@jit(do_not_specialize=["rows"])
def _pieces(
    g, x, low, v, to_low, parts, scale, rows, OUT: tl.constexpr, IN: tl.constexpr, RANK: tl.constexpr, R: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """Of BM rows of one client: g V times the scale, and this piece of g^T low [OUT, RANK] and (g V)^T x [RANK, IN]."""
    client, piece = tl.program_id(1).to(tl.int64), tl.program_id(0)
    m, r = piece * BM + tl.arange(0, BM), tl.arange(0, R)
    real, ranks = (m < rows)[:, None], (r < RANK)[None, :]
    row = client * rows + m
    narrow = row[:, None] * RANK + r[None, :]
    seen = tl.load(low + narrow, mask=real & ranks, other=0.0)
    own = parts + (client * tl.num_programs(0) + piece) * ((OUT + IN) * RANK)
    acc = tl.zeros((BM, R), dtype=tl.float32)
    for n in tl.range(0, OUT, BN, num_stages=STAGES):
        c = n + tl.arange(0, BN)
        across = c[:, None] * RANK + r[None, :]
        held = (c < OUT)[:, None] & ranks
        part = tl.load(g + row[:, None] * OUT + c[None, :], mask=real & (c < OUT)[None, :], other=0.0)
        pair = tl.load(v + client * (OUT * RANK) + across, mask=held, other=0.0)
        acc = tl.dot(part, pair, acc)
        tl.store(own + across, tl.dot(tl.trans(part), seen), mask=held)
    back = (acc * scale).to(to_low.dtype.element_ty)
    tl.store(to_low + narrow, back, mask=real & ranks)
    for n in tl.range(0, IN, BN, num_stages=STAGES):
        c = n + tl.arange(0, BN)
        part = tl.load(x + row[:, None] * IN + c[None, :], mask=real & (c < IN)[None, :], other=0.0)
        at = own + OUT * RANK + c[:, None] + r[None, :] * IN
        tl.store(at, tl.dot(tl.trans(part), back), mask=(c < IN)[:, None] & ranks)


@late
@jit(do_not_specialize=["pieces"])
def _added(parts, first, second, pieces, FIRST: tl.constexpr, SECOND: tl.constexpr, BLOCK: tl.constexpr):
    """The sum of a client's pieces: FIRST numbers for the one result, and SECOND for the other."""
    SIZE: tl.constexpr = FIRST + SECOND
    client = tl.program_id(1).to(tl.int64)
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    acc = tl.zeros((BLOCK,), dtype=tl.float32)
    for piece in range(pieces):
        acc += tl.load(parts + (client * pieces + piece) * SIZE + at, mask=at < SIZE, other=0.0)
    sum = acc.to(first.dtype.element_ty)
    tl.store(first + client * FIRST + at, sum, mask=at < FIRST)
    tl.store(second + client * SECOND + at - FIRST, sum, mask=(at >= FIRST) & (at < SIZE))


def usable(x: Tensor, rank: int) -> bool:
    """Whether the kernels take rows like x and pairs of this rank."""
    if not AVAILABLE or not 0 < rank <= MOST or not x.numel():
        return False
    return x.dtype in (torch.float16, torch.bfloat16) if x.is_cuda else INTERPRETED and x.dtype == torch.float32


def slopes(g: Tensor, x: Tensor, low: Tensor, v: Tensor, scale: float = 1.0) -> tuple[Tensor, Tensor, Tensor]:
    """u = scale g V, u^T x and g^T low, of g [G, N, outputs], x [G, N, inputs], low [G, N, rank] and V [G, outputs,
    rank]. Each is contiguous, so that one kernel can go over the gradients of all layers."""
    g, x, low, v = (t.contiguous() for t in (g, x, low, v))
    (groups, rows, inputs), (outputs, rank) = x.shape, v.shape[1:]
    pieces, sizes = -(-rows // ROWS), (outputs * rank, inputs * rank)
    to_low, to_v = blank_like(low), blank_like(v)
    to_a = blank(groups, rank, inputs, dtype=x.dtype, device=x.device)
    parts = blank(groups, pieces, sum(sizes), dtype=torch.float32, device=x.device)
    r = max(16, triton.next_power_of_2(rank))
    _pieces[(pieces, groups)](
        g, x, low, v, to_low, parts, scale, rows, outputs, inputs, rank, r, ROWS, COLUMNS, STAGES, num_warps=WARPS
    )
    _added[(-(-sum(sizes) // SUM), groups)](parts, to_v, to_a, pieces, *sizes, SUM)
    return to_low, to_a, to_v
