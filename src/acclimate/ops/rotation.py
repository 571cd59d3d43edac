"""Quarter turns of images: the auxiliary task of test-time training."""

from __future__ import annotations

import torch
from torch import Tensor


def turned(x: Tensor, quarters: Tensor) -> Tensor:
    """Each image [B, C, S, S] turned counter-clockwise by its number (0..3) of quarter turns."""
    every = torch.stack([torch.rot90(x, q, (-2, -1)) for q in range(4)])
    return every[quarters, torch.arange(x.shape[0], device=x.device)]
