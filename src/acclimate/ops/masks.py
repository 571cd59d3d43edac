"""Rows of tables: which are real where tables are padded, means over these, and a client's own row."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Tree, tree


def real_rows(size: int, n: Tensor) -> Tensor:
    """Which of `size` rows are real: the first n, as bool [size]."""
    return torch.arange(size, device=n.device) < n


def mean_of(rows: Tensor, real: Tensor) -> Tensor:
    """The mean over the real ones of rows [size, ...]; zero where there is none. Others may hold what is no number."""
    weight = real.to(rows.dtype)
    each = weight.view(-1, *[1] * (rows.dim() - 1))
    return (rows.masked_fill(each == 0, 0.0) * each).sum(0) / weight.sum().clamp_min(1.0)


def own_share(shares: Tensor, client: Tensor) -> Tensor:
    """A client's own entry of a table that has one for each; plain indexing would ask the host."""
    return shares.index_select(0, client.reshape(1))[0]


def own_row(table: Tree, client: Tensor) -> Tree:
    """A client's own row of every leaf of a tree that has one for each."""
    row: Tree = tree.map(lambda rows: own_share(rows, client), table)
    return row


def mean_row(table: Tree, seen: Tensor) -> Tree:
    """The mean over the clients that `seen` marks of every leaf that has a row for each; over all where it marks none.

    Where it marks all, it is the plain mean to the last bit.
    """
    real = torch.where(seen.any(), seen, torch.ones_like(seen)) > 0
    row: Tree = tree.map(lambda rows: torch.where(real.all(), rows.mean(0), mean_of(rows, real)), table)
    return row


def held_out(data: Tree, parts: int) -> tuple[Tree, Tree]:
    """A client's data without one in `parts` of its examples, and these; a lone example serves both."""
    size, n = data["rows"].shape[-1], data["n"].clamp_min(1)
    held = torch.div(n, parts, rounding_mode="floor").clamp_min(1)
    rest = (n - held).clamp_min(1)
    places = torch.arange(max(size // parts, 1), device=n.device)
    # fewer rows than the table has room for: the steps beyond them must be undone
    padded = {**data, "ragged": torch.ones_like(data["round"], dtype=torch.bool)}
    return {**padded, "n": rest}, {**padded, "n": held, "rows": data["rows"][(n - held + places) % n]}
