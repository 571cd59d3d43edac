"""Cross-entropy of many clients in two kernels: under `vmap`, differentiable to any order.

Under `vmap` torch takes its own function apart, and asks of every label several times whether it is to be left out. On
a GPU these are two dozen kernels for a few numbers, which counts in a small network's step. Here labels are classes,
all of them count, and the gradient is written down; a kernel computes each. Elsewhere torch's own function is used, or
under `vmap` what it consists of.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import kernels
from .kernels import AVAILABLE, jit
from .mapping import is_batched, led
from .rehearsal import blank, blank_like, late

if AVAILABLE:
    import triton.language as tl

TILE = 4096
"""Logits that a program holds at a time; there is no kernel for more classes."""
LEFT_OUT = -100
"""The class of samples that torch leaves out."""


@late
@jit
def _entropy(
    logits, y, slope, out, batch, of_client,
    C: tl.constexpr, BACK: tl.constexpr, ROWS: tl.constexpr, COLS: tl.constexpr,
):  # fmt: skip
    """out[g]: the mean over the samples of client g; with BACK out[g, b, c]: its gradient, times slope[g]."""
    client = tl.program_id(0).to(tl.int64)
    c = tl.arange(0, COLS)
    sum = tl.zeros((ROWS,), dtype=tl.float32)
    for begin in range(0, batch, ROWS):
        b = begin + tl.arange(0, ROWS)
        real = b < batch
        at = (client * batch + b)[:, None] * C + c[None, :]
        known = real[:, None] & (c < C)[None, :]
        x = tl.load(logits + at, mask=known, other=float("-inf")).to(tl.float32)
        hit = c[None, :] == tl.load(y + client * of_client + b, mask=real, other=0)[:, None]
        x = tl.where(real[:, None], x, 0.0)
        x = x - tl.max(x, 1)[:, None]
        e = tl.exp(x)
        total = tl.sum(e, 1)
        if BACK:
            d = (e / total[:, None] - tl.where(hit, 1.0, 0.0)) * (tl.load(slope + client).to(tl.float32) / batch)
            tl.store(out + at, d.to(out.dtype.element_ty), mask=known)
        else:
            sum += tl.where(real, tl.log(total) - tl.sum(tl.where(hit, x, 0.0), 1), 0.0)
    if not BACK:
        tl.store(out + client, (tl.sum(sum, 0) / batch).to(out.dtype.element_ty))


def cross_entropy(logits: Tensor, y: Tensor, kind: torch.dtype | None = None) -> Tensor:
    """The mean over samples of the negative log-probability [] of classes y [B] under logits [B, C]; `kind` is the type
    that logits are read in, and that the mean has."""
    kind = kind or logits.dtype
    if not ((logits.is_cuda or kernels.INTERPRETED) and is_batched(logits) and logits.dim() == 2):
        return _plain(logits.to(kind), y)
    loss: Tensor = _CrossEntropy.apply(logits.unsqueeze(0), y.unsqueeze(0), kind).squeeze(0)
    return loss


def _plain(logits: Tensor, y: Tensor) -> Tensor:
    """torch's own function, or the mean of what it consists of."""
    if _whole(logits, y):
        return F.cross_entropy(logits, y)
    return each(logits, y).sum() / (y != LEFT_OUT).sum().to(logits)


def each(logits: Tensor, y: Tensor) -> Tensor:
    """The negative log-probability [B] of every sample's class y [B] under logits [B, C], as torch's own function has
    it. Under `vmap` torch would import what it compiles with to take that apart, which takes longer than a small
    network's round: here are the same operations."""
    if _whole(logits, y):
        return F.cross_entropy(logits, y, reduction="none")
    counts = y != LEFT_OUT
    found = logits.log_softmax(1).gather(1, torch.where(counts, y, 0).unsqueeze(1)).squeeze(1)
    return torch.where(counts, -found, 0)


def _whole(logits: Tensor, y: Tensor) -> bool:
    """Whether torch's own function need not be taken apart, or is for labels and logits of another kind."""
    return not (is_batched(logits) and logits.dim() == 2 and y.shape == logits.shape[:1]) or y.is_floating_point()


class _CrossEntropy(torch.autograd.Function):
    """The loss [G] of logits [G, B, C] and classes [G, B]."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor, kind: torch.dtype) -> Tensor:
        if _serves(logits):
            return _run(logits, y, logits, blank(len(logits), dtype=kind, device=logits.device), False)
        return logits.to(kind).log_softmax(2).gather(2, y.unsqueeze(2)).mean((1, 2)).neg()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None, None]:
        return _Slope.apply(*ctx.saved_tensors, slope), None, None

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], logits: Tensor, y: Tensor, kind: torch.dtype
    ) -> tuple[Tensor, int]:
        loss = _CrossEntropy.apply(*led(info.batch_size, in_dims, (logits, y)), kind)
        return loss.unflatten(0, (info.batch_size, -1)), 0


class _Slope(torch.autograd.Function):
    """The gradient [G, B, C] of the loss for the logits, times slope [G]."""

    @staticmethod
    def forward(logits: Tensor, y: Tensor, slope: Tensor) -> Tensor:
        if _serves(logits):
            return _run(logits, y, slope.contiguous(), blank_like(logits.contiguous()), True)
        rows = logits.to(slope.dtype)
        return (_apart(rows.softmax(2), y) * (slope / logits.shape[1])[:, None, None]).to(logits.dtype)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, way: Tensor) -> tuple[Tensor, None, Tensor]:
        logits, y, slope = ctx.saved_tensors
        p, each, way = logits.to(slope.dtype).softmax(2), 1.0 / logits.shape[1], way.to(slope.dtype)
        bent = p * (way - (p * way).sum(2, keepdim=True)) * (slope * each)[:, None, None]
        return bent.to(logits.dtype), None, (_apart(p, y) * way).sum((1, 2)) * each

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], logits: Tensor, y: Tensor, slope: Tensor
    ) -> tuple[Tensor, int]:
        found = _Slope.apply(*led(info.batch_size, in_dims, (logits, y, slope)))
        return found.unflatten(0, (info.batch_size, -1)), 0


def _apart(p: Tensor, y: Tensor) -> Tensor:
    """Probabilities less those of the labels."""
    classes = torch.arange(p.shape[2], device=y.device)
    return p - (y.unsqueeze(2) == classes).to(p.dtype)


def _serves(logits: Tensor) -> bool:
    return kernels.takes(logits) and 0 < logits.shape[2] <= TILE and logits.shape[1] > 0


def _run(logits: Tensor, y: Tensor, slope: Tensor, out: Tensor, back: bool) -> Tensor:
    clients, batch, classes = logits.shape
    columns = max(1 << (classes - 1).bit_length(), 2)
    rows = min(max(1 << (batch - 1).bit_length(), 2), max(TILE // columns, 1))
    y = y if y.stride(1) == 1 else y.contiguous()
    _entropy[(clients,)](logits.contiguous(), y, slope, out, batch, y.stride(0), classes, back, rows, columns)
    return out
