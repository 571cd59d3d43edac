"""Products beside each client's pair of low rank, by the cut of their kernel that is fastest for their shape."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

from torch import Tensor

from . import fastest, trials
from .kernels import INTERPRETED
from .product_kernels import CUTS, Tiling
from .resident import RESIDENT

Kind: TypeAlias = Literal["forward", "back"]
"""A product that makes u, or one for a gradient, which is given it."""
LEAST = 2**22
"""Numbers in x from which on ways are measured."""
ALL = (*CUTS, RESIDENT)
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""


def product(
    x: Tensor, weight: Tensor, bias: Tensor | None, a: Tensor, v: Tensor, scale: float = 1.0
) -> tuple[Tensor, Tensor]:
    """As `product_kernels.product`."""
    return trials.product(x, weight, bias, a, v, scale, _cut("forward", x, weight, a.shape[1]))


def summed(x: Tensor, weight: Tensor, u: Tensor, v: Tensor) -> Tensor:
    """As `product_kernels.summed`."""
    return trials.summed(x, weight, u, v, _cut("back", x, weight, u.shape[-1]))


def _cut(kind: Kind, x: Tensor, weight: Tensor, rank: int) -> Tiling:
    """How the product is cut: the first way, which `trials.serves` has tried, or one that is faster."""
    if INTERPRETED or x.numel() < LEAST:
        return CUTS[0]
    (groups, rows, inputs), outputs = x.shape, len(weight)
    what = f"{kind} beside rank {rank}, {groups} x {fastest.about(rows)} x {inputs} to {outputs}"
    way = fastest.chosen(what, x, CUTS[0].name, lambda: _ways(kind, x, weight, rank))
    cut = next((cut for cut in ALL if cut.name == way), CUTS[0])
    return cut if trials.serves(x, weight, rank, cut) else CUTS[0]


def _ways(kind: Kind, x: Tensor, weight: Tensor, rank: int) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: the cuts that work, on numbers made for that."""
    groups, each, (outputs, inputs) = min(len(x), -(-MOST // x.shape[1])), min(x.shape[1], MOST), weight.shape
    rows = trials.repeated(x, groups * each, inputs).view(groups, each, inputs)
    w = trials.draw(x, outputs, inputs) * inputs**-0.5
    w = w if weight.stride(-1) == 1 else w.T.contiguous().T
    a, v, u = (trials.draw(x, groups, *shape) for shape in ((rank, inputs), (outputs, rank), (each, rank)))
    cuts = [cut for cut in ALL if trials.serves(x, weight, rank, cut)]
    if kind == "back":
        return {cut.name: partial(trials.summed, rows, w, u, v, cut) for cut in cuts}
    return {cut.name: partial(trials.product, rows, w, w[:, 0].contiguous(), a, v, 1.0, cut) for cut in cuts}
