"""A Triton kernel that chooses between new and old of every client, for all tensors at once."""

# mypy: disable-error-code="no-untyped-def"

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor

from . import proven
from .kernels import AVAILABLE, jit
from .rehearsal import late
from .sum_kernels import BLOCK, MOST, by_client, is_shared, memory_for

if AVAILABLE:
    import triton.language as tl


@late
@jit
def _chosen(
    news, olds, outs, sizes, new_steps, old_steps, clients, active, apart, OVER: tl.constexpr, BLOCK: tl.constexpr
):
    """outs[i] = news[i] of clients whose number in `active` is not zero, else olds[i]; with OVER it is there already.
    Tensors are [clients, size]; one that is the same for all clients has a step of 0 from one to the next."""
    program = tl.program_id(0)
    for i in tl.static_range(len(news)):
        blocks = tl.cdiv(sizes[i], BLOCK)
        count = blocks * clients
        if (program >= 0) & (program < count):
            client = (program // blocks).to(tl.int64)
            at = (program % blocks).to(tl.int64) * BLOCK + tl.arange(0, BLOCK)
            real = at < sizes[i]
            if tl.load(active + client * apart) != 0:
                new = tl.load(news[i] + client * new_steps[i] + at, mask=real, other=0.0)
                tl.store(outs[i] + client * sizes[i] + at, new, mask=real)
            else:
                if not OVER:
                    old = tl.load(olds[i] + client * old_steps[i] + at, mask=real, other=0.0)
                    tl.store(outs[i] + client * sizes[i] + at, old, mask=real)
        program -= count


def chosen(new: Sequence[Tensor], old: Sequence[Tensor], active: Tensor, over: bool) -> list[Tensor]:
    """`new` of clients, along the first axis, whose `active` [clients] is not zero, else `old`, of each pair of one
    shape and type; `over` writes it where the old was, if the new one lies in memory as it does."""
    over = over and _apart(new, old)
    active = active.view(torch.uint8) if active.dtype == torch.bool else active
    pairs = [by_client(b, a) for a, b in zip(new, old, strict=True)]
    outs = [b if over else memory_for(b, a) for b, a in pairs]
    for at in range(0, len(pairs), MOST):
        some = slice(at, at + MOST)
        olds, news = (tuple(pair[k] for pair in pairs[some]) for k in range(2))
        clients = len(active)
        sizes = tuple(t.numel() // max(clients, 1) for t in news)
        steps = [tuple(0 if is_shared(t) else n for t, n in zip(ts, sizes, strict=True)) for ts in (news, olds)]
        if programs := clients * sum(-(-n // BLOCK) for n in sizes):
            _chosen[(programs,)](
                news, olds, tuple(outs[some]), sizes, *steps, clients, active, active.stride(0), over, BLOCK
            )
    return outs


@proven.trial
def _right(device: torch.device) -> bool:
    """Choices between new and old of three clients, as torch's operations make them, in place and not."""
    active = torch.tensor([0, 1, 0], device=device)
    new = [proven.sample(device, 3, 7, 5), proven.sample(device, 3, 1300)]
    old = [a + 4 for a in new]
    expected = [torch.where(active.view(-1, *[1] * (a.dim() - 1)) != 0, a, b) for a, b in zip(new, old, strict=True)]
    found = [*chosen(new, old, active, False), *chosen(new, old, active, True)]
    return all(map(torch.equal, found, expected * 2))


def _apart(new: Sequence[Tensor], old: Sequence[Tensor]) -> bool:
    """Whether the old ones may be written over: none is read as a new one of another place, and none is shared."""
    places = {t.untyped_storage().data_ptr() for t in old}
    moved = [a for a, b in zip(new, old, strict=True) if (a.data_ptr(), a.stride()) != (b.data_ptr(), b.stride())]
    if len(places) < len(old) or any(map(is_shared, old)):
        return False
    return not any(a.untyped_storage().data_ptr() in places for a in moved)
