"""The gradient of a pure function, by the shortest way there is.

Under `vmap`, and where gradients are nested, that is `torch.func.grad`. A client that runs alone needs none of its
levels: autograd gives the same numbers and spares their overhead, which counts on a CPU.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import torch
from torch import Tensor
from torch.func import grad as transformed

from . import tree
from .tree import Tree


def gradient(f: Callable[[Tree], tuple[Tensor, Tree]], at: Tree) -> tuple[Tree, Tree]:
    """The gradient of the scalar that f gives first, and what it gives besides."""
    leaves = tree.leaves(at)
    nested = torch._C._are_functorch_transforms_active() or any(leaf.requires_grad for leaf in leaves)
    if nested or not leaves:
        found: tuple[Tree, Tree] = transformed(f, has_aux=True)(at)
        return found
    with torch.enable_grad():
        tracked: Tree = tree.map(lambda x: x.detach().requires_grad_(), at)
        value, besides = f(tracked)
        parts = _of(value, tree.leaves(tracked))
    return tree.map(lambda _: next(parts), at), tree.map(lambda x: x.detach(), besides)


def _of(value: Tensor, leaves: list[Tensor]) -> Iterator[Tensor]:
    if not value.requires_grad:  # it depends on none of them
        return iter([torch.zeros_like(leaf) for leaf in leaves])
    return iter(torch.autograd.grad(value, leaves, allow_unused=True, materialize_grads=True))
