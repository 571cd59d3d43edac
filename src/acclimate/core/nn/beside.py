"""Products beside each client's pair of low rank, by the kernel that is fastest for their shape.

One (`product_kernels`) goes from tile to tile of the result; the other (`held_kernels`) keeps short rows where they are
multiplied. Each must agree with plain code before it is measured.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

from torch import Tensor

from . import fastest, held_kernels, product_kernels, trials
from .held_kernels import PASSING, Passing
from .kernels import INTERPRETED

Kind: TypeAlias = Literal["forward", "biased", "back"]
"""A product without or with a bias, which makes u, or one for a gradient, which is given it."""
LEAST = 2**22
"""Numbers in x from which on ways are measured."""
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""
TILES = "tiles"


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """As `product_kernels.product`."""
    how = _passing("forward" if bias is None else "biased", x, weight, a.shape[1])
    if how is None:
        return product_kernels.product(x, weight, bias, a, v, scale)
    return held_kernels.product(x, weight, bias, a, v, scale, how)


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """As `product_kernels.summed`."""
    how = _passing("back", x, weight, u.shape[-1])
    return product_kernels.summed(x, weight, u, v) if how is None else held_kernels.summed(x, weight, u, v, how)


def _passing(kind: Kind, x: Tensor, weight: Tensor, rank: int) -> Passing | None:
    """How weights pass by rows that stay; None for tiles."""
    if INTERPRETED or x.numel() < LEAST or not held_kernels.usable(x, weight):
        return None
    outputs, inputs = weight.shape
    what = f"{kind} beside rank {rank}, {fastest.about(x.numel() // inputs)} x {inputs} to {outputs}"
    way = fastest.chosen(what, x, TILES, lambda: _ways(kind, x, weight, rank))
    how = next((p for p in PASSING if p.name == way), None)
    return how if how is None or _works(kind, x, weight, rank, how) else None


def _works(kind: Kind, x: Tensor, weight: Tensor, rank: int, how: Passing) -> bool:
    what = ("product of rows that stay", kind, tuple(weight.shape), weight.stride(-1) == 1, rank, how.name)
    return trials.works(what, x, lambda: trial(kind, x, weight, rank, how))


def _drawn(x: Tensor, weight: Tensor, rank: int, groups: int, count: int) -> tuple[Tensor, ...]:
    """Rows, a weight in the order of this one, a bias, A, V, u, and V in the order that it has in a gradient."""
    outputs, inputs = weight.shape
    rows, w, bias = trials.repeated(x, groups, count, inputs), trials.draw(x, outputs, inputs), trials.draw(x, outputs)
    w = (w if weight.stride(-1) == 1 else w.T.contiguous().T) * inputs**-0.5
    a, v, u = (trials.draw(x, groups, *shape) for shape in ((rank, inputs), (outputs, rank), (count, rank)))
    return rows, w, bias, a * inputs**-0.5, v, u, trials.draw(x, groups, rank, outputs).mT


def trial(kind: Kind, x: Tensor, weight: Tensor, rank: int, how: Passing) -> float:
    """How far the kernel's results are from those of torch's operations, in float32, for rows of two clients."""
    rows, w, bias, a, v, u, turned = _drawn(x, weight, rank, 2, trials.FEW)
    plain = rows.float() @ w.mT.float()
    if kind == "back":
        found = held_kernels.summed(rows, w, u, turned, how)
        return trials.apart(found, plain + u.float() @ turned.mT.float())
    given = bias if kind == "biased" else None
    y, low = held_kernels.product(rows, w, given, a, v, 2.0, how)
    expected = 2.0 * rows.float() @ a.mT.float()
    total = plain + expected @ v.mT.float() + (0.0 if given is None else bias.float())
    return max(trials.apart(low, expected), trials.apart(y, total))


def _ways(kind: Kind, x: Tensor, weight: Tensor, rank: int) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: the kernels that work, on numbers made for that."""
    groups = min(len(x), max(MOST // x.shape[1], 1))
    rows, w, bias, a, v, u, turned = _drawn(x, weight, rank, groups, x.shape[1])
    hows = [p for p in PASSING if _works(kind, x, weight, rank, p)]
    if kind == "back":
        back = {p.name: partial(held_kernels.summed, rows, w, u, turned, p) for p in hows}
        return {TILES: partial(product_kernels.summed, rows, w, u, turned), **back}
    about = (rows, w, bias if kind == "biased" else None, a, v, 1.0)
    forward = {p.name: partial(held_kernels.product, *about, p) for p in hows}
    return {TILES: partial(product_kernels.product, *about), **forward}
