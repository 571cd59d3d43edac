"""Gaussian and Laplace noise, mixed into a value as in FedPCL's Table 15, with prototypes and with images.

The paper names a scale s of the noise and a coefficient p of the perturbation, and prints (1 - p) x + e below its
Figure 6. Read here: p is the noise's coefficient, as Table 15 calls it, so e is p times noise of scale s, and p = 0
changes nothing. Were e of scale s itself, noise would be five to ten times as strong there: `s=0.5, p=0.1` has it.
"""

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
