"""Which groups of a message a filter works on, and the norm over them."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

import torch
from torch import Tensor

from ..core import Rules, Tree, rng, tree


def unknown(groups: Iterable[str], rules: Rules) -> str | None:
    """The sentence that refuses groups which the message does not have."""
    odd = sorted(set(groups) - set(rules))
    return f"groups={odd} are not in the message, which has {sorted(rules)}" if odd else None


def chosen(up: Mapping[str, Any], groups: Sequence[str]) -> Tree:
    """The named groups of a message; all of them where none is named."""
    return tree.pick(up, groups) if groups else dict(up)


def floats(part: Any) -> list[Tensor]:
    """The floating-point tensors of a tree. Integers (counts, indices) are never clipped, noised or rounded."""
    return [t for t in tree.leaves(part) if t.is_floating_point()]


def as_float(x: Tensor) -> Tensor:
    """The tensor in floating point."""
    return x if x.is_floating_point() else x.to(torch.float32)


def map_floats(f: Callable[[Tensor], Any], part: Any) -> Any:
    """The tree with `f` of its floating-point tensors; the others stay."""
    return tree.map(lambda t: f(t) if t.is_floating_point() else t, part)


def map_keyed(f: Callable[[Tensor, rng.Key], Any], part: Any, key: rng.Key) -> Any:
    """`map_floats` with a key of its own for every tensor, by its place in the tree."""
    places = iter(range(len(floats(part))))
    return map_floats(lambda t: f(t, rng.fold(key, next(places))), part)


def clipped(part: Any, norm: float) -> Any:
    """The tree scaled down, where it must be, to a Euclidean norm over all floating-point entries of at most `norm`."""
    found = floats(part)
    if not found:
        return part
    length = torch.stack([t.double().square().sum() for t in found]).sum().sqrt()
    factor = norm / length.clamp_min(norm)
    return map_floats(lambda t: (t.double() * factor).to(t.dtype), part)
