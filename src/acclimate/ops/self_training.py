"""Losses of a model against its own answers, and the scale of weights over a batch."""

from __future__ import annotations

import torch
from torch import Tensor


def likelihood_ratio(logits: Tensor, most: float = 0.99) -> Tensor:
    """The soft likelihood ratio of every row, -sum_c p_c log(p_c / (1 - p_c)), with probabilities of at most `most`."""
    p = logits.softmax(-1).clamp_max(most)
    return -(p * (p / (1.0 - p) + 1e-5).log()).sum(-1)


def symmetric(a: Tensor, b: Tensor) -> Tensor:
    """Half the cross-entropy of two answers, each with the other as its target, of every row of logits."""
    return -0.5 * (a.softmax(-1) * b.log_softmax(-1) + b.softmax(-1) * a.log_softmax(-1)).sum(-1)


def scaled(values: Tensor) -> Tensor:
    """Values from 0 to 1 over the batch; zeros where all are alike."""
    low = values.amin()
    return (values - low) / (values.amax() - low).clamp_min(torch.finfo(values.dtype).tiny)


def rarity(logits: Tensor, frequency: Tensor) -> Tensor:
    """Weights of samples, of mean one: one over the frequency of the class that each is answered with."""
    weight = 1.0 / frequency.clamp_min(1e-6)[logits.argmax(-1)]
    return weight / weight.mean()
