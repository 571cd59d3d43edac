"""Attention over tokens that stays open to `vmap` and to any order of gradient.

torch's fused attention has no second derivative, and under `vmap` it may run one client after the other. Attention has
no weights of its own, so clients are only more samples: their axis joins the batch, and the fused kernels see one large
one. Queries, keys and values stay side by side, as the layer before leaves them and takes their gradient. The
derivative of the gradient, which few ask for, is that of the formula written out.
"""

from __future__ import annotations

from typing import Any

import torch
from torch import Tensor
from torch.autograd import Function

from ..core.nn import heads as by_heads
from ..core.nn import trials

HALF = (torch.float16, torch.bfloat16)
"""What the fused kernels of a GPU compute in."""
aten = torch.ops.aten


def attend(qkv: Tensor, heads: int) -> Tensor:
    """softmax(q k^T / sqrt(d)) v as [batch, tokens, heads * d] for queries, keys and values [batch, tokens, 3 * heads *
    d]: fused on a GPU in half precision, else written out."""
    return fused(qkv, heads) if qkv.is_cuda and qkv.dtype in HALF else _written_out(qkv, heads)


def fused(qkv: Tensor, heads: int) -> Tensor:
    """The same by torch's fused kernels, which keep no matrix of weights."""
    out: Tensor = _Attend.apply(qkv, heads)[0]
    return out


def _apart(t: Tensor, heads: int, parts: int) -> tuple[Tensor, ...]:
    """[batch, tokens, parts * heads * d] as so many [batch, heads, tokens, d], which are views."""
    return tuple(p.transpose(-3, -2) for p in t.unflatten(-1, (parts, heads, -1)).unbind(-3))


def _together(*parts: Tensor) -> Tensor:
    """The reverse of `_apart`; a view where there is one part, and its heads lie side by side."""
    each = [p.transpose(-3, -2).flatten(-2) for p in parts]
    return each[0] if len(each) == 1 else torch.cat(each, -1)


def _weights(q: Tensor, k: Tensor) -> Tensor:
    return (q @ k.mT * q.shape[-1] ** -0.5).softmax(-1)


def _written_out(qkv: Tensor, heads: int) -> Tensor:
    q, k, v = _apart(qkv, heads, 3)
    return _together(_weights(q, k) @ v)


def _gradient(g: Tensor, qkv: Tensor, heads: int) -> Tensor:
    """What <g, attention> gives for q, k and v, in operations that can be differentiated again."""
    (q, k, v), (g,) = _apart(qkv, heads, 3), _apart(g, heads, 1)
    p, scale = _weights(q, k), q.shape[-1] ** -0.5
    dp = g @ v.mT
    ds = p * (dp - (p * dp).sum(-1, keepdim=True)) * scale
    return _together(ds @ k, ds.mT @ q, p.mT @ g)


def _cudnn(x: Tensor) -> bool:
    """Whether cuDNN's kernels are the faster ones: on Hopper and later."""
    return torch.backends.cudnn.enabled and torch.cuda.get_device_capability(x.device)[0] >= 9


def _joined(size: int, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors [batch, ...] of all clients as one batch."""
    each = (t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True))
    return [t.flatten(0, 1) for t in each]


def _library(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
    """Attention by torch's kernels, the logarithms of its sums, and what they know of their random numbers."""
    parts = _apart(qkv, heads, 3)
    if not qkv.is_cuda:
        out, sums = aten._scaled_dot_product_flash_attention_for_cpu(*parts)
        return _together(out), sums, sums.new_zeros(()), sums.new_zeros(())
    if _cudnn(qkv):
        out, sums, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_cudnn_attention(*parts, None, True)
    else:
        out, sums, _, _, _, _, seed, offset, _ = aten._scaled_dot_product_flash_attention(*parts)
    return _together(out), sums, seed, offset


class _Attend(Function):
    """Attention, the logarithms of its sums, and what a GPU's kernel knows of its random numbers (it draws none)."""

    @staticmethod
    def forward(qkv: Tensor, heads: int) -> tuple[Tensor, ...]:
        found = by_heads.forward(qkv, heads, _library) if qkv.is_cuda else None
        if found is None:
            return _library(qkv, heads)
        return *found, qkv.new_empty(0), qkv.new_empty(0)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Any, ...]) -> None:
        qkv, ctx.heads = inputs
        ctx.save_for_backward(qkv, *output)
        ctx.mark_non_differentiable(*output[1:])
        ctx.set_materialize_grads(False)  # zeros that nobody reads, one kernel each

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, *_: Any) -> Any:
        return None if g is None else _Gradient.apply(g, *ctx.saved_tensors, ctx.heads), None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], qkv: Tensor, heads: int) -> Any:
        out, sums, *draws = _Attend.apply(*_joined(info.batch_size, dims[:1], (qkv,)), heads)
        apart = [t.unflatten(0, (info.batch_size, -1)) for t in (out, sums)]
        return (*apart, *draws), (0, 0, None, None)


class _Gradient(Function):
    """The gradient of attention for queries, keys and values."""

    @staticmethod
    def forward(g: Tensor, qkv: Tensor, out: Tensor, sums: Tensor, seed: Tensor, offset: Tensor, heads: int) -> Tensor:
        if trials.serves_attention(qkv, heads):
            return by_heads.back(qkv.contiguous(), out.contiguous(), g.contiguous(), sums.contiguous(), heads)
        kept = (*_apart(g, heads, 1), *_apart(qkv, heads, 3), *_apart(out, heads, 1), sums)
        tokens = qkv.shape[-2]
        if not qkv.is_cuda:
            return _together(*aten._scaled_dot_product_flash_attention_for_cpu_backward(*kept, 0.0, False))
        if _cudnn(qkv):
            draws = (seed, offset, None, None, None, tokens, tokens, 0.0, False)
            return _together(*aten._scaled_dot_product_cudnn_attention_backward(*kept, *draws))
        lengths = (None, None, tokens, tokens, 0.0, False)
        return _together(*aten._scaled_dot_product_flash_attention_backward(*kept, *lengths, seed, offset))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.heads = inputs[-1]
        ctx.save_for_backward(*inputs[:2])

    @staticmethod
    def backward(ctx: Any, wanted: Tensor) -> Any:
        back: Any = torch.func.vjp(lambda g, qkv: _gradient(g, qkv, ctx.heads), *ctx.saved_tensors)[1]
        return (*back(wanted), *[None] * 5)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        found = _Gradient.apply(*_joined(info.batch_size, dims[:4], given[:4]), *given[4:])
        return found.unflatten(0, (info.batch_size, -1)), 0
