"""Padded rows: which of them are real, and means over these. Real rows come first, so their number says which."""

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
