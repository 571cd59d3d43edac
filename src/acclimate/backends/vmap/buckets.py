"""Who runs together: clients of similar size in groups whose shapes are few, so that padding and recordings are."""

from __future__ import annotations

import functools
import logging
import math
from collections.abc import Callable, Iterator
from typing import Literal, NamedTuple, TypeVar

import torch
from torch import Tensor

from ...core import Holdings, Private, Tree, tree
from ...core.loops import Room
from . import rooms

log = logging.getLogger("acclimate")
T = TypeVar("T")
Verb = Literal["train", "test"]
"""What clients are run for; how many fit at once is another number for each."""


class Group(NamedTuple):
    """Clients that run together: padded to the same number of examples each, the first `real` of them count."""

    ids: Tensor
    rows: Tensor
    n: Tensor
    ragged: bool
    real: int
    who: Tensor
    """The ids on the host."""
    most: int
    """Examples of the largest client that it may have: `size` may be more, so that recordings are shared."""

    @property
    def size(self) -> int:
        """Examples of each client, padding included."""
        return self.rows.shape[-1]

    @property
    def room(self) -> Room:
        """What a recording that is shared must know of them."""
        return Room(self.size, self.most)

    def asked(self, mine: Private) -> Tensor:
        """The clients' numbers where this private state wants them, on the host or on the device."""
        return self.who if mine.far else self.ids

    def same(self, other: Group | None) -> bool:
        """Whether these are the same clients with the same padding."""
        return other is not None and self.size == other.size and torch.equal(self.who, other.who)


class Buckets:
    """Cuts clients into groups that run at once, and into smaller ones whenever memory runs out."""

    def __init__(
        self,
        waste: float,
        chunk: int | None,
        device: torch.device,
        there: Callable[[Tensor], Tensor],
        short: Callable[[], None],
    ) -> None:
        """`there` brings numbers of the host to the device; `short` is called when memory ran out."""
        most = chunk or (128 if device.type == "cuda" else 32)
        self.chunk: dict[str, int] = {"train": most, "test": most}
        """How many clients run at once."""
        self._fixed, self._waste, self._there, self._short = chunk is not None, waste, there, short
        self.few_shapes = device.type == "cuda"
        """Whether groups have few shapes, so that they share recordings: on a GPU. Where nothing is recorded they have,
        too, and so the same numbers."""

    def groups(self, shards: Holdings, clients: Tensor, work: Verb = "train", shares: bool = False) -> Iterator[Group]:
        """These clients, cut into groups. Where it `shares` recordings, the shards are `rooms.widened`."""
        # recordings are made for shapes, so what a drawn cohort looks like must not matter much
        drawn = self.few_shapes and len(clients) < shards.clients
        largest = shards.largest if drawn else None
        for members, size, count in plan(shards.sizes[clients], self._waste, self.chunk[work], largest):
            who = clients[members]
            ragged = shares or (not shards.even if drawn else bool((shards.sizes[who] != size).any()))
            padded = torch.cat([who, who[:1].expand(count - len(who))])
            ids, n = self._there(torch.stack((padded, shards.sizes[padded])))  # on one way
            room = min(1 << (size - 1).bit_length(), shards.largest) if drawn and not shards.far else size
            if shares:
                room = rooms.shared(size, count, shards)
            yield Group(ids, shards.placed_rows(ids, room), n, ragged, len(who), padded, size)

    def with_fewer(self, work: Verb, clients: int, run: Callable[[], T]) -> T:
        """Run so many clients, half as many of them at once whenever memory is short."""
        while True:
            try:
                return run()
            except torch.cuda.OutOfMemoryError:
                at_once = min(self.chunk[work], clients)
                if self._fixed or at_once == 1:
                    raise
                self.chunk[work] = at_once // 2
                self._short()
                torch.cuda.empty_cache()
                log.warning("out of GPU memory: going on to %s %d clients at once", work, self.chunk[work])

    def collect(self, shards: Holdings, clients: Tensor, run: Callable[[Group], Tree], shares: bool = False) -> Tree:
        """What `run` gives for the groups of these clients, in ascending order of clients."""

        def each() -> list[tuple[Tensor, Tree]]:
            groups = self.groups(shards, clients, "test", shares)
            return [(g.who[: g.real], tree.map(lambda x, r=g.real: x[:r], run(g))) for g in groups]

        parts = self.with_fewer("test", len(clients), each)
        order = self._there(torch.argsort(torch.cat([who for who, _ in parts])))
        collected: Tree = tree.map(lambda *xs: torch.cat(xs)[order], *(t for _, t in parts))
        return collected


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
    if bool((sizes == largest).all()):
        return [(torch.arange(len(sizes)), largest)]
    tops = ladder(waste, largest)
    rung = torch.searchsorted(tops, sizes)
    return [((rung == r).nonzero()[:, 0], int(tops[r])) for r in rung.unique().flip(0).tolist()]


@functools.lru_cache(maxsize=8)
def ladder(waste: float, largest: int) -> Tensor:
    """The tops of all rungs, ascending."""
    tops = [largest]
    while tops[-1] > 0:
        tops.append(max(math.ceil((1 - waste) * tops[-1]) - 1, 0))
    return torch.tensor(tops[::-1])


def rounded(count: int) -> int:
    """Up to 1, 2, 3, 4, 6, 8, 10, 12, 14, 16, 20, ... (an eighth of a power of two): at most a fourth more."""
    grain = max((1 << (count - 1).bit_length()) // 8, 2 if count > 4 else 1)
    return -(-count // grain) * grain
