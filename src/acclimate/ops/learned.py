"""A learned loss of unlabelled samples: the l2-norm of a small network's outputs on logits (FedTTA, Eq. 2)."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Tree
from . import nets

TINY = 1e-12
"""Under the root, so that its derivatives of any order stay finite where every output is zero."""


def scores(net: Tree, logits: Tensor) -> Tensor:
    """How poorly the model does on each sample, as the network sees it: [B]. A sample's score is its own alone."""
    return nets.apply(net, logits)[:, 0]


def learned_loss(net: Tree, logits: Tensor, real: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
    """The norm of the scores over the samples, whatever their order.

    `real` (bool [B]) leaves out padding. With `batch`, it is the norm that this many samples of the same mean square
    would have: the norm grows with the root of the number of samples, and a rate that was learned on batches fits no
    other number.
    """
    squares = scores(net, logits) ** 2
    weight = torch.ones_like(squares) if real is None else real.to(squares.dtype)
    total = (squares * weight).sum()
    if batch is not None:
        total = total * batch / weight.sum().clamp_min(1.0)
    return (total + TINY).sqrt()
