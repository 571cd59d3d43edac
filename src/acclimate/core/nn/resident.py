"""Products of rows with a frozen weight that stays on the processor (`resident_kernels`): when and how they are made.

Of Hopper's GPUs alone, in bfloat16, where 128 rows of the weight leave room for pieces of x.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import torch
from torch import Tensor

from .product_kernels import Tiling, dense, filled, lies, processors
from .rehearsal import blank
from .resident_kernels import _resident, gl, gluon

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

RESIDENT = Tiling(128, 128, 64, 4, 6, 2, 1)
"""The name of its products among the cuts of the other kernels. How rows are cut depends on the kind (`GROUPS`)."""
COLUMNS, DEPTH, HALF = RESIDENT.columns, RESIDENT.depth, RESIDENT.columns // RESIDENT.parts
MEMORY, LEAST = 232_448 - 1024, 3
"""Bytes of a processor's shared memory without those for barriers, and the fewest pieces of x that pay."""
FEW = 24
"""Registers of a thread that only brings."""


class Groups(NamedTuple):
    """How warpgroups share the tiles of a processor."""

    groups: int
    rows: int
    """Of a tile."""
    stages: int
    """Pieces of x that are under way, at most."""
    registers: int
    """Of a thread that multiplies."""
    all: int
    """Of any thread before they are told apart."""


GROUPS = {kind: Groups(3, 64, 10, 152, 120) for kind in ("product", "summed")} | {
    "lowered": Groups(2, 128, 6, 240, 168)
}
"""Small tiles leave more room for pieces of x, and pay unless a tile takes long when its sums are there."""


def usable(x: Tensor, weight: Tensor, rank: int = 0) -> bool:
    """Whether the kernel takes rows [G, N, inputs] and a weight [outputs, inputs] like these, where they lie, and pairs
    of this rank."""
    outputs, inputs = weight.shape
    if gluon is None or x.dtype != torch.bfloat16 or not x.is_cuda:
        return False
    if torch.cuda.get_device_capability(x.device)[0] != 9:
        return False
    fits = not (inputs % DEPTH or outputs % COLUMNS)
    fits = fits and all(_stages(kind, inputs, filled(rank)) >= LEAST for kind in GROUPS)
    aligned = x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0 and 1 in weight.stride()
    return fits and aligned and outputs // COLUMNS <= processors(x) and bool(x.numel())


def lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    """As `hidden_kernels.backward`."""
    return _run("lowered", g, weight.mT, None, kept=kept.contiguous())


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """As `product_kernels.product`."""
    u = blank(*x.shape[:2], a.shape[1], dtype=x.dtype, device=x.device)
    return _run("product", x, weight, bias, a=a, v=v, u=u, scale=scale), u


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """As `product_kernels.summed`."""
    return _run("summed", x, weight, None, v=v, u=u.contiguous())


def several(x: Tensor, outputs: int) -> int:
    """Rows of each of two clients of which every processor has five tiles at least, the last one not whole: as many as
    it takes for warpgroups to wait for each other, and for places of pieces to be used again."""
    return 5 * (processors(x) // (outputs // COLUMNS)) * 128 // 2 + 44


def _stages(kind: str, inputs: int, rank: int) -> int:
    """How many pieces of x there is room for."""
    groups, rows, stages, *_ = GROUPS[kind]
    each = rank if kind == "product" else 0  # rows of A, which come with every piece
    taken = COLUMNS * inputs + groups * (rows * HALF + COLUMNS * rank) + DEPTH * (rank - each)
    return min(stages, (MEMORY // 2 - taken) // (DEPTH * (rows + each)))


def _box(t: Tensor, *shape: int) -> Any:
    return TensorDescriptor.from_tensor(t, list(shape), gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16))


def _run(
    kind: str, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor | None = None, a: Tensor | None = None,
    v: Tensor | None = None, u: Tensor | None = None, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    x, (groups, rows, inputs), outputs = dense(x), x.shape, len(weight)
    y = blank(groups, rows, outputs, dtype=x.dtype, device=x.device)
    rank, turned = 0 if u is None else u.shape[2], weight.stride(-1) != 1
    many, high, _, registers, every = GROUPS[kind]
    lying, r = v is None or lies(v), filled(rank)
    if v is None:
        own = _box(y, 1, r, COLUMNS)  # nobody reads it
    else:
        own = _box(dense(v.mT), 1, r, COLUMNS) if lying else _box(dense(v), 1, COLUMNS, r)
    boxes = (
        _box(x, 1, high, DEPTH),
        _box(weight.mT, DEPTH, COLUMNS) if turned else _box(weight, COLUMNS, DEPTH),
        _box(x if a is None else dense(a), 1, r, DEPTH),
        own,
        _box(y, 1, high, HALF),
    )
    across, down = outputs // COLUMNS, -(-rows // high)
    fours = y if kept is None else kept.view(torch.int32)
    _resident[(processors(x) // across * across,)](
        *boxes, fours, y if u is None else u, y if bias is None else bias, scale, rows, groups * down, down, across,
        -(-rows // 64), outputs // 64, kind, inputs // DEPTH, _stages(kind, inputs, r), turned, lying,
        bias is not None, rank, r, high, COLUMNS, DEPTH, registers, FEW, many, num_warps=4, maxnreg=every,
    )  # fmt: skip
    return y
