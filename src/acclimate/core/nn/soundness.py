"""Whether all numbers of a tree are finite, for each client: one kernel for all leaves, which reads them once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor

from .. import tree
from . import kernels, proven
from .kernels import AVAILABLE, jit
from .rehearsal import late
from .sum_kernels import BLOCK, MOST, in_pieces, is_shared

if AVAILABLE:
    import triton.language as tl


@late
@jit(do_not_specialize=["clients"])
def _unsound(xs, found, sizes, steps, clients, BLOCK: tl.constexpr):
    """found[g] = 1 for clients g with a number that is not finite in one of xs [clients, size]; programs that find one
    write the same. A tensor that is one for all clients has a step of 0 from one to the next."""
    program = tl.program_id(0)
    for i in tl.static_range(len(xs)):
        blocks = tl.cdiv(sizes[i], BLOCK)
        count = blocks * clients
        if (program >= 0) & (program < count):
            client = (program // blocks).to(tl.int64)
            at = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            x = tl.load(xs[i] + client * steps[i] + at, mask=at < sizes[i], other=0.0).to(tl.float32)
            bad = tl.where(tl.abs(x) < float("inf"), 0, 1)
            if tl.max(bad, 0) > 0:
                tl.store(found + client, 1)
        program -= count


def finite(a: Any) -> Tensor:
    """A boolean scalar: every floating-point entry is finite, as `tree.finite` says."""
    leaves = [x for x in tree.leaves(a) if x.is_floating_point() and x.numel()]
    if not leaves or not all(map(kernels.takes, leaves)) or not proven.on(leaves[0].device):
        return tree.finite(a)
    sound: Tensor = _Finite.apply(0, *leaves)
    return sound


def _found(x: Sequence[Tensor]) -> Tensor:
    """Whether clients, along the first axis of all tensors, have a number that is not finite: int32 [clients]."""
    clients = len(x[0])
    found = torch.zeros(clients, dtype=torch.int32, device=x[0].device)
    x = [t if in_pieces(t) else t.contiguous() for t in x]
    for at in range(0, len(x), MOST):
        some = tuple(x[at : at + MOST])
        sizes = tuple(t.numel() // clients for t in some)
        steps = tuple(0 if is_shared(t) else n for t, n in zip(some, sizes, strict=True))
        _unsound[(clients * sum(-(-n // BLOCK) for n in sizes),)](some, found, sizes, steps, clients, BLOCK)
    return found


@proven.trial
def _right(device: torch.device) -> bool:
    """Three clients, of which one has a number that is none and one is infinite."""
    x = [proven.sample(device, 3, 1300), proven.sample(device, 3, 7), proven.sample(device, 5).expand(3, 5)]
    x[0][1, 1299], x[1][2, 0] = float("nan"), float("-inf")
    return _found(x).tolist() == [0, 1, 1]


class _Finite(torch.autograd.Function):
    """Whether all numbers are finite, for every place of the first `lead` axes, which all tensors share."""

    @staticmethod
    def forward(lead: int, *tensors: Tensor) -> Tensor:
        shape = tensors[0].shape[:lead]
        clients = math.prod(shape)
        flat = [x.reshape(clients, *x.shape[lead:]) if lead != 1 else x for x in tensors]
        return (_found(flat) == 0).view(shape)

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.mark_non_differentiable(output)

    @staticmethod
    def vmap(info: Any, in_dims: tuple[int | None, ...], lead: int, *tensors: Tensor) -> tuple[Tensor, int]:
        dims = in_dims[1:]
        first = [
            t.expand(info.batch_size, *t.shape) if d is None else t.movedim(d, 0)
            for t, d in zip(tensors, dims, strict=True)
        ]
        return _Finite.apply(lead + 1, *first), 0
