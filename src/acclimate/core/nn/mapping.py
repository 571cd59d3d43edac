"""What transforms do to tensors: whether one maps over them, and rules for `vmap` with clients as the leading axis."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor


def led(size: int, dims: tuple[int | None, ...], tensors: tuple[Any, ...]) -> list[Any]:
    """Tensors with the mapped axis folded into that of clients; what has none is repeated."""
    return [
        None if t is None else (t.expand(size, *t.shape) if d is None else t.movedim(d, 0)).flatten(0, 1)
        for t, d in zip(tensors, dims, strict=False)
    ]


def is_batched(x: Tensor) -> bool:
    """Whether some `vmap` is mapping over this tensor."""
    return any(map(torch._C._functorch.is_batchedtensor, _levels(x)))


def is_tracked(x: Tensor) -> bool:
    """Whether some gradient is to go through this tensor."""
    return any(one.requires_grad for one in _levels(x))


def _levels(x: Tensor) -> Iterator[Tensor]:
    """A tensor, and what is within it, transform by transform."""
    yield x
    while torch._C._functorch.is_functorch_wrapped_tensor(x):
        x = torch._C._functorch.get_unwrapped(x)
        yield x


def lowest(x: Tensor) -> Tensor:
    """The tensor under all transforms."""
    return list(_levels(x))[-1]
