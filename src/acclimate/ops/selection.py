"""Scores by which one of several adapters is chosen for a stream, and the choice itself. Higher is better in all.

Only `source` and `oracle` use labels: those of validation data, and those of the stream.
"""

from __future__ import annotations

import math
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from .estimates import entropy, mean

Strategy = Literal["fixed", "source", "entropy", "consistency", "snd", "oracle"]
"""The first candidate, the best on labelled validation data, the most certain, the one whose answers change least
under augmentation, the one whose answers lie densest, and the best on the stream's own labels."""
STRATEGIES: tuple[Strategy, ...] = ("fixed", "source", "entropy", "consistency", "snd", "oracle")
WITHOUT_LABELS: tuple[Strategy, ...] = STRATEGIES[:-1]
"""Those that need no label of the stream."""


def certainty(logits: Tensor, real: Tensor) -> Tensor:
    """The negative mean entropy, in nats, of the answers [N, C] in the rows that count."""
    return -mean(entropy(logits.softmax(-1)), real)


def density(logits: Tensor, real: Tensor, temperature: float = 0.05) -> Tensor:
    """Soft neighbourhood density of answers [N, C] (Saito et al., ICCV 2021).

    Each answer's probabilities are a vector of length 1. A softmax over a sample's cosine similarities with all others
    says which are its neighbours; the score is that softmax's mean entropy in nats. Samples in large, tight groups have
    many neighbours. NaN where fewer than two rows count.
    """
    near = F.normalize(logits.softmax(-1), dim=-1)
    similar = near @ near.T / temperature
    others = real[None, :] & ~torch.eye(len(near), dtype=torch.bool, device=near.device)
    shares = similar.masked_fill(~others, -math.inf).softmax(-1)
    return mean(entropy(shares), real)


def best(scores: Tensor) -> Tensor:
    """The highest of the scores [..., candidates], the first of equals; NaN is never chosen where another is there."""
    return scores.nan_to_num(nan=-math.inf).argmax(-1)


def best_of_each(scores: Tensor, together: Tensor) -> Tensor:
    """Every client's choice by its own scores [clients, candidates]; by those of all `together` where it has none."""
    return torch.where(scores.isnan().all(-1), best(together), best(scores))
