"""A Triton kernel that takes a step of all parameters of all clients: x + scale * y, and the same in less precision.

Torch's own for many tensors gives 65,536 numbers to a program, so that parameters of small networks leave most of a
device idle.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import kernels
from .kernels import AVAILABLE, jit

if AVAILABLE:
    import triton.language as tl

BLOCK = 1024
"""Numbers that one program writes."""
MOST = 16
"""Tensors of one launch: each is an argument of the kernel."""


@jit
def _sums(xs, ys, outs, lows, sizes, scale, LOW: tl.constexpr, BLOCK: tl.constexpr):
    """outs[i] = xs[i] + scale * ys[i], and with LOW the same in lows[i], in its precision; programs are dealt out to
    tensors in order."""
    program = tl.program_id(0)
    for i in tl.static_range(len(xs)):
        count = tl.cdiv(sizes[i], BLOCK)
        if (program >= 0) & (program < count):
            at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            real = at < sizes[i]
            y = tl.load(ys[i] + at, mask=real, other=0.0).to(tl.float32)
            sum = tl.load(xs[i] + at, mask=real, other=0.0) + scale * y
            tl.store(outs[i] + at, sum, mask=real)
            if LOW:
                tl.store(lows[i] + at, sum.to(lows[i].dtype.element_ty), mask=real)
        program -= count


def takes(x: Sequence[Tensor], y: Sequence[Tensor]) -> bool:
    """Whether the kernel adds these: numbers in float32, and others in that or less."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    return all(kernels.takes(a) and a.dtype == torch.float32 and b.dtype in known for a, b in zip(x, y, strict=True))


def sums(x: Sequence[Tensor], y: Sequence[Tensor], scale: float, over: bool) -> list[Tensor]:
    """x + scale * y of each pair of one shape; `over` writes it where x was, if y lies in memory as x does. The sum
    lies there as y does."""
    over = over and all(_order(a) == _order(b) for a, b in zip(x, y, strict=True))
    pairs = [_laid(a, b) for a, b in zip(x, y, strict=True)]
    outs = [a if over else torch.empty_like(a) for a, _ in pairs]
    _run(pairs, outs, outs, scale, False)
    return outs


def sums_in_both(
    x: Sequence[Tensor], low: Sequence[Tensor], y: Sequence[Tensor], scale: float, over: bool
) -> tuple[list[Tensor], list[Tensor]]:
    """The same, and once more in the precision of `low`, which has x in it before."""
    over = over and all(_order(a) == _order(b) == _order(c) for a, b, c in zip(x, y, low, strict=True))
    pairs = [_laid(a, b) for a, b in zip(x, y, strict=True)]
    outs = [a if over else torch.empty_like(a) for a, _ in pairs]
    lows = [c if over else torch.empty_like(a, dtype=c.dtype) for c, (a, _) in zip(low, pairs, strict=True)]
    _run(pairs, outs, lows, scale, True)
    return outs, lows


def _run(pairs: list[tuple[Tensor, Tensor]], outs: list[Tensor], lows: list[Tensor], scale: float, low: bool) -> None:
    for at in range(0, len(pairs), MOST):
        some = slice(at, at + MOST)
        x, y = (tuple(pair[k] for pair in pairs[some]) for k in range(2))
        sizes = tuple(t.numel() for t in x)
        programs = sum(-(-n // BLOCK) for n in sizes)
        if programs:
            _sums[(programs,)](x, y, tuple(outs[some]), tuple(lows[some]), sizes, float(scale), low, BLOCK)


def _laid(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dense order in memory, that of y."""
    y = y if _dense(y) else y.contiguous()
    return (x if _order(x) == _order(y) else torch.empty_like(y, dtype=x.dtype).copy_(x)), y


def _order(x: Tensor) -> tuple[int, ...]:
    """How numbers lie in memory: axes of length one have no say."""
    return tuple(s for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)


def _dense(x: Tensor) -> bool:
    """Whether a tensor's numbers fill one piece of memory."""
    steps = sorted((s, n) for s, n in zip(x.stride(), x.shape, strict=True) if n > 1)
    filled = 1
    for step, length in steps:
        if step != filled:
            return False
        filled *= length
    return True
