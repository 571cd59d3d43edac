"""Attention over few tokens and its gradient by `attention_head_kernels`: when and how.

Of Hopper's GPUs alone, in bfloat16, where a head's queries, keys, values and gradients leave room for two programs on a
processor, or for one.
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor

from .attention_block_kernels import Blocks
from .attention_head_back_kernels import _held_back
from .attention_head_kernels import _held_mix
from .available import VERSION
from .rehearsal import blank, blank_like
from .resident_kernels import gl, gluon

if gluon is not None:
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

HELD = Blocks(64, 64, 64, 4, 0)
"""The name of these kernels among the cuts of the others."""
APART = (3, 8)
"""The first Triton that refuses views of shared memory which overlap, as those of a small block do."""
ROWS, FEW, WIDTH, MOST = 64, 16, 64, 256
"""Rows of a block and of the small one, which is never alone, the width of a head, and the most tokens."""


def usable(qkv: Tensor, heads: int) -> bool:
    """Whether the kernels take [B, T, 3 * heads * d]."""
    if gluon is None or not qkv.is_cuda or qkv.dtype != torch.bfloat16:
        return False
    if torch.cuda.get_device_capability(qkv.device)[0] != 9:
        return False
    fits = qkv.shape[-1] == 3 * heads * WIDTH and FEW < qkv.shape[1] <= MOST
    return fits and qkv.data_ptr() % 16 == 0


def forward(qkv: Tensor, heads: int) -> tuple[Tensor, Tensor]:
    """As `attention_block_kernels.forward`, for all tokens."""
    samples, tokens, width = qkv.shape[0], qkv.shape[1], qkv.shape[2] // 3
    out = blank(samples, tokens, width, dtype=qkv.dtype, device=qkv.device)
    sums = blank(samples, heads, tokens, dtype=torch.float32, device=qkv.device)
    d, (whole, left) = width // heads, _blocks(tokens)
    boxes = _box(qkv, ROWS, d), _box(qkv, FEW, d), _box(out, ROWS, d)
    _held_mix[(samples * heads,)](
        *boxes, qkv, sums, d**-0.5, tokens, heads, d, whole, left, HELD.keys, 1 / math.log(2), num_warps=HELD.warps
    )  # fmt: skip
    return out, sums


def back(qkv: Tensor, out: Tensor, g: Tensor, sums: Tensor, heads: int) -> Tensor:
    """As `attention_kernels.back`."""
    (samples, tokens, width), to = out.shape, blank_like(qkv)
    notes = blank(samples * heads, 2, tokens, dtype=torch.float32, device=qkv.device)
    d, (whole, left) = width // heads, _blocks(tokens)
    boxes = _box(qkv, ROWS, d), _box(qkv, FEW, d), _box(g, ROWS, d), _box(g, FEW, d), _box(to, ROWS, d)
    _held_back[(samples * heads,)](
        *boxes, to, out, g, sums, notes, d**-0.5, tokens, heads, d, whole, left, HELD.keys, HELD.queries,
        1 << (tokens - 1).bit_length(), 1 / math.log(2), num_warps=HELD.warps,
    )  # fmt: skip
    return to


def _blocks(tokens: int) -> tuple[int, int]:
    """How many blocks the tokens are, the last one perhaps not full, and whether a small one is left over."""
    left = int(0 < tokens % ROWS <= FEW and VERSION < APART)
    return tokens // ROWS if left else -(-tokens // ROWS), left


def _box(t: Tensor, rows: int, d: int) -> Any:
    """What the copy engine takes of a head at a time."""
    shape = [1, rows, d]
    return TensorDescriptor.from_tensor(t, shape, gl.NVMMASharedLayout.get_default_for(shape, gl.bfloat16))
