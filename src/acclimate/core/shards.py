"""Labelled examples, and which of them each client holds: on the device, or in host memory."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import ClassVar

import torch
from torch import Tensor

from .tree import Tree


@dataclass(frozen=True)
class Holdings(ABC):
    """What the clients of a federation hold: `n[k]` of the examples `x`, `y` are client k's, `rows` says which."""

    x: Tensor
    y: Tensor
    rows: Tensor
    n: Tensor

    far: ClassVar[bool] = False
    """Whether the examples stay in host memory, so that those of a few clients must be fetched."""

    @property
    def clients(self) -> int:
        """How many clients there are."""
        return self.n.shape[0]

    @cached_property
    def sizes(self) -> Tensor:
        """How many examples each client holds, on the host: to plan with, without asking the device."""
        return self.n.cpu()

    @cached_property
    def even(self) -> bool:
        """Whether all clients hold equally many examples."""
        return bool((self.sizes == self.sizes[0]).all())

    @cached_property
    def largest(self) -> int:
        """How many examples the largest client holds, and at least one."""
        return max(int(self.sizes.max()), 1)

    @property
    def longest(self) -> int:
        """The room that a client takes when all take the same: no less than `largest`."""
        return self.largest

    @abstractmethod
    def to(self, device: torch.device | str) -> Holdings:
        """The same for clients that run on this device."""

    @abstractmethod
    def on_host(self) -> HostShards:
        """The same clients and examples in host memory."""

    @abstractmethod
    def own(self, k: int) -> Tensor:
        """The rows of client k, without padding."""

    @abstractmethod
    def table(self, ids: Tensor, size: int) -> Tensor:
        """The rows of some clients, each cut or padded to `size`."""

    @abstractmethod
    def some(self, ids: Tensor) -> Holdings:
        """These clients alone; the examples are not copied."""

    def fetch(self, ids: Tensor, size: int, pinned: bool = False) -> Tree:
        """What must travel to the device before some clients run: `x`, `y`, `size` examples for each, one client after
        the other. Nothing, where all examples lie there."""
        return {}

    def placed_rows(self, ids: Tensor, size: int) -> Tensor:
        """Where the examples of some clients lie on the device, once they are fetched: [clients, size]."""
        return self.table(ids, size)

    def named(self, ids: Tensor) -> Tree:
        """How clients are known to what they run, for `tree` and beside it: by their number alone."""
        return {"id": ids}

    def tree(self, rows: Tensor, n: Tensor, ids: Tensor, round: Tensor, ragged: bool) -> Tree:
        """Client data as `client`, `run` and `step` receive it (see `core.local`)."""
        data = {"x": self.x, "y": self.y, "rows": rows, "n": n, "id": ids, "round": round}
        return {**data, "ragged": torch.ones_like(round, dtype=torch.bool)} if ragged else data


@dataclass(frozen=True)
class Shards(Holdings):
    """`x`, `y` lie once on the device; client k holds the examples `rows[k, :n[k]]` (padding repeats its first row)."""

    @classmethod
    def of(cls, x: Tensor, y: Tensor, rows: Sequence[Tensor]) -> Shards:
        """From one index tensor per client. A client may hold nothing."""
        n = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        table = torch.zeros(len(rows), max(int(n.max()) if len(rows) else 0, 1), dtype=torch.int64)
        for k, r in enumerate(rows):
            table[k, : len(r)] = r
            if len(r):
                table[k, len(r) :] = r[0]
        return cls(x, y, table, n)

    @property
    def longest(self) -> int:
        return self.rows.shape[-1]

    def to(self, device: torch.device | str) -> Shards:
        """The same shards on a device."""
        return Shards(*(t.to(device) for t in (self.x, self.y, self.rows, self.n)))

    def on_host(self) -> HostShards:
        x, y, rows, n = (t.cpu() for t in (self.x, self.y, self.rows, self.n))
        return HostShards(x, y, rows[torch.arange(rows.shape[1]) < n[:, None]], n)

    def own(self, k: int) -> Tensor:
        return self.rows[k, : int(self.n[k])]

    def table(self, ids: Tensor, size: int) -> Tensor:
        return self.rows[ids, : max(size, 1)]

    def some(self, ids: Tensor) -> Shards:
        at = ids.to(self.rows.device)
        return Shards(self.x, self.y, self.rows[at], self.n[at])


@dataclass(frozen=True)
class HostShards(Holdings):
    """Examples that stay in host memory, `x` and `y` as tensors or memory-mapped files: only what a few clients hold
    travels to the device (`fetch`). `rows` is one flat array, client after client: very uneven clients need no padding.
    """

    far: ClassVar[bool] = True

    @classmethod
    def of(cls, x: Tensor, y: Tensor, rows: Sequence[Tensor]) -> HostShards:
        """From one index tensor per client. A client may hold nothing."""
        n = torch.tensor([len(r) for r in rows], dtype=torch.int64)
        return cls(x, y, torch.cat([*rows]) if len(rows) else torch.zeros(0, dtype=torch.int64), n)

    @cached_property
    def starts(self) -> Tensor:
        """Where each client's rows begin."""
        return self.n.cumsum(0) - self.n

    def to(self, device: torch.device | str) -> HostShards:
        """These shards: their examples travel when they are fetched."""
        return self

    def on_host(self) -> HostShards:
        return self

    def own(self, k: int) -> Tensor:
        return self.rows[int(self.starts[k]) :][: int(self.n[k])]

    def table(self, ids: Tensor, size: int) -> Tensor:
        position = torch.arange(max(size, 1))
        held = torch.where(position < self.n[ids, None], position, 0) + self.starts[ids, None]
        return self.rows[held.clamp_max(len(self.rows) - 1)] if len(self.rows) else torch.zeros_like(held)

    def some(self, ids: Tensor) -> HostShards:
        return HostShards.of(self.x, self.y, [self.own(k) for k in ids.tolist()])

    def fetch(self, ids: Tensor, size: int, pinned: bool = False) -> Tree:
        rows = self.table(ids, size).reshape(-1)
        return {"x": _select(self.x, rows, pinned), "y": _select(self.y, rows, pinned)}

    def placed_rows(self, ids: Tensor, size: int) -> Tensor:
        return torch.arange(len(ids) * max(size, 1), device=ids.device).view(len(ids), -1)


def _select(x: Tensor, rows: Tensor, pinned: bool) -> Tensor:
    out = torch.empty(len(rows), *x.shape[1:], dtype=x.dtype, pin_memory=pinned)
    return torch.index_select(x, 0, rows, out=out)
