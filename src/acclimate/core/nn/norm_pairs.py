"""A frozen layer norm and the product after it, with each client's own pair of low rank beside that.

    y = h W^T + b + u V^T,  u = scale h A^T,  h the norm of x + d

Either the product's kernel makes u, once more for each of its columns of tiles, or the norm's kernel makes it, which
has the rows of h at hand. Which is faster is measured once for every kind of input (`fastest`).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, TypeAlias

from torch import Tensor

from . import fastest, product_kernels, row_kernels, trials
from .kernels import INTERPRETED

Norm: TypeAlias = tuple[Tensor, Tensor, float]
"""Scale, shift, and what is added to the variance."""
Layer: TypeAlias = tuple[Tensor, Tensor | None]
"""W and b."""
Pair: TypeAlias = tuple[Tensor, Tensor, float]
"""A and V of all clients, and the scale."""

LEAST = 1 if INTERPRETED else 2**22
"""Numbers in y from which on ways are tried."""
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""
PRODUCT, NORM = "product", "norm"


def forward(x: Tensor, d: Tensor | None, norm: Norm, layer: Layer, pair: Pair) -> tuple[Tensor, ...] | None:
    """x + d, y, h, u, and the means and inverse deviations of rows [G, N, C], u made by the norm's kernel; None where
    that is not the way."""
    return _by_norm(x, d, norm, layer, pair) if _serves(x, layer[0], pair[0].shape[1]) else None


def _by_norm(x: Tensor, d: Tensor | None, norm: Norm, layer: Layer, pair: Pair) -> tuple[Tensor, ...]:
    (weight, bias, eps), (w, b), (a, v, scale) = norm, layer, pair
    x, d = x.contiguous(), None if d is None else d.contiguous()
    s, h, mean, unit, u = row_kernels.norm_low(x, d, weight, bias, eps, a.contiguous(), scale)
    return s, product_kernels.summed(h, w, u, v, b), h, u, mean, unit


def _by_product(x: Tensor, d: Tensor, norm: Norm, layer: Layer, pair: Pair) -> tuple[Tensor, ...]:
    (w, b), (a, v, scale) = layer, pair
    return product_kernels.product(row_kernels.norm(x, d, *norm)[1], w, b, a, v, scale)


def _serves(x: Tensor, w: Tensor, rank: int) -> bool:
    groups, rows, width = x.shape
    if trials.resting() or groups * rows * len(w) < LEAST:
        return False
    if not (trials.serves_norm_low(x, rank) and trials.serves(x, w, rank)):
        return False
    if INTERPRETED:
        return True
    what = f"norm and pairs of {fastest.about(groups)} x {fastest.about(rows)} x {width} to {len(w)}, rank {rank}"
    return fastest.chosen(what, x, PRODUCT, lambda: _ways(x, w, rank)) == NORM


def _ways(x: Tensor, w: Tensor, rank: int) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure, on numbers made for that."""
    rows, width = min(x.shape[1], MOST), x.shape[2]
    groups, outputs = max(1, min(len(x), MOST // rows)), len(w)
    given = trials.repeated(x, groups * rows, width).view(groups, rows, width)
    norm = trials.draw(x, width), trials.draw(x, width, 1)[:, 0], 1e-6
    layer = trials.draw(x, outputs, width) * width**-0.5, trials.draw(x, outputs)
    layer = (layer[0] if w.stride(-1) == 1 else layer[0].T.contiguous().T), layer[1]
    pair = trials.draw(x, groups, rank, width) * width**-0.5, trials.draw(x, groups, outputs, rank), 1.0
    run = given, given, norm, layer, pair
    return {PRODUCT: partial(_by_product, *run), NORM: partial(_by_norm, *run)}
