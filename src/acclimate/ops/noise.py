"""Gaussian and Laplace noise on a value, as in FedPCL's Table 15: on prototypes and on images.

The paper prints (1 - p) x + e below its Figure 6, with a perturbation coefficient p and, in Table 15, noise e of scale
s; its published code has the same. So p takes from x alone, and s = 0 together with p = 0 changes nothing.

In revision 1 the noise was p e. It is p times as strong: a tenth or a fifth with the table's settings.
"""

from __future__ import annotations

from typing import Literal, TypeAlias

import torch
from torch import Tensor

from ..core import rng

Kind = Literal["gaussian", "laplace"]
Revision: TypeAlias = Literal[1, 2]
"""The revisions of `perturbed`. A record names the one it was made for, so that old runs keep their meaning."""


def perturbed(x: Tensor, key: rng.Key, kind: Kind, s: float, p: float, revision: int = 2) -> Tensor:
    """(1 - p) x + e with noise e of scale s: the deviation of a Gaussian, the b of a Laplace distribution."""
    scale = p * s if revision == 1 else s
    return (1.0 - p) * x + scale * draw(kind, key, x)


def draw(kind: Kind, key: rng.Key, like: Tensor) -> Tensor:
    """Noise of scale one: a standard Gaussian, or a Laplace variable with b = 1."""
    if kind == "gaussian":
        return rng.normal(key, *like.shape).to(like.dtype)
    u = (rng.uniform(key, *like.shape) - 0.5) + 2.0**-25  # exact in float32: symmetric, and never at the ends
    return (-torch.sign(u) * torch.log1p(-2.0 * u.abs())).to(like.dtype)
