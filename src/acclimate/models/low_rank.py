"""A product with weights that all clients share, and beside it each client's own product of low rank.

    y = x W^T + b + u V^T,  u = scale x A^T

Under `vmap` the clients' rows go through one product with W. Where `core.nn.product_kernels` serves, its kernel adds b
and the pair's part before y is written; else torch's products do: written out, each of these sums would read and write
all of y once more. `core.nn.pair_kernels` gives the gradients of A and V. Any order of gradient works. W and b are
frozen.
"""

from __future__ import annotations

from functools import partial
from typing import Any, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function

from ..core.nn import beside, trials

Own: TypeAlias = tuple[Tensor, Tensor, float]
"""A client's pair A, V, and its scale."""


def linear(
    x: Tensor,
    weight: Tensor,
    bias: Tensor | None,
    a: Tensor | None = None,
    v: Tensor | None = None,
    scale: float = 1.0,
) -> Tensor:
    """x W^T + b + scale (x A^T) V^T for x [..., inputs], W [outputs, inputs], A [rank, inputs], V [outputs, rank]."""
    rows = x.reshape(1, -1, x.shape[-1])
    out: Tensor
    if a is None or v is None:
        out = _Frozen.apply(rows, weight, bias)
    else:
        out = _Linear.apply(rows, weight, bias, a[None], v[None], scale)[0]
    return out.reshape(*x.shape[:-1], weight.shape[0])


def joined(size: int, t: Tensor, dim: int | None) -> Tensor:
    """A tensor [G, ...] of all mapped clients as one of more groups."""
    return (t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)


def check_shared(*dims: int | None) -> None:
    """Refuse frozen tensors that `vmap` maps over."""
    if any(d is not None for d in dims):
        raise NotImplementedError("the weights of a frozen layer are the same for all clients")


class _Frozen(Function):
    """Of rows [G, N, inputs], without a pair."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None) -> Tensor:
        return F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        (weight,) = ctx.saved_tensors
        return _Frozen.apply(g, weight.mT, None), None, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, bias: Tensor | None) -> Any:
        check_shared(*dims[1:])
        return _Frozen.apply(joined(info.batch_size, x, dims[0]), weight, bias).unflatten(0, (info.batch_size, -1)), 0


class _Linear(Function):
    """Of groups of rows [G, N, inputs], with A [G, rank, inputs] and V [G, outputs, rank] of each group: y, and u,
    which the gradient for V needs."""

    @staticmethod
    def forward(
        x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float
    ) -> tuple[Tensor, Tensor]:
        return with_pairs(x, weight, bias, a, v, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, _, a, v, ctx.scale = inputs
        ctx.set_materialize_grads(False)
        ctx.save_for_backward(x, weight, a, v, output[1])

    @staticmethod
    def backward(ctx: Any, g: Tensor | None, more: Tensor | None) -> Any:
        x, weight, a, v, low = ctx.saved_tensors
        g = torch.zeros(*x.shape[:-1], weight.shape[0], dtype=x.dtype, device=x.device) if g is None else g
        to_low, to_a, to_v = slopes(g, x, low, v, ctx.scale, more)
        to_x = _Summed.apply(g, weight.mT, to_low, a.mT) if ctx.needs_input_grad[0] else None
        return to_x, None, None, to_a, to_v, None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        check_shared(*dims[1:3])
        x, weight, bias, a, v, scale = given
        size = info.batch_size
        own = joined(size, a, dims[3]), joined(size, v, dims[4])
        found = _Linear.apply(joined(size, x, dims[0]), weight, bias, *own, scale)
        return tuple(t.unflatten(0, (size, -1)) for t in found), (0, 0)


def with_pairs(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float
) -> tuple[Tensor, Tensor]:
    """y of groups of rows, and u; no gradient."""
    if trials.serves(x, weight, a.shape[1]):
        return beside.product(x, weight, bias, a, v, scale)
    low = x @ (a.mT * scale)
    return F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1).baddbmm_(low, v.mT), low


def slopes(
    g: Tensor, x: Tensor, low: Tensor, v: Tensor, scale: float, more: Tensor | None
) -> tuple[Tensor, Tensor, Tensor]:
    """What comes to x A^T, A and V from the gradient g of y. Where the gradient is differentiated again, u has one of
    its own: `more`."""
    to_low, to_a, to_v = _Slopes.apply(g, x, low, v, scale)
    if more is not None:
        to_low, to_a = to_low + more * scale, to_a + (more * scale).mT @ x
    return to_low, to_a, to_v


class _Slopes(Function):
    """What comes to x A^T, A and V from the gradient g of y, by groups: scale g V, that times x, and g^T u."""

    @staticmethod
    def forward(g: Tensor, x: Tensor, low: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
        return (trials.slopes if trials.serves_pairs(x, v) else _slopes)(g, x, low, v, scale)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        *kept, ctx.scale = inputs
        ctx.save_for_backward(*kept)

    @staticmethod
    def backward(ctx: Any, *wanted: Tensor) -> Any:
        back: Any = torch.func.vjp(partial(_slopes, scale=ctx.scale), *ctx.saved_tensors)[1]
        return *back(wanted), None

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Any) -> Any:
        size = info.batch_size
        each = (joined(size, t, d) for t, d in zip(given[:4], dims[:4], strict=True))
        return tuple(t.unflatten(0, (size, -1)) for t in _Slopes.apply(*each, given[4])), (0, 0, 0)


def _slopes(g: Tensor, x: Tensor, low: Tensor, v: Tensor, scale: float) -> tuple[Tensor, Tensor, Tensor]:
    to_low = g @ (v * scale)
    return to_low, to_low.mT @ x, g.mT @ low


class _Summed(Function):
    """x W^T + u V^T by groups, as one sum."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, low: Tensor, v: Tensor) -> Tensor:
        if trials.serves(x, weight, low.shape[-1]):
            return beside.summed(x, weight, low, v)
        return F.linear(x.reshape(-1, x.shape[-1]), weight).view(*x.shape[:-1], -1).baddbmm_(low, v.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        ctx.save_for_backward(*inputs[1:])

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        weight, low, v = ctx.saved_tensors
        return _Frozen.apply(g, weight.mT, None), None, g @ v, g.mT @ low

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], x: Tensor, weight: Tensor, *own: Tensor) -> Any:
        check_shared(dims[1])
        size = info.batch_size
        low, v = (joined(size, t, d) for t, d in zip(own, dims[2:], strict=True))
        return _Summed.apply(joined(size, x, dims[0]), weight, low, v).unflatten(0, (size, -1)), 0


def pairs(*given: Own) -> Own:
    """Pairs A, B with their scales as one: A of all ranks, V, and a scale. On a GPU the scale of a lone pair is left to
    the products, which spares it a kernel; else scales are in V, so that one pair counts as it does among several."""
    if len(given) == 1 and given[0][0].is_cuda:
        return given[0]
    first, second = [a for a, _, _ in given], [b * scale for _, b, scale in given]
    return (first[0], second[0], 1.0) if len(given) == 1 else (torch.cat(first), torch.cat(second, 1), 1.0)
