"""Who runs together: clients of similar size in groups whose shapes are few, so that padding and recordings are."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import NamedTuple

import torch
from torch import Tensor


class Group(NamedTuple):
    """Clients that run together: padded to the same number of examples each, the first `real` of them count."""

    ids: Tensor
    rows: Tensor
    n: Tensor
    ragged: bool
    real: int
    who: Tensor
    """The ids on the host."""

    @property
    def size(self) -> int:
        """Examples of each client, padding included."""
        return self.rows.shape[-1]

    def same(self, other: Group | None) -> bool:
        """Whether these are the same clients with the same padding."""
        return other is not None and self.size == other.size and torch.equal(self.who, other.who)


def plan(sizes: Tensor, waste: float, chunk: int, largest: int | None = None) -> Iterator[tuple[Tensor, int, int]]:
    """Who runs together: positions, the examples that each is padded to, and how many clients with uncounted copies.

    With `largest`, the size of the federation's largest client, few distinct shapes come of however many cohorts:
    sizes are steps of a fixed ladder, and counts that change with the cohort are rounded up.
    """
    found = buckets(sizes, waste) if largest is None else rungs(sizes, waste, largest)
    for members, size in found:
        for some in members.split(chunk):
            varies = largest is not None and len(members) < len(sizes)
            yield some, size, min(rounded(len(some)), chunk) if varies else len(some)


def buckets(sizes: Tensor, waste: float) -> list[tuple[Tensor, int]]:
    """Positions grouped so that no group's smallest is below (1 - waste) of its largest; with that largest size."""
    order = torch.argsort(sizes, descending=True, stable=True)
    out: list[tuple[Tensor, int]] = []
    start = 0
    while start < len(order):
        top = int(sizes[order[start]])
        end = start + int((sizes[order[start:]] >= (1 - waste) * top).sum())
        out.append((order[start:end].sort().values, top))
        start = end
    return out


def rungs(sizes: Tensor, waste: float, largest: int) -> list[tuple[Tensor, int]]:
    """As `buckets`, with tops that depend on the largest size of all clients and not on who is there."""
    ladder = [largest]
    while ladder[-1] > 0:
        ladder.append(max(math.ceil((1 - waste) * ladder[-1]) - 1, 0))
    tops = torch.tensor(ladder[::-1])
    rung = torch.searchsorted(tops, sizes)
    return [((rung == r).nonzero()[:, 0], int(tops[r])) for r in rung.unique().flip(0).tolist()]


def rounded(count: int) -> int:
    """Up to 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, ... (an eighth of a power of two): at most a fourth more."""
    grain = max((1 << (count - 1).bit_length()) // 8, 2 if count > 4 else 1)
    return -(-count // grain) * grain
