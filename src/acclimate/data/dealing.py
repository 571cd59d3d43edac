"""Dealing rows out in class mixes: by counts that are fixed first (counts.py), or by taking turns.

How class mixes become rows has revisions. A partition names the one that it was dealt with, so that an old run still
means the same rows when there is a newer one.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from ..core import rng
from .counts import balanced, largest_remainders
from .world import Pool

BATCH = 32
"""How many training examples a client should have, where the number of clients is chosen: a batch of the defaults."""


def deal(order: Tensor, parts: int) -> tuple[Tensor, ...]:
    """Rows in as many parts, whose sizes differ by one at most."""
    return tuple(order.tensor_split(parts))


def hand_out(pools: list[Tensor], counts: Tensor) -> tuple[Tensor, ...]:
    """Rows of class pools, as many per client as `counts` (clients, classes) says, which uses them up."""
    parts = [pool.split(own) for pool, own in zip(pools, counts.T.tolist(), strict=True)]
    return tuple(torch.cat(own) for own in zip(*parts, strict=True))


def in_balance(pools: list[Tensor], mixes: Tensor, sizes: list[int], key: rng.Key) -> tuple[Tensor, ...]:
    """Clients of given sizes use up class pools in mixes near their own."""
    present = [k for k, pool in enumerate(pools) if len(pool)]
    pools = [pools[k] for k in present]
    return hand_out(pools, balanced(mixes[:, present], torch.tensor(sizes), torch.tensor([len(p) for p in pools])))


def take_turns(pools: list[Tensor], mixes: Tensor, sizes: list[int], key: rng.Key) -> tuple[Tensor, ...]:
    """Clients of given sizes pick from class pools in the proportions of their mixes, a tenth at a time."""
    turns = 10  # so that no client drains a class before the others have come
    taken = torch.zeros(len(pools), dtype=torch.int64)
    held = torch.tensor([len(p) for p in pools])
    out: list[list[Tensor]] = [[] for _ in sizes]
    for turn in range(turns):
        for c in rng.permutation(rng.fold(key, "turn", turn), len(sizes)).tolist():
            quota = sizes[c] * (turn + 1) // turns - sizes[c] * turn // turns
            counts = apportion(mixes[c], quota, held - taken)
            for k in counts.nonzero().flatten().tolist():
                out[c].append(pools[k][int(taken[k]) : int(taken[k] + counts[k])])
            taken += counts
    return tuple(torch.cat(parts) if parts else torch.zeros(0, dtype=torch.int64) for parts in out)


def apportion(mix: Tensor, quota: int, left: Tensor) -> Tensor:
    """`quota` whole examples in about the proportions of `mix`, never more of a class than is left: large classes get
    the leftovers."""
    got = torch.zeros_like(left)
    for _ in range(len(mix) + 1):
        missing = quota - int(got.sum())
        free = left - got
        if missing <= 0:
            break
        weight = torch.where(free > 0, mix, torch.zeros_like(mix))
        if float(weight.sum()) <= 0:
            weight = free.double()  # nothing of the mix is left: take what there is
        share = weight / weight.sum() * missing
        whole = torch.minimum(share.floor().long(), free)
        if int(whole.sum()) == 0:
            best = torch.where(free > 0, share, -torch.ones_like(share)).argsort(descending=True)[:missing]
            whole[best] = (free[best] > 0).long()
        got = got + whole
    return got


def shuffled(mask: Tensor, key: rng.Key) -> Tensor:
    """The rows where a mask holds, in a keyed random order."""
    rows = mask.nonzero().flatten()
    return rows[rng.permutation(key, len(rows))]


def enough(examples: Pool, clients: int) -> None:
    """Refuse more clients than examples, or none."""
    if clients < 1:
        raise ValueError(f"clients={clients} must be at least 1")
    if clients > len(examples.y):
        raise ValueError(f"clients={clients} must be at most the number of examples, {len(examples.y)}")


def sharers(examples: int, train: float) -> int:
    """How many clients share examples that name none: 10; or fewer, so that each trains on `BATCH`; at least 2."""
    return min(10, max(2, int(examples * train) // BATCH))


class Dealing(NamedTuple):
    """How class mixes become rows."""

    equal: Callable[[list[Tensor], Tensor, list[int], rng.Key], tuple[Tensor, ...]]
    """Rows per client, from class pools, for clients of given mixes and sizes."""
    apportion: Callable[[Tensor, int, Tensor], Tensor]
    """Examples per class, for one client of a given mix and size, from what is left of each class."""


REVISIONS = {
    1: Dealing(equal=take_turns, apportion=apportion),
    2: Dealing(equal=in_balance, apportion=largest_remainders),
}
"""The ways of dealing that a partition's field `revision` may name. One that runs were dealt with never changes."""
