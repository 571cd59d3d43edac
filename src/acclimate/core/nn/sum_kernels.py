"""Triton kernels that take a step of all parameters of all clients: x + scale * y, and the same in less precision.

Torch's own for many tensors gives 65,536 numbers to a program, so that parameters of small networks leave most of a
device idle. A second kernel goes client by client: clients that are done keep what they have, and either summand may be
one for all of them.
"""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from . import kernels, proven
from .kernels import AVAILABLE, jit
from .rehearsal import blank_like, late

if AVAILABLE:
    import triton.language as tl

BLOCK = 1024
"""Numbers that one program writes."""
MOST = 16
"""Tensors of one launch: each is an argument of the kernel."""


@late
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


@late
@jit
def _sums_by_client(
    xs,
    ys,
    outs,
    lows,
    sizes,
    x_steps,
    y_steps,
    befores,
    before_steps,
    clients,
    active,
    apart,
    scale,
    LOW: tl.constexpr,
    SOME: tl.constexpr,
    OVER: tl.constexpr,
    BLOCK: tl.constexpr,
):
    """`_sums` of tensors [clients, size]. A summand that is one for all clients has a step of 0 from one to the next.
    With SOME, clients whose number in `active` is zero have xs in outs, and befores in lows; with OVER they are there
    already."""
    program = tl.program_id(0)
    for i in tl.static_range(len(xs)):
        blocks = tl.cdiv(sizes[i], BLOCK)
        count = blocks * clients
        if (program >= 0) & (program < count):
            client = (program // blocks).to(tl.int64)
            at = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            real = at < sizes[i]
            out = client * sizes[i] + at
            live = tl.load(active + client * apart) != 0 if SOME else True
            if live:
                y = tl.load(ys[i] + client * y_steps[i] + at, mask=real, other=0.0).to(tl.float32)
                sum = tl.load(xs[i] + client * x_steps[i] + at, mask=real, other=0.0) + scale * y
                tl.store(outs[i] + out, sum, mask=real)
                if LOW:
                    tl.store(lows[i] + out, sum.to(lows[i].dtype.element_ty), mask=real)
            else:
                if not OVER:
                    x = tl.load(xs[i] + client * x_steps[i] + at, mask=real, other=0.0)
                    tl.store(outs[i] + out, x, mask=real)
                    if LOW:
                        low = tl.load(befores[i] + client * before_steps[i] + at, mask=real, other=0.0)
                        tl.store(lows[i] + out, low, mask=real)
        program -= count


@proven.trial
def _right(device: torch.device) -> bool:
    """Sums of clients of which one is done, with one parameter for all, as torch's operations make them."""
    active = torch.tensor([1, 0, 1], device=device)
    x = [proven.sample(device, 3, 7, 5), proven.sample(device, 1300).expand(3, 1300)]
    y = [proven.sample(device, 3, *a.shape[1:]) + 1 for a in x]
    sums = [torch.where(active.view(-1, *[1] * (a.dim() - 1)) != 0, a - 0.5 * b, a) for a, b in zip(x, y, strict=True)]
    low = [a.to(torch.bfloat16) for a in x]
    fine, coarse = sums_in_both(x, low, y, -0.5, False, active)
    kept = all(torch.equal(c[1], a[1].to(c.dtype)) for a, c in zip(x, coarse, strict=True))
    return (
        kept
        and all(map(proven.near, fine, sums))
        and all(torch.equal(a[1], b[1]) for a, b in zip(x, fine, strict=True))
    )


def takes(x: Sequence[Tensor], y: Sequence[Tensor], active: Tensor | None = None) -> bool:
    """Whether the kernels add these: numbers in float32, and others in that or less."""
    known = (torch.float32, torch.bfloat16, torch.float16)
    if active is not None and not (active.dim() == 1 and proven.on(active.device)):
        return False
    return all(kernels.takes(a) and a.dtype == torch.float32 and b.dtype in known for a, b in zip(x, y, strict=True))


def sums(
    x: Sequence[Tensor], y: Sequence[Tensor], scale: float, over: bool, active: Tensor | None = None
) -> list[Tensor]:
    """x + scale * y of each pair of one shape; `over` writes it where x was, if y lies in memory as x does. The sum
    lies there as y does. Clients, along the first axis, whose `active` [clients] is zero keep x."""
    over = over and all(_placed(active, *pair) for pair in zip(x, y, strict=True))
    pairs = _pairs(x, y, active)
    outs = [a if over else memory_for(a, b) for a, b in pairs]
    _run(pairs, outs, outs, [a for a, _ in pairs], scale, active, low=False, over=over)
    return outs


def sums_in_both(
    x: Sequence[Tensor],
    low: Sequence[Tensor],
    y: Sequence[Tensor],
    scale: float,
    over: bool,
    active: Tensor | None = None,
) -> tuple[list[Tensor], list[Tensor]]:
    """The same, and once more in the precision of `low`, which has x in it before."""
    over = over and all(_placed(active, *three) for three in zip(x, y, low, strict=True))
    pairs = _pairs(x, y, active)
    outs = [a if over else memory_for(a, b) for a, b in pairs]
    lows = [c if over else memory_for(a, b, c.dtype) for c, (a, b) in zip(low, pairs, strict=True)]
    befores = low if active is None else [by_client(c, b)[0] for c, (_, b) in zip(low, pairs, strict=True)]
    _run(pairs, outs, lows, befores, scale, active, low=True, over=over)
    return outs, lows


def _run(
    pairs: list[tuple[Tensor, Tensor]],
    outs: list[Tensor],
    lows: list[Tensor],
    befores: Sequence[Tensor],
    scale: float,
    active: Tensor | None,
    low: bool,
    over: bool,
) -> None:
    more: list[Any]
    for at in range(0, len(pairs), MOST):
        some = slice(at, at + MOST)
        x, y = (tuple(pair[k] for pair in pairs[some]) for k in range(2))
        tensors = (x, y, tuple(outs[some]), tuple(lows[some]))
        if active is None and not any(map(is_shared, (*x, *y))):
            sizes, clients = tuple(t.numel() for t in x), 1
            kernel, more = _sums, [float(scale), low, BLOCK]
        else:
            clients = len(x[0])
            sizes = tuple(t.numel() // max(clients, 1) for t in x)
            before = tuple(befores[some])
            steps = [tuple(0 if is_shared(t) else n for t, n in zip(ts, sizes, strict=True)) for ts in (x, y, before)]
            who, apart = (x[0], 0) if active is None else (active, active.stride(0))
            kernel = _sums_by_client
            more = [*steps[:2], before, steps[2], clients, who, apart, float(scale)]
            more += [low, active is not None, over, BLOCK]
        if programs := clients * sum(-(-n // BLOCK) for n in sizes):
            kernel[(programs,)](*tensors, sizes, *more)


def _placed(active: Tensor | None, x: Tensor, *others: Tensor) -> bool:
    """Whether a sum can be written where x is: all lie in memory alike, and as the kernel reads them."""
    alike = all(_order(x) == _order(other) for other in others) and not is_shared(x)
    return alike and (_dense(x) if active is None else in_pieces(x))


def _pairs(x: Sequence[Tensor], y: Sequence[Tensor], active: Tensor | None) -> list[tuple[Tensor, Tensor]]:
    """Summands as the kernels read them."""
    apart = active is not None or (any(map(is_shared, (*x, *y))) and proven.on(x[0].device))
    return [by_client(a, b) if apart else _laid(a, b) for a, b in zip(x, y, strict=True)]


def _laid(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one dense order in memory, that of y."""
    y = y if _dense(y) else y.contiguous()
    return (x if _order(x) == _order(y) else blank_like(y, x.dtype).copy_(x)), y


def by_client(x: Tensor, y: Tensor) -> tuple[Tensor, Tensor]:
    """Both in one order, that of y unless it is one for all clients, with each client's numbers in one piece."""
    if is_shared(y) and not is_shared(x):
        y, x = by_client(y, x)
        return x, y
    y = y if in_pieces(y) and not is_shared(y) else y.contiguous()
    if is_shared(x) and _order(x[0]) == _order(y[0]):
        return x, y
    return (x if _order(x) == _order(y) else blank_like(y, x.dtype).copy_(x)), y


def in_pieces(x: Tensor) -> bool:
    """Whether the numbers of every client, along the first axis, are one piece of memory, one after the other or one
    for all."""
    if is_shared(x):
        return _dense(x[0])
    return _dense(x) and (len(x) == 1 or x.stride(0) * len(x) == x.numel())


def is_shared(x: Tensor) -> bool:
    """Whether a tensor is one for all clients, repeated along the first axis without a copy."""
    return x.dim() > 0 and len(x) > 1 and x.stride(0) == 0


def memory_for(x: Tensor, y: Tensor, dtype: torch.dtype | None = None) -> Tensor:
    """Memory for what is made of both, in the type of x or another."""
    return blank_like(y if is_shared(x) else x, dtype or x.dtype)


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
