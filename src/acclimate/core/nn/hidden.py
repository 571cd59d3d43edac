"""The products around the GELU of a frozen MLP, with GELU inside of them where that is faster.

A kernel (`hidden_kernels`) must agree with plain code, and be faster than it on this device, for this many rows: both
are tried once. Few rows go the plain way without a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fastest, hidden_kernels, trials
from .hidden_kernels import CUTS, Tiling
from .kernels import INTERPRETED

LEAST = 1 if INTERPRETED else 2**22
"""Hidden numbers from which on ways are tried."""
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""
PLAIN = "plain"


def raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """gelu(h) and h = x W^T + b, of x [N, inputs] and W [outputs, inputs]."""
    cut = _cut("raised", x, weight)
    return _raised(x, weight, bias) if cut is None else hidden_kernels.forward(x, weight, bias, cut)


def lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    """(g W) gelu'(h), of g [N, outputs], W [outputs, hidden] and h [N, hidden]."""
    cut = _cut("lowered", g, weight.mT)
    return _lowered(g, weight, kept) if cut is None else hidden_kernels.backward(g, weight, kept, cut)


def _raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    kept = F.linear(x, weight, bias)
    return trials.gelu(kept) if trials.serves_gelu(kept) else F.gelu(kept), kept


def _lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    up, kept = g @ weight, kept.contiguous()
    back = trials.gelu_back if trials.serves_gelu(kept) else torch.ops.aten.gelu_backward
    to_h: Tensor = back(up, kept)
    return to_h


def _cut(kind: Literal["raised", "lowered"], x: Tensor, weight: Tensor) -> Tiling | None:
    """How the kernel of this product is cut; None where plain code is the way."""
    if trials.resting() or len(x) * len(weight) < LEAST or not hidden_kernels.usable(x, weight):
        return None
    if INTERPRETED:
        return next((cut for cut in CUTS if _works(kind, x, weight, cut)), None)
    what = f"{kind} {fastest.about(len(x))} x {weight.shape[1]} to {weight.shape[0]}"
    way = fastest.chosen(what, x, PLAIN, lambda: _ways(kind, x, weight))
    cut = next((cut for cut in CUTS if cut.name == way), None)
    return cut if cut is None or _works(kind, x, weight, cut) else None


def _works(kind: str, x: Tensor, weight: Tensor, cut: Tiling) -> bool:
    return trials.works((kind, tuple(weight.shape), cut.name), x, lambda: trial(kind, x, weight, cut))


def _ways(kind: str, x: Tensor, weight: Tensor) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: plain code, and the kernel in the cuts that work."""
    rows, w, bias, kept = _drawn(x, weight, min(len(x), MOST))
    cuts = [cut for cut in CUTS if _works(kind, x, weight, cut)]
    if kind == "raised":
        raising = {cut.name: partial(hidden_kernels.forward, rows, w, bias, cut) for cut in cuts}
        return {PLAIN: lambda: _raised(rows, w, bias), **raising}
    lowering = {cut.name: partial(hidden_kernels.backward, rows, w.mT, kept, cut) for cut in cuts}
    return {PLAIN: lambda: _lowered(rows, w.mT, kept), **lowering}


def _drawn(x: Tensor, weight: Tensor, count: int) -> tuple[Tensor, ...]:
    """Rows, a weight in the order of this one, a bias, and what enters GELU."""
    hidden, width = weight.shape
    w = trials.draw(x, hidden, width) * width**-0.5
    w = w if weight.stride(-1) == 1 else w.T.contiguous().T
    return trials.repeated(x, count, width), w, trials.draw(x, hidden), trials.repeated(x, count, hidden)


def trial(kind: str, x: Tensor, weight: Tensor, cut: Tiling) -> float:
    """How far the kernel's results are from those of torch's operations, in float32."""
    rows, w, bias, kept = _drawn(x, weight, trials.FEW)
    product = rows.float() @ w.mT.float()
    if kind == "raised":
        y, h = hidden_kernels.forward(rows, w, bias, cut)
        product += bias.float()
        return max(trials.apart(h, product), trials.apart(y, F.gelu(product)))
    expected = torch.ops.aten.gelu_backward(product, kept.float())
    return trials.apart(hidden_kernels.backward(rows, w.mT, kept, cut), expected)
