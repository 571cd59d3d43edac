"""A Triton kernel for the products of `product_kernels` whose rows are short: they stay, and all weights pass by.

Tiles of 256 x 128 read every row of x once for each tile across y, and where a row has but 384 numbers, that is as much
as the products themselves take, by arithmetic; whether this is what makes them slow is a guess. Here a program has its
rows of x in registers, makes u = scale x A^T of them once, and goes over all columns of y. Sums have a fixed order, so
results repeat to the bit.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any, NamedTuple

from torch import Tensor

from . import product_kernels
from .kernels import AVAILABLE, INTERPRETED, jit
from .product_kernels import RANK, dense
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl
    from triton.tools.tensor_descriptor import TensorDescriptor

ROWS, DEPTH, WARPS = (32, 32, 4) if INTERPRETED else (128, 128, 8)
"""Rows of a program, numbers of a row that are multiplied at once, and warps."""
MOST = 3
"""How many times DEPTH a row may have, so that it fits in registers."""


class Passing(NamedTuple):
    """How weights pass by."""

    columns: int
    """That are there at a time."""
    stages: int
    """How many loads are under way."""
    parts: int
    """In how many parts, one or two, a tile is written."""

    @property
    def name(self) -> str:
        """What a choice is kept under."""
        return "held " + "-".join(map(str, self))


PASSING = (Passing(64, 1, 1), Passing(64, 1, 2)) if INTERPRETED else (Passing(128, 2, 2), Passing(64, 3, 1))
"""What is tried."""


@jit
def _held(t, REGISTERS: tl.constexpr):
    """A tile that stays in registers: the compiler leaves in shared memory what is loaded and then only multiplied."""
    if REGISTERS:
        t = tl.inline_asm_elementwise("mov.b32 $0, $1;", "=r,r", [t], dtype=t.dtype, is_pure=True, pack=2)
    return t


@late
@jit(do_not_specialize=["rows"])
def _rows(
    x, w, a, v, y, u, bias, scale, rows, N,
    RANKS: tl.constexpr, BIAS: tl.constexpr, GIVEN: tl.constexpr, TURNED: tl.constexpr, REGISTERS: tl.constexpr,
    BM: tl.constexpr, BN: tl.constexpr, BK: tl.constexpr, R: tl.constexpr, TIMES: tl.constexpr, STAGES: tl.constexpr,
    PARTS: tl.constexpr,
):  # fmt: skip
    """BM rows of y. x, w, a, v and y are descriptors; u gets, or has, x A^T times the scale."""
    down = tl.cdiv(rows, BM)
    client, m = tl.program_id(0) // down, (tl.program_id(0) % down) * BM
    r, c = m + tl.arange(0, BM), tl.arange(0, R)
    at = (client * rows + r).to(tl.int64)[:, None] * RANKS + c[None, :]
    real = (r < rows)[:, None] & (c < RANKS)[None, :]
    here = ()
    for i in tl.static_range(TIMES):
        here += (_held(x.load([client, m, i * BK]).reshape(BM, BK), REGISTERS),)  # type: ignore[assignment]
    if GIVEN:
        low = tl.load(u + at, mask=real, other=0.0)
    else:
        sum = tl.zeros((BM, R), dtype=tl.float32)
        for i in tl.static_range(TIMES):
            sum = tl.dot(here[i], a.load([client, 0, i * BK]).reshape(R, BK).T, sum)
        low = (sum * scale).to(u.dtype.element_ty)
        tl.store(u + at, low, mask=real)
    for n in tl.range(0, N, BN, num_stages=STAGES):
        acc = tl.dot(low, v.load([client, 0, n]).reshape(R, BN))
        for i in tl.static_range(TIMES):
            acc = tl.dot(here[i], w.load([i * BK, n]) if TURNED else w.load([n, i * BK]).T, acc)
        if BIAS:
            cols = n + tl.arange(0, BN)
            acc += tl.load(bias + cols, mask=cols < N, other=0.0).to(tl.float32)[None, :]
        if PARTS == 2:
            left, right = acc.to(u.dtype.element_ty).reshape(BM, 2, BN // 2).permute(0, 2, 1).split()
            y.store([client, m, n], left.reshape(1, BM, BN // 2))
            y.store([client, m, n + BN // 2], right.reshape(1, BM, BN // 2))
        else:
            y.store([client, m, n], acc.to(u.dtype.element_ty).reshape(1, BM, BN))


def usable(x: Tensor, weight: Tensor) -> bool:
    """Whether the kernel takes rows [..., inputs] and a weight [outputs, inputs] like these."""
    short = weight.shape[1] % DEPTH == 0 and weight.shape[1] <= MOST * DEPTH
    return short and product_kernels.usable(x, weight)


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float, passing: Passing
) -> tuple[Tensor, Tensor]:
    """As `product_kernels.product`."""
    u = blank(*x.shape[:2], a.shape[1], dtype=x.dtype, device=x.device)
    return _run(x, weight, bias, a, v, u, scale, False, passing), u


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor, passing: Passing) -> Tensor:
    """As `product_kernels.summed`."""
    return _run(x, weight, None, x, v, u.contiguous(), 1.0, True, passing)


def _run(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor,
    v: Tensor,
    u: Tensor,
    scale: float,
    given: bool,
    passing: Passing,
) -> Tensor:
    x, (groups, rows, inputs), (outputs, rank) = dense(x), x.shape, (len(weight), u.shape[2])
    y = blank(groups, rows, outputs, dtype=x.dtype, device=x.device)
    (bn, stages, parts), r = passing, max(RANK, 1 << (rank - 1).bit_length())
    turned = weight.stride(-1) != 1
    shared = (weight.mT, [DEPTH, bn]) if turned else (weight, [bn, DEPTH])
    boxes: tuple[tuple[Tensor, list[int]], ...] = (
        (x, [1, ROWS, DEPTH]), shared, (dense(a), [1, r, DEPTH]), (dense(v.mT), [1, r, bn]),
        (y, [1, ROWS, bn // parts]),
    )  # fmt: skip
    described: list[Any] = [TensorDescriptor.from_tensor(t, box) for t, box in boxes]
    _rows[(groups * -(-rows // ROWS),)](
        *described, u, x if bias is None else bias, scale, rows, outputs, rank, bias is not None, given, turned,
        not INTERPRETED, ROWS, bn, DEPTH, r, inputs // DEPTH, stages, parts, num_warps=WARPS, num_stages=stages,
    )  # fmt: skip
    return y
