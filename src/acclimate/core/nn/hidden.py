"""The products around the GELU of a frozen MLP, with GELU inside of them where that is faster.

A kernel (`hidden_kernels`, `held_kernels`) must agree with plain code, and be faster than it on this device, for this
many rows: both are tried once. Few rows go the plain way without a trial.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Literal, TypeAlias

import torch
import torch.nn.functional as F
from torch import Tensor

from . import fastest, held_kernels, hidden_kernels, trials
from .held_kernels import Passing
from .hidden_kernels import CUTS, Tiling
from .kernels import INTERPRETED

Kind: TypeAlias = Literal["raised", "lowered"]
How: TypeAlias = Tiling | Passing
LEAST = 1 if INTERPRETED else 2**22
"""Hidden numbers from which on ways are tried."""
MOST = 2**15
"""Rows that are measured with; more would take as long per row."""
PLAIN = "plain"


def raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    """gelu(h) and h = x W^T + b, of x [N, inputs] and W [outputs, inputs]."""
    how = _how("raised", x, weight)
    return _raised(x, weight, bias) if how is None else _forward(x, weight, bias, how)


def lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    """(g W) gelu'(h), of g [N, outputs], W [outputs, hidden] and h [N, hidden]."""
    how = _how("lowered", g, weight.mT)
    return _lowered(g, weight, kept) if how is None else _backward(g, weight, kept, how)


def _forward(x: Tensor, weight: Tensor, bias: Tensor | None, how: How) -> tuple[Tensor, Tensor]:
    if isinstance(how, Passing):
        return held_kernels.raised(x, weight, bias, how)
    return hidden_kernels.forward(x, weight, bias, how)


def _backward(g: Tensor, weight: Tensor, kept: Tensor, how: How) -> Tensor:
    if isinstance(how, Passing):
        return held_kernels.lowered(g, weight, kept, how)
    return hidden_kernels.backward(g, weight, kept, how)


def _raised(x: Tensor, weight: Tensor, bias: Tensor | None) -> tuple[Tensor, Tensor]:
    kept = F.linear(x, weight, bias)
    return trials.gelu(kept) if trials.serves_gelu(kept) else F.gelu(kept), kept


def _lowered(g: Tensor, weight: Tensor, kept: Tensor) -> Tensor:
    up, kept = g @ weight, kept.contiguous()
    back = trials.gelu_back if trials.serves_gelu(kept) else torch.ops.aten.gelu_backward
    to_h: Tensor = back(up, kept)
    return to_h


def _hows(kind: Kind, x: Tensor, weight: Tensor) -> list[How]:
    """The kernels for this product: by tiles, and with rows that stay."""
    held = {"raised": held_kernels.RAISED, "lowered": held_kernels.LOWERED}
    return [*CUTS, *([held[kind]] if held_kernels.usable(x, weight) else [])]


def _how(kind: Kind, x: Tensor, weight: Tensor) -> How | None:
    """The kernel of this product, and how it is cut; None where plain code is the way."""
    if trials.resting() or len(x) * len(weight) < LEAST or not hidden_kernels.usable(x, weight):
        return None
    if INTERPRETED:
        return next((how for how in CUTS if _works(kind, x, weight, how)), None)
    what = f"{kind} {fastest.about(len(x))} x {weight.shape[1]} to {weight.shape[0]}"
    way = fastest.chosen(what, x, PLAIN, lambda: _ways(kind, x, weight))
    how = next((how for how in _hows(kind, x, weight) if how.name == way), None)
    return how if how is None or _works(kind, x, weight, how) else None


def _works(kind: Kind, x: Tensor, weight: Tensor, how: How) -> bool:
    return trials.works((kind, tuple(weight.shape), how.name), x, lambda: trial(kind, x, weight, how))


def _ways(kind: Kind, x: Tensor, weight: Tensor) -> Mapping[str, Callable[[], Any]]:
    """What is run to measure: plain code, and the kernels that work."""
    rows, w, bias, kept = _drawn(x, weight, min(len(x), MOST))
    hows = [how for how in _hows(kind, x, weight) if _works(kind, x, weight, how)]
    if kind == "raised":
        raising = {how.name: partial(_forward, rows, w, bias, how) for how in hows}
        return {PLAIN: lambda: _raised(rows, w, bias), **raising}
    lowering = {how.name: partial(_backward, rows, w.mT, kept, how) for how in hows}
    return {PLAIN: lambda: _lowered(rows, w.mT, kept), **lowering}


def _drawn(x: Tensor, weight: Tensor, count: int) -> tuple[Tensor, ...]:
    """Rows, a weight in the order of this one, a bias, and what enters GELU."""
    hidden, width = weight.shape
    w = trials.draw(x, hidden, width) * width**-0.5
    w = w if weight.stride(-1) == 1 else w.T.contiguous().T
    return trials.repeated(x, count, width), w, trials.draw(x, hidden), trials.repeated(x, count, hidden)


def trial(kind: Kind, x: Tensor, weight: Tensor, how: How) -> float:
    """How far the kernel's results are from those of torch's operations, in float32."""
    rows, w, bias, kept = _drawn(x, weight, trials.FEW)
    product = rows.float() @ w.mT.float()
    if kind == "raised":
        y, h = _forward(rows, w, bias, how)
        product += bias.float()
        return max(trials.apart(h, product), trials.apart(y, F.gelu(product)))
    expected = torch.ops.aten.gelu_backward(product, kept.float())
    return trials.apart(_backward(rows, w.mT, kept, how), expected)
