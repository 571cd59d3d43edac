"""Gaussian and Laplace noise, mixed into a value as FedPCL's Table 15 does it with prototypes and with images."""

from __future__ import annotations

from typing import Literal

import torch
from torch import Tensor

from ..core import rng

Kind = Literal["gaussian", "laplace"]


def perturbed(x: Tensor, key: rng.Key, kind: Kind, s: float, p: float) -> Tensor:
    """(1 - p) x + p e with noise e of scale s; p = 0 is the identity."""
    return (1.0 - p) * x + (p * s) * draw(kind, key, x)


def draw(kind: Kind, key: rng.Key, like: Tensor) -> Tensor:
    """Noise of scale one: a standard Gaussian, or a Laplace variable with b = 1."""
    if kind == "gaussian":
        return rng.normal(key, *like.shape).to(like.dtype)
    u = (rng.uniform(key, *like.shape) - 0.5) + 2.0**-25  # exact in float32: symmetric, and never at the ends
    return (-torch.sign(u) * torch.log1p(-2.0 * u.abs())).to(like.dtype)
