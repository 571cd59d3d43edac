"""Attention over tokens that stays open to `vmap` and to any order of gradient.

torch's fused attention has no second derivative, and under `vmap` it may run one client after the other. Attention has
no weights of its own, so clients are only more samples: their axis joins the batch, and the fused kernels see one large
one. The derivative of the gradient, which few ask for, is that of the formula written out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

HALF = (torch.float16, torch.bfloat16)
"""What the fused kernels of a GPU compute in."""


def attend(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(d)) v for [batch, heads, tokens, d]: fused on a GPU in half precision, else written out."""
    if q.is_cuda and q.dtype in HALF:
        return fused(q, k, v)
    return _weights(q, k) @ v


def fused(q: Tensor, k: Tensor, v: Tensor) -> Tensor:
    """The same by torch's fused kernels, which keep no matrix of weights."""
    out: Tensor = _Attend.apply(q, k, v)[0]
    return out


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


def _gradients(g: Tensor, q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """What <g, attention> gives for q, k and v, in operations that can be differentiated again."""
    p, scale = _weights(q, k), q.shape[-1] ** -0.5
    dp = g @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return ds @ k, ds.mT @ q, p.mT @ g


def _joined(size: int, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors [batch, ...] of all clients as one batch."""
    each = (t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True))
    return [t.flatten(0, 1) for t in each]


class _Attend(Function):
    """Attention, the logarithms of its sums, and what a GPU's kernel knows of its random numbers (it draws none)."""

    @staticmethod
    def forward(q: Tensor, k: Tensor, v: Tensor) -> tuple[Tensor, ...]:
        if q.is_cuda:
            out, sums, _, _, _, _, seed, offset, _ = torch.ops.aten._scaled_dot_product_flash_attention(q, k, v)
            return out, sums, seed, offset
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(q, k, v)
        return out, sums, sums.new_zeros(()), sums.new_zeros(())

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*inputs, *output)
        ctx.mark_non_differentiable(*output[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor, *_: Any) -> Any:
        return _Gradients.apply(g, *ctx.saved_tensors)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        out, sums, *draws = _Attend.apply(*_joined(info.batch_size, dims, tensors))
        apart = [t.unflatten(0, (info.batch_size, -1)) for t in (out, sums)]
        return (*apart, *draws), (0, 0, None, None)


class _Gradients(Function):
    """The gradients of attention for q, k and v."""

    @staticmethod
    def forward(
        g: Tensor, q: Tensor, k: Tensor, v: Tensor, out: Tensor, sums: Tensor, seed: Tensor, offset: Tensor
    ) -> tuple[Tensor, ...]:
        kept = (g, q, k, v, out, sums)
        if q.is_cuda:
            lengths = (None, None, q.shape[-2], k.shape[-2])
            found = torch.ops.aten._scaled_dot_product_flash_attention_backward(
                *kept, *lengths, 0.0, False, seed, offset
            )
        else:
            found = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(*kept, 0.0, False)
        return tuple(found)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        ctx.save_for_backward(*inputs[:4])

    @staticmethod
    def backward(ctx: Any, *wanted: Any) -> Any:
        back: Any = torch.func.vjp(_gradients, *ctx.saved_tensors)[1]
        return (*back(wanted), None, None, None, None)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *tensors: Tensor) -> Any:
        found = _Gradients.apply(*_joined(info.batch_size, dims[:6], tensors[:6]), *tensors[6:])
        return tuple(t.unflatten(0, (info.batch_size, -1)) for t in found), (0, 0, 0)
