"""One operation for all leaves of a tree: on a GPU, under `vmap`, in one kernel, differentiable to any order.

A model's parameters are many small tensors. A kernel for each takes longer to start than to run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from .. import tree
from ..tree import Scalar, Tree
from .mapping import is_batched

_over: ContextVar[bool] = ContextVar("over", default=False)


@contextmanager
def over(whether: bool) -> Iterator[None]:
    """Sums may be written over their first summands inside, which nothing reads any more."""
    token = _over.set(whether)
    try:
        yield
    finally:
        _over.reset(token)


def add(a: Tree, b: Tree, scale: Scalar) -> Tree:
    """`a + scale * b`, as `tree.add`."""
    names = list(tree.flatten(a))
    x, y = ([flat[n] for n in names] for flat in (tree.flatten(a), tree.flatten(b)))
    if isinstance(scale, Tensor) or not all(map(_serves, x, y)):
        sum: Tree = tree.add(a, b, scale)
        return sum
    found = iter(_Add.apply(scale, _over.get(), *x, *y) if x else ())
    return tree.map(lambda _: next(found), a)


def cast(a: Tree, dtype: torch.dtype) -> Tree:
    """The tree with its floating-point leaves in this type."""
    leaves = [x for x in tree.leaves(a) if x.is_floating_point() and x.dtype != dtype]
    if len(leaves) < 2 or not all(x.is_cuda and is_batched(x) for x in leaves):
        return tree.map(lambda x: x.to(dtype) if x.is_floating_point() else x, a)
    found = iter(_Cast.apply(dtype, *leaves))
    return tree.map(lambda x: next(found) if x.is_floating_point() and x.dtype != dtype else x, a)


def _serves(x: Tensor, y: Tensor) -> bool:
    return x.is_cuda and is_batched(x) and is_batched(y) and x.dtype == y.dtype and x.shape == y.shape


class _Add(torch.autograd.Function):
    """x + scale * y of each of the first half of the tensors and its partner; `over` writes it where x was."""

    @staticmethod
    def forward(scale: float, over: bool, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = list(tensors[: len(tensors) // 2]), list(tensors[len(tensors) // 2 :])
        if not over:
            return tuple(torch._foreach_add(x, y, alpha=scale))
        torch._foreach_add_(x, y, alpha=scale)
        return tuple(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.scale = inputs[0]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, *slopes, *(ctx.scale * slope for slope in slopes)

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], scale: float, over: bool, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        dims, half = in_dims[2:], len(tensors) // 2
        lead = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, dims, strict=True)
        ]
        return _Add.apply(scale, over and None not in dims[:half], *lead), (0,) * half


class _Cast(torch.autograd.Function):
    """Tensors in another type."""

    @staticmethod
    def forward(dtype: torch.dtype, *tensors: Tensor) -> tuple[Tensor, ...]:
        made = [torch.empty_like(t, dtype=dtype) for t in tensors]
        torch._foreach_copy_(made, list(tensors))
        return tuple(made)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.kinds = [t.dtype for t in inputs[1:]]

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        kinds = set(ctx.kinds)
        if len(kinds) == 1:
            return None, *_Cast.apply(kinds.pop(), *slopes)
        return None, *(slope.to(kind) for slope, kind in zip(slopes, ctx.kinds, strict=True))

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], dtype: torch.dtype, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int | None, ...]]:
        lead = [t if d is None else t.movedim(d, 0) for t, d in zip(tensors, in_dims[1:], strict=True)]
        return _Cast.apply(dtype, *lead), tuple(None if d is None else 0 for d in in_dims[1:])
