"""The products around the GELU of a frozen MLP, with GELU inside of them where that is faster.

A kernel (`hidden_kernels`) must agree with plain code, and be faster than it on this device, for this many rows: both
are tried once. Few rows go the plain way without a trial. Plain code keeps what enters GELU, the kernel the slope there
in bytes, so that the type says which it is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fastest, hidden_kernels, rehearsal, resident, trials
from .hidden_kernels import CUTS, STEPS
from .kernels import INTERPRETED
from .product_kernels import Tiling
from .resident import RESIDENT

LEAST = 1 if INTERPRETED else 2**22
"""Hidden numbers from which on ways are tried."""
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""
PLAIN, ALL = "plain", {"raised": CUTS, "lowered": (*CUTS, RESIDENT)}


def raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """gelu(h), and what `lowered` wants to know of h = x W^T + b, of x [G, N, inputs] and W [outputs, inputs]."""
    cut = _cut("raised", x, weight)
    if rehearsal.running():  # it goes the plain way, whose gradient wants no kernel
        _cut("lowered", x, weight.mT.contiguous().mT)
    return _raised(x, weight, bias) if cut is None else hidden_kernels.forward(x, weight, bias, cut)


def lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    """(g W) gelu'(h), of g [G, N, outputs], W [outputs, hidden] and what `raised` kept of h [G, N, hidden]."""
    cut = _cut("lowered", g, weight.mT) if kept.dtype == torch.uint8 else None
    return _lowered(g, weight, kept) if cut is None else _backward(g, weight, kept, cut)


def _backward(g: Tensor, weight: Tensor, kept: Tensor, cut: Tiling) -> Tensor:
    if cut == RESIDENT:
        return resident.lowered(g, weight, kept)
    return hidden_kernels.backward(g, weight, kept, cut)


def _raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    kept = F.linear(x, weight, bias)
    return trials.gelu(kept) if trials.serves_gelu(kept) else F.gelu(kept), kept


def _lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    up = g @ weight
    if kept.dtype == torch.uint8:
        return (up * hidden_kernels.slopes(kept, *up.shape[1:])).to(up.dtype)
    kept = kept.contiguous()
    back = trials.gelu_back if trials.serves_gelu(kept) else torch.ops.aten.gelu_backward
    to_h: Tensor = back(up, kept)
    return to_h


def _cut(kind: Literal["raised", "lowered"], x: Tensor, weight: Tensor) -> Tiling | None:
    """How the kernel of this product is cut; None where plain code is the way."""
    (groups, rows, _), hidden = x.shape, len(weight)
    if trials.resting() or groups * rows * hidden < LEAST or not hidden_kernels.usable(x, weight):
        return None
    if INTERPRETED:
        return next((cut for cut in CUTS if _works(kind, x, weight, cut)), None)
    what = f"{kind} by bytes, {groups} x {fastest.about(rows)} x {weight.shape[1]} to {hidden}"
    way = fastest.chosen(what, x, PLAIN, lambda: _ways(kind, x, weight))
    cut = next((cut for cut in ALL[kind] if cut.name == way), None)
    return cut if cut is None or _works(kind, x, weight, cut) else None


def _works(kind: str, x: Tensor, weight: Tensor, cut: Tiling) -> bool:
    if cut == RESIDENT and not resident.usable(x, weight):
        return False
    return trials.works((kind, tuple(weight.shape), cut.name), x, lambda: trial(kind, x, weight, cut))


def _ways(kind: str, x: Tensor, weight: Tensor) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: plain code, and the kernel in the cuts that work."""
    groups, each = min(len(x), -(-MOST // x.shape[1])), min(x.shape[1], MOST)
    rows, w, bias, kept = _drawn(x, weight, groups, each)
    cuts = [cut for cut in ALL[kind] if _works(kind, x, weight, cut)]
    if kind == "raised":
        raising = {cut.name: partial(hidden_kernels.forward, rows, w, bias, cut) for cut in cuts}
        return {PLAIN: lambda: _raised(rows, w, bias), **raising}
    lowering = {cut.name: partial(_backward, rows, w.mT, kept, cut) for cut in cuts}
    return {PLAIN: lambda: _lowered(rows, w.mT, kept), **lowering}


def _drawn(x: Tensor, weight: Tensor, groups: int, count: int) -> tuple[Tensor, ...]:
    """Rows, a weight in the order of this one, a bias, and slopes in bytes."""
    hidden, width = weight.shape
    w = trials.draw(x, hidden, width) * width**-0.5
    w = w if weight.stride(-1) == 1 else w.T.contiguous().T
    rows = trials.repeated(x, groups * count, width).view(groups, count, width)
    kept = (trials.draw(x, -(-hidden // 64), 4096).float() * 40 + 128).clamp(0, 255).to(torch.uint8)
    return rows, w, trials.draw(x, hidden), kept.flatten().repeat(groups, -(-count // 64), 1)


def trial(kind: str, x: Tensor, weight: Tensor, cut: Tiling) -> float:
    """How far the kernel's results are from those of torch's operations, in float32, for rows of two clients; slopes
    beyond what bytes cost."""
    rows, w, bias, kept = _drawn(x, weight, 2, trials.rows_of(x, len(weight), cut))
    product = rows.float() @ w.mT.float()
    if kind == "raised":
        y, kept = hidden_kernels.forward(rows, w, bias, cut)
        product += bias.float()
        slope = torch.ops.aten.gelu_backward(torch.ones_like(product), product)
        beyond = ((hidden_kernels.slopes(kept, *slope.shape[1:]) - slope).abs() - 0.5 / STEPS).clamp(min=0)
        return max(trials.apart(slope + beyond, slope), trials.apart(y, F.gelu(product)))
    expected = product * hidden_kernels.slopes(kept, *product.shape[1:])
    return trials.apart(_backward(rows, w.mT, kept, cut), expected)
