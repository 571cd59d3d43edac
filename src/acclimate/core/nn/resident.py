"""Products of rows with a frozen weight that stays on the processor (`resident_kernels`): when and how they are made.

Of Hopper's GPUs alone, in bfloat16, where 128 rows of the weight leave room for pieces of x.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor

from . import hidden_kernels
from .product_kernels import Tiling, dense, filled, lies, processors
from .rehearsal import blank
from .resident_kernels import _resident, gl, gluon

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

RESIDENT = Tiling(128, 128, 64, 4, 6, 2, 1)
"""How its products are cut, in the words of the other kernels; warps are those of one of the two warpgroups."""
ROWS, COLUMNS, DEPTH, HALF = *RESIDENT[:3], RESIDENT.columns // RESIDENT.parts
MEMORY, LEAST = 232_448 - 1024, 3
"""Bytes of a processor's shared memory without those for barriers, and the fewest pieces of x that pay."""
REGISTERS, FEW, ALL = 240, 24, 168
"""Of a thread that multiplies, of one that only brings, and of any before they are told apart."""


def usable(x: Tensor, weight: Tensor, rank: int = 0) -> bool:
    """Whether the kernel takes rows [G, N, inputs] and a weight [outputs, inputs] like these, where they lie, and pairs
    of this rank."""
    outputs, inputs = weight.shape
    if gluon is None or x.dtype != torch.bfloat16 or not x.is_cuda:
        return False
    if torch.cuda.get_device_capability(x.device)[0] != 9:
        return False
    fits = not (inputs % DEPTH or outputs % COLUMNS) and _stages("product", inputs, filled(rank)) >= LEAST
    aligned = x.data_ptr() % 16 == 0 and weight.data_ptr() % 16 == 0 and 1 in weight.stride()
    return fits and aligned and outputs // COLUMNS <= processors(x) and bool(x.numel())


def raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """As `hidden_kernels.forward`."""
    kept = hidden_kernels.room(x, len(weight))
    return _run("raised", x, weight, bias, kept=kept), kept


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
    return 5 * (processors(x) // (outputs // COLUMNS)) * ROWS // 2 + 44


def _stages(kind: str, inputs: int, rank: int) -> int:
    """How many pieces of x there is room for."""
    each = rank if kind == "product" else 0  # rows of A, which come with every piece
    taken = COLUMNS * inputs + RESIDENT.parts * ROWS * HALF + 2 * COLUMNS * rank + DEPTH * (rank - each)
    return min(RESIDENT.stages, (MEMORY // 2 - taken) // (DEPTH * (ROWS + each)))


def _box(t: Tensor, *shape: int) -> Any:
    return TensorDescriptor.from_tensor(t, list(shape), gl.NVMMASharedLayout.get_default_for(list(shape), gl.bfloat16))


def _run(
    kind: str, x: Tensor, weight: Tensor, bias: Tensor | None, kept: Tensor | None = None, a: Tensor | None = None,
    v: Tensor | None = None, u: Tensor | None = None, scale: float = 1.0,
) -> Tensor:  # fmt: skip
    x, (groups, rows, inputs), outputs = dense(x), x.shape, len(weight)
    y = blank(groups, rows, outputs, dtype=x.dtype, device=x.device)
    rank, turned = 0 if u is None else u.shape[2], weight.stride(-1) != 1
    lying, r = v is None or lies(v), filled(rank)
    if v is None:
        own = _box(y, 1, r, COLUMNS)  # nobody reads it
    else:
        own = _box(dense(v.mT), 1, r, COLUMNS) if lying else _box(dense(v), 1, COLUMNS, r)
    boxes = (
        _box(x, 1, ROWS, DEPTH),
        _box(weight.mT, DEPTH, COLUMNS) if turned else _box(weight, COLUMNS, DEPTH),
        _box(x if a is None else dense(a), 1, r, DEPTH),
        own,
        _box(y, 1, ROWS, HALF),
    )
    across, down = outputs // COLUMNS, -(-rows // ROWS)
    fours = y if kept is None else kept.view(torch.int32)
    _resident[(processors(x) // across * across,)](
        *boxes, fours, y if u is None else u, y if bias is None else bias, scale, rows, groups * down, down, across,
        -(-rows // 64), outputs // 64, kind, inputs // DEPTH, _stages(kind, inputs, r), turned, lying,
        bias is not None, rank, r, ROWS, COLUMNS, DEPTH, REGISTERS, FEW, num_warps=4, maxnreg=ALL,
    )  # fmt: skip
    return y
