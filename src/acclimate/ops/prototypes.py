"""Class prototypes: mean features per class, how they are pooled and padded, and contrastive losses against them.

A set of prototypes is a tensor [C, d], counts [C] say how many examples each row is the mean of; a count of zero marks
a class that its owner has not seen, whose row then means nothing.
"""

from __future__ import annotations

import torch
from torch import Tensor

from .real import real_rows


def class_means(features: Tensor, y: Tensor, n: Tensor, num_classes: int) -> tuple[Tensor, Tensor]:
    """Prototypes and counts of the first `n` rows (FedPCL's Eq. 5); rows of unseen classes are zero."""
    real = real_rows(y.shape[-1], n)
    member = ((y[:, None] == torch.arange(num_classes, device=y.device)) & real[:, None]).to(features.dtype)
    counts = member.sum(0)
    return (member.mT @ features) / counts.clamp_min(1.0)[:, None], counts


def pooled(sets: Tensor, counts: Tensor) -> tuple[Tensor, Tensor]:
    """One set from several, [m, C, d] and [m, C]: per class the mean weighted by counts, and the summed counts.

    FedPCL's Eq. 6 with weights that sum to one; as printed it divides by the number of owners once more.
    """
    total = counts.sum(0)
    weights = counts / total.clamp_min(1.0)
    return (weights[..., None] * sets).sum(0), total


def padded(sets: Tensor, counts: Tensor, common: Tensor) -> Tensor:
    """Sets in which the rows of unseen classes are the common ones (Eq. 7)."""
    return torch.where((counts > 0)[..., None], sets, common)


def similarities(z: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """Scaled inner products [B, ..., C] of features [B, d] with prototypes [..., C, d]; classes not `known` get a value
    so low that softmax and argmax never meet them."""
    scores = torch.einsum("bd,...cd->b...c", z, prototypes) / tau
    return torch.where(known > 0, scores, torch.full_like(scores, -1e4))


def prototype_loss(z: Tensor, y: Tensor, prototypes: Tensor, known: Tensor, tau: float) -> Tensor:
    """FedPCL's contrastive term per sample, for each of the sets [..., C, d]: [B, ...] (inside Eq. 8 and Eq. 9).

    Minus the similarity to the own class, plus the log-sum-exp over all *other* known classes: as printed, the
    positive is not in the denominator. Zero where the own class, or every other one, is not known.
    """
    scores = similarities(z, prototypes, known, tau)
    own = y[:, None] == torch.arange(scores.shape[-1], device=y.device)
    own = own.reshape(own.shape[0], *[1] * (scores.dim() - 2), own.shape[-1])
    positive = torch.where(own, scores, torch.zeros_like(scores)).sum(-1)
    negative = torch.where(own, torch.full_like(scores, -1e4), scores).logsumexp(-1)
    sound = (own & (known > 0)).any(-1) & (~own & (known > 0)).any(-1)
    return torch.where(sound, negative - positive, torch.zeros_like(positive))


def supervised_contrast(anchors: Tensor, z: Tensor, y: Tensor, tau: float) -> Tensor:
    """SupCon (Khosla et al., NeurIPS 2020, Eq. 2): row i of `anchors` against all rows of z but the i-th.

    Positives are the rows of the same label. Anchors without one count zero, and are not counted in the mean.
    """
    scores = anchors @ z.mT / tau
    itself = torch.eye(y.shape[-1], dtype=torch.bool, device=y.device)
    same = (y[:, None] == y[None, :]) & ~itself
    log_p = scores.masked_fill(itself, -1e4).log_softmax(-1)
    per = torch.where(same, log_p, torch.zeros_like(log_p)).sum(-1) / same.sum(-1).clamp_min(1)
    return -per.sum() / same.any(-1).sum().clamp_min(1)
