"""A product with weights that all clients share, and beside it each client's own product of low rank.

    y = x W^T + b + (x A^T) V^T

Under `vmap` the clients' rows go through one product with W, whose kernel adds b, and what A and V give is added by the
kernel of the last product: written out, each of these sums would read and write all of y once more. The gradient for x
is the same function once more, with W^T, V^T and A^T, so that any order of gradient works. W and b are frozen.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.autograd import Function


def linear(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor | None = None, v: Tensor | None = None) -> Tensor:
    """x W^T + b + (x A^T) V^T for x [..., inputs], W [outputs, inputs], A [rank, inputs] and V [outputs, rank]."""
    rows = x.reshape(1, -1, x.shape[-1])
    pair = (None, None) if a is None or v is None else (a[None], v[None])
    out: Tensor = _Linear.apply(rows, weight, bias, *pair)
    return out.reshape(*x.shape[:-1], weight.shape[0])


class _Linear(Function):
    """Of groups of rows [G, N, inputs], with A [G, rank, inputs] and V [G, outputs, rank] of each group."""

    @staticmethod
    def forward(x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor | None, v: Tensor | None) -> Tensor:
        out = F.linear(x.reshape(-1, x.shape[-1]), weight, bias).view(*x.shape[:-1], -1)
        return out if a is None or v is None else out.baddbmm_(x @ a.mT, v.mT)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Any) -> None:
        x, weight, _, a, v = inputs
        ctx.save_for_backward(x, weight, a, v)

    @staticmethod
    def backward(ctx: Any, g: Tensor) -> Any:
        x, weight, a, v = ctx.saved_tensors
        if a is None:
            return _Linear.apply(g, weight.mT, None, None, None), None, None, None, None
        to_x = _Linear.apply(g, weight.mT, None, v.mT, a.mT) if ctx.needs_input_grad[0] else None
        return to_x, None, None, (g @ v).mT @ x, g.mT @ (x @ a.mT)

    @staticmethod
    def vmap(info: Any, dims: tuple[int | None, ...], *given: Tensor | None) -> Any:
        if dims[1] is not None or dims[2] is not None:
            raise NotImplementedError("the weights of a frozen layer are the same for all clients")
        x, weight, bias, a, v = given
        size = info.batch_size

        def joined(t: Tensor | None, dim: int | None) -> Tensor | None:
            if t is None:
                return None
            return (t.expand(size, *t.shape) if dim is None else t.movedim(dim, 0)).flatten(0, 1)

        groups = (joined(x, dims[0]), weight, bias, joined(a, dims[3]), joined(v, dims[4]))
        return _Linear.apply(*groups).unflatten(0, (size, -1)), 0


def pairs(*given: tuple[Tensor, Tensor, float]) -> tuple[Tensor, Tensor]:
    """Pairs A, B with their scales as one: A of all ranks, and V, which is B times its scale."""
    first, second = [a for a, _, _ in given], [b * scale for _, b, scale in given]
    return (first[0], second[0]) if len(given) == 1 else (torch.cat(first), torch.cat(second, 1))
