"""Linear layers of many clients with few samples and many inputs: under `vmap`, differentiable to any order.

Each client's product is small, and its sum is long: a library's kernel gives it to a few programs, which take as long
as the sum is. Here the sum is cut into parts, by shape alone, which are added up in order. Gradients are products that
a library does well, and of plain tensor code.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor, nn

from . import kernels, switches
from .cutting import cut
from .kernels import AVAILABLE, jit
from .mapping import is_batched, led
from .rehearsal import blank, late

if AVAILABLE:
    import triton.language as tl

LONG, FEW = 512, 64
"""Inputs from which on, and samples up to which, a sum is cut into parts."""
PROGRAMS, LEAST = 512, 256
"""Programs that fill a device, and the inputs that a part has at least."""
BLOCK, AHEAD = 256, 8
"""Numbers whose parts one program adds up, and how many parts it asks for at a time."""


@late
@jit(do_not_specialize=["clients"])
def _linear(
    x, w, parts, batch, clients, span,
    IN: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr, DEPTH: tl.constexpr,
    PRECISION: tl.constexpr,
):  # fmt: skip
    """parts[s, g, m, n] = sum over the inputs k of part s of x[g, m, k] * w[g, n, k]."""
    across: tl.constexpr = (OUT + COLS - 1) // COLS
    tiles = tl.cdiv(batch, ROWS) * across
    tile = tl.program_id(0) % tiles
    client = ((tl.program_id(0) // tiles) % clients).to(tl.int64)
    part = tl.program_id(0) // (tiles * clients)
    m = (tile // across) * ROWS + tl.arange(0, ROWS)
    n = (tile % across) * COLS + tl.arange(0, COLS)
    x += client * batch * IN
    w += client * (OUT * IN)
    total = tl.zeros((ROWS, COLS), dtype=tl.float32)
    for begin in range(part * span, tl.minimum(part * span + span, IN), DEPTH):
        k = begin + tl.arange(0, DEPTH)
        a = tl.load(x + m[:, None] * IN + k[None, :], mask=(m < batch)[:, None] & (k < IN)[None, :], other=0.0)
        b = tl.load(w + n[None, :] * IN + k[:, None], mask=(n < OUT)[None, :] & (k < IN)[:, None], other=0.0)
        total = tl.dot(a, b, total, input_precision=PRECISION)
    to = parts + ((part * clients + client) * batch + m[:, None]) * OUT + n[None, :]
    tl.store(to, total, mask=(m < batch)[:, None] & (n < OUT)[None, :])


@late
@jit
def _total(
    parts, bias, y, total, count, each,
    OUT: tl.constexpr, BIAS: tl.constexpr, RELU: tl.constexpr, BLOCK: tl.constexpr, AHEAD: tl.constexpr,
):  # fmt: skip
    """y[g, m, n] = the sum over parts, in order, with bias[g, n] and ReLU after it; a client has `each` numbers."""
    at = tl.program_id(0) * BLOCK + tl.arange(0, BLOCK)
    real = at < total
    sum = tl.zeros((BLOCK,), dtype=tl.float32)
    for first in range(0, count, AHEAD):  # loads of several parts are under way at a time
        for more in tl.static_range(AHEAD):
            sum += tl.load(parts + at, mask=(at < total) & (at * 0 + first + more < count), other=0.0)
            parts += total
    if BIAS:
        sum += tl.load(bias + (at // each) * OUT + at % OUT, mask=real, other=0.0).to(tl.float32)
    if RELU:
        sum = tl.where(sum <= 0, 0.0, sum)
    tl.store(y + at, sum.to(y.dtype.element_ty), mask=real)


class PureLinear(nn.Linear):
    """A linear layer that stays fast under `vmap` with weights per client."""

    def forward(self, input: Tensor) -> Tensor:
        done = self.at_once(input, False)
        return super().forward(input) if done is None else done

    def at_once(self, input: Tensor, relu: bool) -> Tensor | None:
        """The layer, and ReLU after it where that follows, by their kernels; None where these do not serve."""
        if not serves(input, self.weight):
            return None
        bias = None if self.bias is None else self.bias.unsqueeze(0)
        y: Tensor = _Linear.apply(input.unsqueeze(0), self.weight.unsqueeze(0), bias, relu).squeeze(0)
        return y


def serves(x: Tensor, w: Tensor) -> bool:
    """Whether the kernel is for this input, clients mapped over."""
    if not (kernels.takes(x) and is_batched(x) and is_batched(w)):  # first: an exported layer is not to ask for sizes
        return False
    fits = x.dim() == 2 and x.shape[1] >= LONG and len(x) <= FEW
    return fits and x.dtype == w.dtype and switches.on("linear")


class _Linear(torch.autograd.Function):
    """y [G, B, O] of x [G, B, K], w [G, O, K] and bias [G, O] or None, with ReLU after it or without."""

    @staticmethod
    def forward(x: Tensor, w: Tensor, bias: Tensor | None, relu: bool) -> Tensor:
        return product(x, w, bias, relu)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        x, w, bias, ctx.relu = inputs
        ctx.biased = bias is not None
        ctx.save_for_backward(x, w, output if ctx.relu else None)

    @staticmethod
    def backward(ctx: Any, dy: Tensor) -> tuple[Tensor | None, ...]:
        (x, w, y), wanted = ctx.saved_tensors, ctx.needs_input_grad
        let = torch.ops.aten.threshold_backward(dy, y, 0) if ctx.relu else dy
        dx = let @ w if wanted[0] else None
        dw = let.transpose(1, 2) @ x if wanted[1] else None
        return dx, dw, let.sum(1) if ctx.biased and wanted[2] else None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], x: Tensor, w: Tensor, bias: Tensor | None, relu: bool
    ) -> tuple[Tensor, int]:
        y = _Linear.apply(*led(info.batch_size, in_dims, (x, w, bias)), relu)
        return y.unflatten(0, (info.batch_size, -1)), 0


def product(x: Tensor, w: Tensor, bias: Tensor | None = None, relu: bool = False) -> Tensor:
    """y[g] = x[g] w[g]^T with a bias and ReLU after it, in the precision that torch's switch for products asks for."""
    (clients, batch, inputs), outputs, small = x.shape, w.shape[1], x.dtype != torch.float32
    rows, columns, depth = min(max(1 << (batch - 1).bit_length(), 16), 32), 64 if outputs > 32 else 32, 64
    tiles = clients * cut(batch, rows) * cut(outputs, columns)
    wanted = max(min(cut(PROGRAMS, tiles), inputs // LEAST), 1)
    span = cut(cut(inputs, wanted), depth) * depth
    count = cut(inputs, span)
    parts = blank(count, clients, batch, outputs, dtype=torch.float32, device=x.device)
    precision = "tf32" if torch.backends.cuda.matmul.allow_tf32 or small else "tf32x3"
    _linear[(tiles * count,)](
        x.contiguous(), w.contiguous(), parts, batch, clients, span, inputs, outputs, rows, columns, depth, precision,
        num_warps=4, num_stages=3,
    )  # fmt: skip
    y = blank(clients, batch, outputs, dtype=x.dtype, device=x.device)
    _total[(cut(y.numel(), BLOCK),)](
        parts, y if bias is None else bias.contiguous(), y, y.numel(), count, batch * outputs, outputs,
        bias is not None, relu, BLOCK, AHEAD,
    )  # fmt: skip
    return y
