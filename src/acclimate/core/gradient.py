"""The gradient of a pure function, by the shortest way there is.

Under `vmap`, and where gradients are nested, that is a level of torch's function transforms. A client that runs alone
needs none: autograd gives the same numbers and spares the overhead, which counts on a CPU.

`grad` and `grad_and_value` are those of `torch.func`, for the first argument. The originals import torch's compiler at
their first call, to make sure that it is off; that takes seconds, in every process. What has not been imported is off.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any

import torch
from torch import Tensor
from torch._C import _functorch as levels
from torch.autograd.graph import disable_saved_tensors_hooks
from torch.utils._pytree import tree_flatten, tree_map_only, tree_unflatten

from . import tree
from .tree import Tree

NO_HOOKS = "a gradient inside of a function transform takes no hooks for saved tensors"
COMPILER = "torch._dynamo.compiled_autograd"
"""What compiles the steps of autograd, where somebody has switched it on."""


def gradient(f: Callable[[Tree], tuple[Tensor, Tree]], at: Tree) -> tuple[Tree, Tree]:
    """The gradient of the scalar that f gives first, and what it gives besides."""
    leaves = tree.leaves(at)
    nested = torch._C._are_functorch_transforms_active() or any(leaf.requires_grad for leaf in leaves)
    if nested or not leaves:
        found: tuple[Tree, Tree] = grad(f, has_aux=True)(at)
        return found
    with torch.enable_grad():
        tracked: Tree = tree.map(lambda x: x.detach().requires_grad_(), at)
        value, besides = f(tracked)
        parts = _of(value, tree.leaves(tracked))
    return tree.map(lambda _: next(parts), at), tree.map(lambda x: x.detach(), besides)


def grad(f: Callable[..., Any], has_aux: bool = False) -> Callable[..., Any]:
    """A function that gives the gradient of the scalar f(at, ...) for `at`; with `has_aux` f gives a pair, and so does
    this: the gradient, and what comes second."""

    def slopes(at: Any, *more: Any) -> Any:
        found, _, besides = _transformed(f, has_aux, at, more)
        return (found, besides) if has_aux else found

    return slopes


def grad_and_value(f: Callable[..., Tensor]) -> Callable[..., tuple[Any, Tensor]]:
    """A function that gives the gradient of the scalar f(at, ...) for `at`, and the scalar."""
    return lambda at, *more: _transformed(f, False, at, more)[:2]


def _transformed(f: Callable[..., Any], has_aux: bool, at: Any, more: tuple[Any, ...]) -> tuple[Any, Tensor, Any]:
    """The gradient, the value, and what f gives besides, all of them of the level that was there before."""
    with disable_saved_tensors_hooks(NO_HOOKS), _level() as level, torch.enable_grad():
        at, more = tree_map_only(Tensor, lambda x: levels._wrap_for_grad(x, level), (at, more))
        leaves, shape = tree_flatten(at)
        _track(leaves)
        out = f(at, *more)
        value, besides = out if has_aux else (out, None)
        if not isinstance(value, Tensor) or value.dim():
            what = f"a tensor of shape {tuple(value.shape)}" if isinstance(value, Tensor) else type(value).__name__
            raise RuntimeError(f"a gradient is that of a scalar, a tensor without axes; the function gave {what}")
        with _uncompiled():
            parts = list(_of(value, leaves, create_graph=True))
        found = (tree_unflatten(parts, shape), value, besides)
        below: tuple[Any, Tensor, Any] = tree_map_only(Tensor, lambda x: levels._unwrap_for_grad(x, level), found)
        return below


@contextmanager
def _level() -> Iterator[int]:
    """One more level of transforms, as long as this lasts."""
    level = levels._grad_increment_nesting()
    try:
        yield level
    finally:
        levels._grad_decrement_nesting()


def _track(leaves: list[Tensor]) -> None:
    """Let autograd follow these tensors of the topmost level."""
    before = levels.get_inplace_requires_grad_allowed()
    levels.set_inplace_requires_grad_allowed(True)
    try:
        for leaf in leaves:
            leaf.requires_grad_()
    finally:
        levels.set_inplace_requires_grad_allowed(before)


def _uncompiled() -> AbstractContextManager[Any]:
    """As long as this lasts nobody compiles the steps of autograd."""
    off: Callable[[], AbstractContextManager[Any]] = getattr(sys.modules.get(COMPILER), "_disable", nullcontext)
    return off()


def _of(value: Tensor, leaves: list[Tensor], create_graph: bool = False) -> Iterator[Tensor]:
    if not value.requires_grad:  # it depends on none of them
        return iter([torch.zeros_like(leaf) for leaf in leaves])
    found = torch.autograd.grad(
        value, leaves, retain_graph=False, create_graph=create_graph, allow_unused=True, materialize_grads=True
    )
    return iter(found)
