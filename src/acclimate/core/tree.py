"""Nested dicts of tensors, and the little arithmetic that federated learning needs on them.

A tree is a tensor or a dict of trees. Nothing else is ever trained, sent or saved, so these functions are all that a
method, a message or a checkpoint is made of. They never write into an argument.
"""

from __future__ import annotations

from collections.abc import Callable, Container, Mapping, Sequence
from typing import Any, TypeAlias

import torch
from torch import Tensor

Tree: TypeAlias = dict[str, Any]
"""A nested dict of tensors. (A recursive type would force a cast at every look-up; `check` is the real guard.)"""

Scalar: TypeAlias = float | Tensor
"""A number that may live on the device."""


def map(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """Apply `f` leaf by leaf to trees of the same shape."""
    if not isinstance(tree, Tensor) and isinstance(tree, Mapping):  # the first question is the quick one
        return {k: map(f, v, *(r[k] for r in rest)) for k, v in tree.items()}
    return f(tree, *rest)


def at_once(f: Callable[..., Any], tree: Any, *rest: Any) -> Any:
    """As `map`, with `f` of lists: of the leaves of each tree, in the order of the first."""
    found: list[tuple[Tensor, ...]] = []
    map(lambda *xs: found.append(xs), tree, *rest)
    done = iter(f(*([xs[i] for xs in found] for i in range(1 + len(rest)))) if found else ())
    return map(lambda _: next(done), tree)


def leaves(tree: Any) -> list[Tensor]:
    """All tensors of a tree, in dict order."""
    if not isinstance(tree, Tensor) and isinstance(tree, Mapping):
        return [leaf for v in tree.values() for leaf in leaves(v)]
    return [tree]


def add(a: Any, b: Any, scale: Scalar = 1.0) -> Any:
    """`a + scale * b`."""
    if not isinstance(scale, Tensor) and scale == 1:
        return map(lambda x, y: x + y, a, b)
    if isinstance(scale, Tensor):
        return map(lambda x, y: x + scale * y, a, b)
    return map(lambda x, y: torch.add(x, y, alpha=scale), a, b)  # one kernel instead of two


def sub(a: Any, b: Any) -> Any:
    """`a - b`."""
    return map(lambda x, y: x - y, a, b)


def scale(a: Any, by: Scalar) -> Any:
    """`by * a`."""
    return map(lambda x: x * by, a)


def zeros(a: Any) -> Any:
    """A tree of zeros of the same shapes."""
    return map(torch.zeros_like, a)


def where(condition: Tensor, a: Any, b: Any) -> Any:
    """`a` where the (scalar) condition holds, else `b`."""
    return map(lambda x, y: torch.where(condition, x, y), a, b)


def dot(a: Any, b: Any) -> Tensor:
    """Inner product over all leaves; zero for empty trees."""
    total = leaves(map(lambda x, y: (x * y).sum(), a, b))  # by name: two trees may have another order
    return torch.stack(total).sum() if total else torch.zeros(())


def norm(a: Any) -> Tensor:
    """Euclidean norm over all leaves."""
    return dot(a, a).sqrt()


def finite(a: Any) -> Tensor:
    """A boolean scalar: every floating-point entry is finite."""
    # the largest is not finite where one is not; looking at each by itself takes longer
    largest = [x.abs().amax() for x in leaves(a) if x.is_floating_point() and x.numel()]
    return torch.isfinite(torch.stack(largest)).all() if largest else torch.ones((), dtype=torch.bool)


def nbytes(a: Any) -> int:
    """Bytes that the tree takes on the wire."""
    return sum(x.numel() * x.element_size() for x in leaves(a))


def numel(a: Any) -> int:
    """How many numbers the tree holds."""
    return sum(x.numel() for x in leaves(a))


def take(a: Any, index: Any) -> Any:
    """Row(s) `index` of every leaf's leading axis."""
    return map(lambda x: x[index], a)


def stack(trees: Sequence[Any]) -> Any:
    """Trees of the same shape, stacked along a new leading axis."""
    return map(lambda *xs: torch.stack(xs), trees[0], *trees[1:])


def put(a: Any, index: Tensor, rows: Any) -> Any:
    """A copy of the stacked tree `a` whose rows `index` are replaced by `rows`."""
    return map(lambda x, r: x.index_copy(0, index, r), a, rows)


def to(a: Any, device: torch.device | str) -> Any:
    """The tree on another device."""
    return map(lambda x: x.to(device), a)


def pick(a: Mapping[str, Any], names: Container[str]) -> Tree:
    """The entries of one dict level that are named, in the dict's own order."""
    return {k: v for k, v in a.items() if k in names}


def drop(a: Mapping[str, Any], names: Container[str]) -> Tree:
    """The entries of one dict level that are not named."""
    return {k: v for k, v in a.items() if k not in names}


def flatten(a: Mapping[str, Any], prefix: str = "") -> dict[str, Tensor]:
    """`{"a": {"b": t}}` as `{"a/b": t}`, the form that is written to disk. Empty dicts vanish."""
    out: dict[str, Tensor] = {}
    for k, v in a.items():
        if isinstance(v, Mapping):
            out |= flatten(v, f"{prefix}{k}/")
        else:
            out[prefix + k] = v
    return out


def unflatten(flat: Mapping[str, Tensor], like: Any, prefix: str = "") -> Any:
    """The inverse of `flatten`, checked against a tree of the expected names, shapes and types."""
    if isinstance(like, Mapping):
        return {k: unflatten(flat, v, f"{prefix}{k}/") for k, v in like.items()}
    name = prefix.removesuffix("/")
    if name not in flat:
        raise ValueError(f"tensor '{name}' is missing")
    got = flat[name]
    if got.shape != like.shape or got.dtype != like.dtype:
        raise ValueError(
            f"tensor '{name}' is {got.dtype} {tuple(got.shape)}, expected {like.dtype} {tuple(like.shape)}"
        )
    return got.to(like.device)


def check(a: Any, where: str) -> None:
    """Refuse anything that is not a nested dict of tensors, naming the place."""
    if isinstance(a, Mapping):
        for k, v in a.items():
            if not isinstance(k, str) or "/" in k:
                raise TypeError(f"{where}: key {k!r} must be a string without '/'")
            check(v, f"{where}[{k!r}]")
    elif not isinstance(a, Tensor):
        raise TypeError(f"{where} must be a tensor or a dict of tensors, not {type(a).__name__}")
