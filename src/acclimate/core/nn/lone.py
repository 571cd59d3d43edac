"""Layers of a client that runs alone on x86, where torch's own convolutions are the quickest (`products.NATIVE`).

Weights lie as images do, a pixel's channels side by side: otherwise each call puts them into that order. The bias of a
convolution is added after its pooling, to a quarter of the numbers, and its gradient is a sum over a quarter. What
follows is the same to the bit, since rounding never turns the larger of two numbers into the smaller one.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from . import products
from .mapping import is_tracked

ALONE = True
"""Whether these ways are taken where they can be; comparisons with layers as anybody would write them leave them."""
ORDER = torch.channels_last
"""How images and weights lie in memory."""


def serves(x: Tensor) -> bool:
    """Whether this is a tensor with four axes of a client that is alone on x86."""
    here = ALONE and products.NATIVE and x.device.type == "cpu" and x.dim() == 4
    return here and not torch._C._are_functorch_transforms_active()


def arranged(x: Tensor) -> Tensor:
    """A parameter in the order in which such a client trains it; `x.contiguous()` gives its own order back."""
    return x.contiguous(memory_format=ORDER) if serves(x) else x


def pooled(layer: Any, relu: bool, x: Tensor) -> Tensor | None:
    """What a convolution, 2 x 2 pooling and perhaps ReLU make of x; None where no gradient goes through its bias."""
    if layer.bias is None or not is_tracked(layer.bias):
        return None
    y = layer._conv_forward(x, layer.weight, None)
    if min(y.shape[2:]) < 2:
        return None
    y = F.max_pool2d(y, 2, 2).add_(layer.bias[:, None, None])
    return y.relu_() if relu else y
