"""Quarter turns of images: the auxiliary task of test-time training."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core.task import Task


def turned(x: Tensor, quarters: Tensor) -> Tensor:
    """Each image [B, C, S, S] turned counter-clockwise by its number (0..3) of quarter turns."""
    every = torch.stack([torch.rot90(x, q, (-2, -1)) for q in range(4)])
    return every[quarters, torch.arange(x.shape[0], device=x.device)]


def square(task: Task) -> bool:
    """Whether the inputs are images that a quarter turn leaves in shape."""
    return len(task.shape) == 3 and task.shape[-1] == task.shape[-2]
