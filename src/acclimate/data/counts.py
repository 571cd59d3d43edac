"""How many examples of which class a client gets, in whole numbers whose sums are given: no rows yet."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import rng

SHARPEST = 16.0
"""The largest power that mixes are raised to."""
_STEPS, _HALVINGS = 25, 10  # fixed numbers of steps, never "until close": every machine then ends at the same place
_TRIES, _BATCHES = 16, 200


def largest_remainders(mix: Tensor, quota: int, left: Tensor) -> Tensor:
    """`quota` whole examples in the proportions of `mix`, never more of a class than is left.

    Every class gets the whole part of its share, and those with the largest remainders one more. What a class cannot
    give is shared by the others in the same proportions; where the mix names none of them, by what is left of each.
    """
    quota, free = min(quota, int(left.sum())), left > 0
    share, over = torch.zeros_like(mix), free
    while bool(over.any()):  # every time round, at least one more class is used up
        weight = torch.where(free, mix, 0.0)
        weight = weight if float(weight.sum()) > 0 else torch.where(free, left, 0).to(mix)
        share = torch.where(free, weight / weight.sum() * (quota - left[~free].sum()), left)
        over = free & (share > left)
        free = free & ~over
    whole = share.floor().long()
    most = (share - whole).argsort(descending=True, stable=True)
    whole[most[: quota - int(whole.sum())]] += 1
    return whole


def balanced(mixes: Tensor, sizes: Tensor, held: Tensor) -> Tensor:
    """Whole numbers near the mixes (..., clients, classes) whose rows add up to `sizes` and columns to `held`.

    Rows and columns of the matrix of mixes are scaled until both sums hold (iterative proportional fitting). That alone
    flattens the mixes, the more so the fewer clients there are: who wanted a class that has run out gets some of all
    the others. Therefore all mixes are first raised to one power, never below 1 nor above SHARPEST, at which the mean
    number of effective classes (exp of the entropy) after scaling is that of the mixes as they were drawn.
    """
    log, target = mixes.clamp_min(1e-300).log(), _effective(mixes)
    sizes, held = sizes.to(log), held.to(log)
    columns = torch.zeros_like(log[..., :1, :])
    for mild in (1 / 16, 1 / 8, 1 / 4, 1 / 2):  # small powers converge fast, and bring the next one near
        columns = 2 * _scaled(mild * log, columns, sizes, held)[1]
    low, high = torch.zeros_like(target), torch.full_like(target, SHARPEST).log2()
    best, columns = _scaled(log, columns, sizes, held)
    before = low
    for _ in range(_HALVINGS):
        power = (low + high) / 2
        fitted, columns = _scaled(2**power * log, columns * 2 ** (power - before), sizes, held)
        flat, before = _effective(fitted) > target, power
        best, low, high = torch.where(flat, fitted, best), torch.where(flat, power, low), torch.where(flat, high, power)
    return rounded(best, sizes.long(), held.long())


def _effective(mixes: Tensor) -> Tensor:
    """The mean number of effective classes per client, as (..., 1, 1)."""
    mixes = mixes / mixes.sum(-1, keepdim=True)
    return torch.special.entr(mixes).sum(-1, keepdim=True).exp().mean(-2, keepdim=True)


def _scaled(log: Tensor, columns: Tensor, sizes: Tensor, held: Tensor) -> tuple[Tensor, Tensor]:
    """A matrix with scaled rows and columns, and the logarithms of what columns were scaled by."""
    for _ in range(_STEPS):
        rows = sizes.log()[:, None] - (log + columns).logsumexp(-1, keepdim=True)
        columns = held.log() - (log + rows).logsumexp(-2, keepdim=True)
    rows = sizes.log()[:, None] - (log + columns).logsumexp(-1, keepdim=True)
    return (log + rows + columns).exp(), columns


def rounded(shares: Tensor, sizes: Tensor, held: Tensor) -> Tensor:
    """Whole numbers near `shares` (..., clients, classes), whose rows add up to `sizes` and columns to `held`.

    Every cell gets its whole part, then at most one more in the order of remainders, where its client and its class
    both lack one. What is then still missing goes, in the same order, wherever both lack some: both sums always hold.
    """
    fits = (held / shares.sum(-2).clamp_min(1e-300)).clamp_max(1.0)[..., None, :]
    whole = (shares * fits).floor().long()
    for share, counts in zip(shares.reshape(-1, *whole.shape[-2:]), whole.view(-1, *whole.shape[-2:]), strict=True):
        rows, columns = (sizes - counts.sum(1)).tolist(), (held - counts.sum(0)).tolist()
        order = (share - counts).flatten().argsort(descending=True, stable=True).tolist()
        more = [0] * len(order)
        for most in (1, sum(rows)):
            for cell in order:
                c, k = divmod(cell, len(columns))
                if some := min(most, rows[c], columns[k]):
                    more[cell] += some
                    rows[c] -= some
                    columns[k] -= some
        counts += torch.tensor(more).view_as(counts)
    return whole


def class_wise(held: Tensor, clients: int, alpha: float, key: rng.Key) -> Tensor | None:
    """Clients x classes as BRFL deals them within a group: class by class, in proportions drawn over clients.

    A client that has its mean share gets nothing of the classes that come after. All is drawn again until every client
    has half of the mean; None where thousands of draws do not have it.
    """
    mean = float(held.sum()) / clients
    for batch in range(_BATCHES):
        shares = rng.dirichlet(rng.fold(key, "draw", batch), alpha, _TRIES * len(held), clients)
        counts = torch.zeros(_TRIES, clients, len(held), dtype=torch.int64)
        fine = torch.ones(_TRIES, dtype=torch.bool)
        for k, share in enumerate(shares.view(_TRIES, len(held), clients).unbind(1)):
            share = torch.where(counts.sum(-1) < mean, share, 0.0)
            upto = share.cumsum(-1)
            fine &= (upto[:, -1] > 0) | (held[k] == 0)  # nobody need be free for a class that has nothing
            cuts = (upto / upto[:, -1:] * held[k]).nan_to_num().floor().long()
            counts[..., k] = cuts.diff(dim=-1, prepend=torch.zeros_like(cuts[:, :1]))
        fine &= counts.sum(-1).amin(-1) >= max(int(mean / 2), 1)
        if bool(fine.any()):
            return counts[int(fine.long().argmax())]
    return None
