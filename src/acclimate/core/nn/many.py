"""One operation for all leaves of a tree: on a GPU, under `vmap`, in one kernel, differentiable to any order.

A model's parameters are many small tensors. A kernel for each takes longer to start than to run.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from typing import Any, TypeAlias

import torch
from torch import Tensor

from .. import tree
from ..tree import Scalar, Tree
from . import choice_kernels, kernels, proven, sum_kernels
from .mapping import is_batched

LESS = (torch.bfloat16, torch.float16)
"""Types that gradients may have where parameters have float32."""
_over: ContextVar[bool] = ContextVar("over", default=False)


@contextmanager
def over(whether: bool) -> Iterator[None]:
    """Sums may be written over their first summands inside, and choices over what is old; nothing reads that any
    more."""
    token = _over.set(whether)
    try:
        yield
    finally:
        _over.reset(token)


def add(a: Tree, b: Tree, scale: Scalar, active: Tensor | None = None) -> Tree:
    """`a + scale * b`, as `tree.add`; clients whose scalar `active` is zero keep a."""
    names = list(tree.flatten(a))
    x, y = ([flat[n] for n in names] for flat in (tree.flatten(a), tree.flatten(b)))
    if isinstance(scale, Tensor) or not all(map(_serves, x, y)):
        if not isinstance(scale, Tensor) and active is None and _is_one(x, y):
            return _each(torch._foreach_add(x, y, alpha=scale), a)
        sum: Tree = tree.add(a, b, scale)
        return sum if active is None else where(active, sum, a)
    return _each(_Add.apply(scale, _over.get(), active, *x, *y) if x else (), a)


def _each(found: Iterable[Tensor], a: Tree) -> Tree:
    """Tensors in the place of the leaves of a tree."""
    them = iter(found)
    return tree.map(lambda _: next(them), a)


def _is_one(x: list[Tensor], y: list[Tensor]) -> bool:
    """Whether these are plain tensors of the server, or of a client that runs alone."""
    plain = not torch._C._are_functorch_transforms_active() and len(x) > 1
    return plain and all(t.is_floating_point() and not t.requires_grad for t in (*x, *y))


def sub(a: Tree, b: Tree) -> Tree:
    """`a - b`, as `tree.sub`; b may be one for all clients."""
    together, others = _apart(a, b, _subtracts)
    found = _Add.apply(-1.0, False, None, *together) if together else ()
    return _woven(found, [x - y for x, y in others], a, b, _subtracts)


Fits: TypeAlias = Callable[[Tensor, Tensor], bool]
"""Whether a kernel takes two tensors."""


def _apart(a: Tree, b: Tree, fits: Fits) -> tuple[list[Tensor], list[tuple[Tensor, Tensor]]]:
    """The leaves of two trees that a kernel takes together, those of the first before those of the second, and the
    other pairs."""
    pairs: list[tuple[Tensor, Tensor]] = []
    tree.map(lambda x, y: pairs.append((x, y)), a, b)
    some = [pair for pair in pairs if fits(*pair)]
    return [pair[k] for k in range(2) for pair in some], [pair for pair in pairs if not fits(*pair)]


def _woven(some: Iterable[Tensor], others: Iterable[Tensor], a: Tree, b: Tree, fits: Fits) -> Tree:
    """What was made of either kind of leaves, each in its place."""
    first, second = iter(some), iter(others)
    return tree.map(lambda x, y: next(first) if fits(x, y) else next(second), a, b)


def add_both(a: Tree, low: Tree, b: Tree, scale: Scalar, active: Tensor | None = None) -> tuple[Tree, Tree]:
    """`a + scale * b`, and the same in the precision of `low`, which is a in it; b may have either. Clients whose
    scalar `active` is zero keep both."""
    names = list(tree.flatten(a))
    x, c, y = ([flat[n] for n in names] for flat in map(tree.flatten, (a, low, b)))
    if isinstance(scale, Tensor) or not x or not all(map(_serves, x, y)):
        sum: Tree = tree.add(a, tree.map(lambda p, g: g.to(p.dtype), a, b), scale)
        coarse = tree.map(lambda s, old: s.to(old.dtype), sum, low)
        return (sum, coarse) if active is None else (where(active, sum, a), where(active, coarse, low))
    found = _AddBoth.apply(scale, _over.get(), active, *x, *c, *y)
    return _each(found[: len(x)], a), _each(found[len(x) :], a)


def where(active: Tensor, new: Tree, old: Tree) -> Tree:
    """`new` of clients whose scalar `active` is not zero, else `old`, as `tree.where`."""
    together, others = _apart(new, old, _alike)
    kept = _Where.apply(_over.get(), active, *together) if together else ()
    holds = active != 0 if others else active
    return _woven(kept, [torch.where(holds, *pair) for pair in others], new, old, _alike)


def cast(a: Tree, dtype: torch.dtype) -> Tree:
    """The tree with its floating-point leaves in this type. Those that are differentiated are cast apart from others:
    else all would be, and a gradient would go on through a frozen network, down to its input."""
    leaves = [x for x in tree.leaves(a) if x.is_floating_point() and x.dtype != dtype]
    if not all((x.is_cuda or kernels.INTERPRETED) and is_batched(x) for x in leaves):
        return tree.map(lambda x: x.to(dtype) if x.is_floating_point() else x, a)
    kinds = ([x for x in leaves if x.requires_grad is wanted] for wanted in (False, True))
    others, slopes = (iter(_cast(some, dtype)) for some in kinds)

    def made(x: Tensor) -> Tensor:
        return x if not x.is_floating_point() or x.dtype == dtype else next(slopes if x.requires_grad else others)

    return tree.map(made, a)


def _cast(some: list[Tensor], dtype: torch.dtype) -> Iterable[Tensor]:
    return _Cast.apply(dtype, *some) if len(some) > 1 else [x.to(dtype) for x in some]


def _serves(x: Tensor, y: Tensor) -> bool:
    kinds = x.dtype == y.dtype or (x.dtype == torch.float32 and y.dtype in LESS)
    return kernels.takes(x) and is_batched(y) and x.shape == y.shape and kinds


def _alike(new: Tensor, old: Tensor) -> bool:
    same = new.dtype == old.dtype and new.shape == old.shape
    return same and kernels.takes(new) and kernels.takes(old) and is_batched(new)


def _subtracts(x: Tensor, y: Tensor) -> bool:
    return _alike(x, y) and x.dtype == torch.float32


def _wide(active: Tensor, like: Tensor) -> Tensor:
    """Whether clients learn, with as many axes as a tensor of theirs has."""
    return (active != 0).view(active.shape + (1,) * (like.dim() - active.dim()))


def _lead(size: int, dims: tuple[int | None, ...], tensors: tuple[Tensor, ...]) -> list[Tensor]:
    """Tensors with the mapped axis first; what has none is repeated."""
    return [t.expand(size, *t.shape) if d is None else t.movedim(d, 0) for t, d in zip(tensors, dims, strict=True)]


class _Add(torch.autograd.Function):
    """x + scale * y of each of the first half of the tensors and its partner; `over` writes it where x was. Clients
    whose `active` is zero keep x."""

    @staticmethod
    def forward(scale: float, over: bool, active: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        x, y = list(tensors[: len(tensors) // 2]), list(tensors[len(tensors) // 2 :])
        if sum_kernels.takes(x, y, active):
            return tuple(sum_kernels.sums(x, y, scale, over, active))
        if active is not None:
            sums = torch._foreach_add(x, y, alpha=scale)
            return tuple(torch.where(_wide(active, a), s, a) for s, a in zip(sums, x, strict=True))
        if not over:
            return tuple(torch._foreach_add(x, y, alpha=scale))
        torch._foreach_add_(x, y, alpha=scale)
        return tuple(x)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.scale = inputs[0]
        _remember(ctx, inputs[2])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        return None, None, None, *slopes, *(_down(ctx, slope) for slope in slopes)

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        scale: float,
        over: bool,
        active: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        dims, half = in_dims[3:], len(tensors) // 2
        lead = _lead(info.batch_size, dims, tensors)
        who = None if active is None else _lead(info.batch_size, in_dims[2:3], (active,))[0]
        return _Add.apply(scale, over and None not in dims[:half], who, *lead), (0,) * half


def _remember(ctx: Any, active: Tensor | None) -> None:
    """Keep for the gradient who learns; nothing where all do."""
    ctx.save_for_backward(*(() if active is None else (active,)))


def _down(ctx: Any, slope: Tensor) -> Tensor:
    """The gradient of what was added, times its scale; zero for clients that keep what they have."""
    down: Tensor = ctx.scale * slope
    return torch.where(_wide(ctx.saved_tensors[0], down), down, 0.0) if ctx.saved_tensors else down


class _AddBoth(torch.autograd.Function):
    """x + scale * y of each of the first and of the last third of the tensors, and the same in the type of the second;
    `over` writes them where x and its lower precision were. Clients whose `active` is zero keep both."""

    @staticmethod
    def forward(scale: float, over: bool, active: Tensor | None, *tensors: Tensor) -> tuple[Tensor, ...]:
        each = len(tensors) // 3
        x, low, y = tensors[:each], tensors[each : 2 * each], tensors[2 * each :]
        if sum_kernels.takes(x, y, active):
            fine, coarse = sum_kernels.sums_in_both(x, low, y, scale, over, active)
            return *fine, *coarse
        sums = [torch.add(a, b, alpha=scale) for a, b in zip(x, y, strict=True)]
        if active is not None:
            sums = [torch.where(_wide(active, a), s, a) for s, a in zip(sums, x, strict=True)]
        return *sums, *(a.to(c.dtype) for a, c in zip(sums, low, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.scale, ctx.kinds = inputs[0], [t.dtype for t in inputs[3:]]
        _remember(ctx, inputs[2])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        each = len(slopes) // 2
        both = [fine + coarse.to(fine.dtype) for fine, coarse in zip(slopes[:each], slopes[each:], strict=True)]
        down = [_down(ctx, s).to(kind) for s, kind in zip(both, ctx.kinds[2 * each :], strict=True)]
        return None, None, None, *both, *[None] * each, *down

    @staticmethod
    def vmap(
        info: Any,
        in_dims: tuple[int | None, ...],
        scale: float,
        over: bool,
        active: Tensor | None,
        *tensors: Tensor,
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        dims, count = in_dims[3:], len(tensors) // 3 * 2
        lead = _lead(info.batch_size, dims, tensors)
        who = None if active is None else _lead(info.batch_size, in_dims[2:3], (active,))[0]
        return _AddBoth.apply(scale, over and None not in dims[:count], who, *lead), (0,) * count


class _Where(torch.autograd.Function):
    """The first half of the tensors for clients whose `active` is not zero, else its partner; `over` writes it where
    the partner was."""

    @staticmethod
    def forward(over: bool, active: Tensor, *tensors: Tensor) -> tuple[Tensor, ...]:
        new, old = tensors[: len(tensors) // 2], tensors[len(tensors) // 2 :]
        if active.dim() == 1 and proven.on(active.device) and all(map(kernels.takes, tensors)):
            return tuple(choice_kernels.chosen(new, old, active, over))
        return tuple(torch.where(_wide(active, a), a, b) for a, b in zip(new, old, strict=True))

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, ...]) -> None:
        ctx.save_for_backward(inputs[1])

    @staticmethod
    def backward(ctx: Any, *slopes: Tensor) -> tuple[Tensor | None, ...]:
        holds = [_wide(ctx.saved_tensors[0], slope) for slope in slopes]
        new = [torch.where(h, slope, 0.0) for h, slope in zip(holds, slopes, strict=True)]
        old = [torch.where(h, 0.0, slope) for h, slope in zip(holds, slopes, strict=True)]
        return None, None, *new, *old

    @staticmethod
    def vmap(
        info: Any, in_dims: tuple[int | None, ...], over: bool, active: Tensor, *tensors: Tensor
    ) -> tuple[tuple[Tensor, ...], tuple[int, ...]]:
        dims, half = in_dims[1:], len(tensors) // 2
        lead = _lead(info.batch_size, dims, (active, *tensors))
        return _Where.apply(over and None not in dims[1 + half :], *lead), (0,) * half


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
