"""Labelled examples, and which of them each client holds: one array for all, a row of indices per client."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from .tree import Tree


@dataclass(frozen=True)
class Shards:
    """`x`, `y` lie once on the device; client k holds the examples `rows[k, :n[k]]` (padding repeats its first row)."""

    x: Tensor
    y: Tensor
    rows: Tensor
    n: Tensor

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
    def clients(self) -> int:
        """How many clients there are."""
        return self.rows.shape[0]

    def to(self, device: torch.device | str) -> Shards:
        """The same shards on a device."""
        return Shards(*(t.to(device) for t in (self.x, self.y, self.rows, self.n)))

    def own(self, k: int) -> Tensor:
        """The rows of client k, without padding."""
        return self.rows[k, : int(self.n[k])]

    def tree(self, rows: Tensor, n: Tensor, ids: Tensor, round: Tensor, ragged: bool) -> Tree:
        """Client data as `client`, `run` and `step` receive it (see `core.local`)."""
        data = {"x": self.x, "y": self.y, "rows": rows, "n": n, "id": ids, "round": round}
        return {**data, "ragged": torch.ones_like(round, dtype=torch.bool)} if ragged else data
