"""Cross-entropy of many clients in few kernels: under `vmap`, differentiable to any order.

Under `vmap` torch takes its own function apart, and asks of every label several times whether it is to be left out. On
a GPU these are two dozen kernels for a few numbers, which counts in a small network's step. Here labels are classes,
all of them count, and the gradient is written down. Elsewhere torch's own function is used.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from .conv import is_batched


def cross_entropy(logits: Tensor, y: Tensor) -> Tensor:
    """The mean over samples of the negative log-probability [] of classes y [B] under logits [B, C]."""
    if not (logits.is_cuda and is_batched(logits) and logits.dim() == 2):
        return F.cross_entropy(logits, y)
    loss: Tensor = _CrossEntropy.apply(logits, y)
    return loss


class _CrossEntropy(torch.autograd.Function):
    generate_vmap_rule = True

    @staticmethod
    def forward(logits: Tensor, y: Tensor) -> Tensor:
        return logits.log_softmax(1).gather(1, y.unsqueeze(1)).mean().neg()

    @staticmethod
    def setup_context(ctx: Any, inputs: tuple[Any, ...], output: Tensor) -> None:
        ctx.save_for_backward(*inputs)

    @staticmethod
    def backward(ctx: Any, slope: Tensor) -> tuple[Tensor, None]:
        logits, y = ctx.saved_tensors
        classes = torch.arange(logits.shape[1], device=y.device)
        return (logits.softmax(1) - (y.unsqueeze(1) == classes).to(logits.dtype)) * (slope / len(y)), None
