"""Rows of tables: which are real where tables are padded, means over these, and a client's own row."""

from __future__ import annotations

import torch
from torch import Tensor


def real_rows(size: int, n: Tensor) -> Tensor:
    """Which of `size` rows are real: the first n, as bool [size]."""
    return torch.arange(size, device=n.device) < n


def mean_of(rows: Tensor, real: Tensor) -> Tensor:
    """The mean over the real ones of rows [size, ...]; zero where there is none."""
    weight = real.to(rows.dtype)
    return (rows * weight.view(-1, *[1] * (rows.dim() - 1))).sum(0) / weight.sum().clamp_min(1.0)


def own_share(shares: Tensor, client: Tensor) -> Tensor:
    """A client's own entry of a table that has one for each; plain indexing would ask the host."""
    return shares.index_select(0, client.reshape(1))[0]
