"""Work that a CPU does sample by sample, with plain tensors, although it is written for `vmap`.

Where every sample tunes a copy of the model, nothing is shared between samples, and a mapped step holds the patches,
the feature maps and the gradients of all of them at once. Plain autograd and torch's own operations need no rules for
`vmap`. On x86, samples with many views of many pixels took half to two thirds of the time one after the other, small
ones up to three times as long: so the size decides. (That large ones leave the caches is our guess at the reason.)
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any

import torch
from torch import Tensor

from . import tree
from .loops import differentiates
from .nn.mapping import is_tracked, led
from .tree import Tree

LEAST = 2**14
"""Numbers in all views of a sample from which it is computed by itself. Below, calls cost more than numbers."""

_together: ContextVar[bool] = ContextVar("together", default=False)


@contextmanager
def together(whether: bool = True) -> Iterator[None]:
    """Inside, nothing is taken apart if `whether`: for functions that themselves hold a number per client."""
    token = _together.set(whether or _together.get())
    try:
        yield
    finally:
        _together.reset(token)


def pays(model: Tree, rows: Tree, numbers: int) -> bool:
    """Whether a model's copies for these rows are tuned one by one, each on so many numbers at a time."""
    given = [*tree.leaves(model), *tree.leaves(rows)]
    if numbers < LEAST or given[0].device.type != "cpu" or _together.get() or differentiates():
        return False
    if torch.is_grad_enabled() and any(map(is_tracked, given)):
        return False
    return any(x.dim() == 4 for x in tree.leaves(model["vars"]["params"]))  # it has convolutions


def one_by_one(f: Callable[[Tree, Tree], Tensor], shared: Tree, rows: Tree) -> Tensor:
    """`f(shared, row)` of every row of the tree `rows`, one after the other, stacked.

    Under `vmap`, over clients say, f still meets one client's plain tensors. It must get all tensors as arguments.
    """

    def call(leaves: list[Tensor]) -> Tensor:
        given = iter(leaves)
        return f(*(tree.map(lambda _: next(given), like) for like in (shared, rows)))

    own, each = ([x.unsqueeze(0) for x in tree.leaves(t)] for t in (shared, rows))
    done: Tensor = _OneByOne.apply(call, len(own), *own, *each)
    return done[0]


class _OneByOne(torch.autograd.Function):
    """Outputs [G, N, ...] of G clients with N samples each. Clients have [G, ...], samples [G, N, ...]."""

    @staticmethod
    def forward(call: Callable[[list[Tensor]], Tensor], own: int, *leaves: Tensor) -> Tensor:
        done = []
        for client in zip(*leaves, strict=True):
            samples = zip(*client[own:], strict=True)
            done.append(torch.stack([call([*client[:own], *sample]) for sample in samples]))
        return torch.stack(done)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], call: Any, own: int, *leaves: Tensor) -> tuple[Tensor, int]:
        joined = led(info.batch_size, in_dims[2:], leaves)
        return _OneByOne.apply(call, own, *joined).unflatten(0, (info.batch_size, -1)), 0
