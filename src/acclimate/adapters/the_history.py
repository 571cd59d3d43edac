"""THE's history of features: a moving average over the samples of a stream, a whole batch at once.

The paper's (Eq. 4) is h^history <- alpha h_{n-1} + (1-alpha) h^history, over the samples before the n-th, and starts
with the first sample's own feature. It is a linear recurrence of frozen features, so a batch is one matrix product.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Tree


def paper(features: Tensor, state: Tree, alpha: float) -> Tensor:
    """h^history of every sample of the batch, from the samples before it."""
    before = alpha * state["last"] + (1 - alpha) * state["history"]
    first = torch.where(state["started"] > 0, before, features[0])
    return _recurrence(first, features, alpha, own=0)


def released(features: Tensor, state: Tree, alpha: float) -> Tensor:
    """The same in the authors' code (`variant="released"`): it takes a sample's own feature in before use, except that
    the first sample of every later batch reuses the last value. So it depends on the batch size."""
    first = torch.where(state["started"] > 0, state["history"], features[0])
    return _recurrence(first, features, alpha, own=1)


def _recurrence(first: Tensor, features: Tensor, alpha: float, own: int) -> Tensor:
    """H_0 = first, H_i = alpha f_{i-1+own} + (1-alpha) H_{i-1}, as one product with a triangular matrix."""
    at = torch.arange(features.shape[0], device=features.device)
    lag = at[:, None] - at[None, :] - (1 - own)
    decay = torch.pow(torch.full_like(features[0, 0], 1 - alpha), lag.clamp_min(0))
    counts = (lag >= 0) & (at[None, :] >= own)  # with `own`, the batch's first feature is not taken in again
    weights = torch.where(counts, alpha * decay, torch.zeros_like(decay))
    fade = torch.pow(torch.full_like(features[0, 0], 1 - alpha), at)
    return fade[:, None] * first + weights @ features
