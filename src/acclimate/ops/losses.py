"""Losses and uncertainty measures of logits."""

from __future__ import annotations

from torch import Tensor


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy (nats) of the softmax, per row."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)
