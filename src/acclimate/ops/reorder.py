"""Feature maps painted with another sample's values: exact matching of sorted features.

Zhang et al., CVPR 2022 (exact feature distribution matching); FedSPL (Liang et al., AAAI 2025), Eq. 1-4.
"""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import rng


def matched(content: Tensor, style: Tensor) -> Tensor:
    """Along the last axis: the values of `style` in the order of `content`. Equal values keep their places' order."""
    values = style.sort(dim=-1, stable=True).values
    rank = content.argsort(dim=-1, stable=True).argsort(dim=-1)
    return values.gather(-1, rank)


def reorder(x: Tensor, key: rng.Key) -> Tensor:
    """Maps [B, C, H, W] with, channel by channel, each sample's order and the values of another drawn at random."""
    flat = x.flatten(2)
    partner = flat[rng.permutation(rng.fold(key, "shuffle"), x.shape[0])]
    return matched(flat, partner).view_as(x)


def restyled(x: Tensor, key: rng.Key) -> Tensor:
    """`reorder`, with the gradient of x itself: a layer before it learns from the label of the sample that it saw."""
    return x + (reorder(x, key) - x).detach()


def mixed(x: Tensor, key: rng.Key, chance: float, beta: float) -> Tensor:
    """`reorder` in part: with this chance for the batch, and a Beta(beta, beta) weight of its own for each sample.

    Gradients are those of Zhang et al.: x has all of the result's, and the sample whose values are used has its share
    of them besides.
    """
    own = rng.dirichlet(rng.fold(key, "weight"), beta, x.shape[0], 2)[:, :1].to(x.dtype)
    keep = own.view(-1, *[1] * (x.dim() - 1))
    change = (1.0 - keep) * (reorder(x, key) - x.detach())
    used = rng.uniform(rng.fold(key, "chance")) < chance
    return x + torch.where(used, change, torch.zeros_like(change))
