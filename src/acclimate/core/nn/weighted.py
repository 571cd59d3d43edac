"""The weighted sums of what clients send, all tensors in one kernel: large messages are read once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import kernels, proven
from .kernels import AVAILABLE, jit
from .rehearsal import blank, blank_like, late
from .sum_kernels import MOST

if AVAILABLE:
    import triton.language as tl

CLIENTS, BLOCK = 16, 256
"""Clients and numbers of a tile."""


@late
@jit
def _weighted(xs, w, ys, sizes, clients, CLIENTS: tl.constexpr, BLOCK: tl.constexpr):
    """ys[k][i] = sum over clients g of xs[k][g, i] * w[g]; whose weight is zero may hold anything. Programs are dealt
    out to tensors in order."""
    program = tl.program_id(0)
    for k in tl.static_range(len(xs)):
        count = tl.cdiv(sizes[k], BLOCK)
        if (program >= 0) & (program < count):
            at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            sum = tl.zeros((BLOCK,), dtype=tl.float32)
            for first in range(0, clients, CLIENTS):
                g = first + tl.arange(0, CLIENTS)
                weight = tl.load(w + g, mask=g < clients, other=0.0)
                real = (weight != 0)[:, None] & (at < sizes[k])[None, :]
                each = tl.load(xs[k] + g.to(tl.int64)[:, None] * sizes[k] + at[None, :], mask=real, other=0.0)
                sum += tl.sum(each * tl.where(real, weight[:, None], 0.0), 0)
            tl.store(ys[k] + at, sum, mask=at < sizes[k])
        program -= count


@late
@jit
def _means(xs, w, ys, sizes, BLOCK: tl.constexpr):
    """ys[k] = xs[k] / w, zero where w is; programs are dealt out to tensors in order."""
    program = tl.program_id(0)
    weight = tl.load(w)
    for k in tl.static_range(len(xs)):
        count = tl.cdiv(sizes[k], BLOCK)
        if (program >= 0) & (program < count):
            at = program.to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(xs[k] + at, mask=at < sizes[k], other=0.0)
            mean = tl.math.div_rn(x, tl.zeros_like(x) + tl.where(weight == 0, 1.0, weight))
            tl.store(ys[k] + at, tl.where(weight == 0, 0.0, mean), mask=at < sizes[k])
        program -= count


def means(x: Sequence[Tensor], w: Tensor) -> list[Tensor] | None:
    """Sums over clients by their one weight, zero where that is, in one kernel; None where there is none."""
    alike = w.dim() == 0 and all(kernels.takes(t) and t.dtype == w.dtype == torch.float32 for t in x)
    if not alike or torch._C._are_functorch_transforms_active() or not all(t.numel() for t in x):
        return None
    return _means_by_kernel(x, w) if proven.on(w.device) else None


def _means_by_kernel(x: Sequence[Tensor], w: Tensor) -> list[Tensor]:
    made: list[Tensor] = []
    for at in range(0, len(x), MOST):
        some = tuple(t.contiguous() for t in x[at : at + MOST])
        y, sizes = tuple(map(blank_like, some)), tuple(t.numel() for t in some)
        _means[(sum(-(-n // BLOCK) for n in sizes),)](some, w, y, sizes, BLOCK)
        made += y
    return made


def total(x: Tensor, w: Tensor) -> Tensor:
    """The sum over clients of x [G, ...] times w [G], or [G, ...] with fewer axes; a weight of zero leaves out what may
    be no number."""
    return totals([x], w)[0]


def totals(x: Sequence[Tensor], w: Tensor) -> list[Tensor]:
    """`total` of each of these, in one kernel where there is one."""
    served = w.dim() == 1 and (not w.is_cuda or proven.on(w.device))
    fits = [served and kernels.takes(t) and t.dtype == torch.float32 and t.numel() > 0 for t in x]
    by_kernel = iter(_by_kernel([t for t, fit in zip(x, fits, strict=True) if fit], w))
    return [next(by_kernel) if fit else _plain(t, w) for t, fit in zip(x, fits, strict=True)]


def _plain(x: Tensor, w: Tensor) -> Tensor:
    w = w.reshape(w.shape + (1,) * (x.dim() - w.dim()))
    return torch.where(w != 0, x * w.to(x.dtype), torch.zeros_like(x)).sum(0)


def _by_kernel(x: Sequence[Tensor], w: Tensor) -> list[Tensor]:
    made = [blank(*t.shape[1:], dtype=t.dtype, device=t.device) for t in x]
    w = w.to(torch.float32).contiguous()
    for at in range(0, len(x), MOST):
        some, y = tuple(t.contiguous() for t in x[at : at + MOST]), tuple(made[at : at + MOST])
        sizes = tuple(t.numel() for t in y)
        _weighted[(sum(-(-n // BLOCK) for n in sizes),)](some, w, y, sizes, len(w), CLIENTS, BLOCK)
    return made


@proven.trial
def _right(device: torch.device) -> bool:
    """Sums over clients, one of which counts nothing and has no number, and means of them."""
    x, w = [proven.sample(device, 18, 1300), proven.sample(device, 18, 7, 5)], proven.sample(device, 18)
    w[3], x[0][3, 5] = 0.0, float("nan")
    sums, weight = _by_kernel(x, w), w.sum()
    means = [*_means_by_kernel(sums, weight), *_means_by_kernel(sums, torch.zeros_like(weight))]
    expected = [_plain(t, w) for t in x]
    wanted = [*expected, *(t / weight for t in expected), *(torch.zeros_like(t) for t in expected)]
    return all(torch.allclose(a, b, rtol=1e-4, atol=1e-4) for a, b in zip([*sums, *means], wanted, strict=True))
