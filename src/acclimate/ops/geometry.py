"""Geometry of image batches."""

from __future__ import annotations

import math

import torch
import torch.nn.functional as F
from torch import Tensor


def rotate(x: Tensor, degrees: float) -> Tensor:
    """uint8 (or float) images [B, C, H, W] turned counter-clockwise about their centre, bilinear, zero outside."""
    if x.dim() != 4:
        raise ValueError(f"only images [batch, channels, height, width] can be rotated, got shape {tuple(x.shape)}")
    if degrees % 360 == 0 or len(x) == 0:
        return x
    turn = math.radians(degrees)
    h, w = x.shape[-2:]
    # the grid maps an output place to the input place it comes from, in units of half the image
    matrix = torch.tensor(
        [
            [math.cos(turn), -math.sin(turn) * h / w, 0.0],
            [math.sin(turn) * w / h, math.cos(turn), 0.0],
        ],
        device=x.device,
    )
    grid = F.affine_grid(matrix.expand(len(x), 2, 3), list(x.shape), align_corners=False)
    turned = F.grid_sample(x.to(torch.float32), grid, mode="bilinear", padding_mode="zeros", align_corners=False)
    return turned.round().clamp(0, 255).to(torch.uint8) if x.dtype == torch.uint8 else turned.to(x.dtype)
