"""Contrastive losses over several views of a batch."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor


def contrastive(z: Tensor, marks: Tensor, temperature: float) -> Tensor:
    """Supervised contrastive loss (Khosla et al., NeurIPS 2020, Eq. 2; FedICON, Eq. 2 and 3), mean over all anchors.

    `z` [views, batch, d] are representations, made unit vectors here; `marks` [batch] says which examples belong
    together. An anchor's positives are all others with its mark, other views of itself included; everything but itself
    is in the denominator. Where every example has a mark of its own this is the unsupervised loss (FedICON, Eq. 5).
    """
    views, batch = z.shape[:2]
    z = F.normalize(z.flatten(0, 1), dim=-1)
    marks = marks.repeat(views)
    own = torch.eye(views * batch, dtype=torch.bool, device=z.device)
    # finite, so that the anchor's own entry times zero below is zero
    scores = (z @ z.mT / temperature).masked_fill(own, torch.finfo(z.dtype).min)
    positive = ((marks[:, None] == marks) & ~own).to(z.dtype)
    explained = (positive * scores.log_softmax(-1)).sum(-1) / positive.sum(-1).clamp_min(1.0)
    return -explained.mean()
