"""Principal components without a call that waits for the device, so that they can be part of a captured round."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import rng


def principal(x: Tensor, components: int, rounds: int = 6) -> Tensor:
    """Orthonormal directions [D, k] of most variance of x [N, D], by subspace iteration."""
    x = x - x.mean(0)
    size = min(components, *x.shape)
    start = rng.normal(rng.key(0, x.device), x.shape[1], size).to(x.dtype)
    basis = _orthonormal(start)
    for _ in range(rounds):
        basis = _orthonormal(x.mT @ (x @ basis))
    return basis


def _orthonormal(y: Tensor) -> Tensor:
    """The columns made orthonormal through the Cholesky factor of their products, twice for accuracy."""
    for _ in range(2):
        scale = y.square().sum().sqrt().clamp_min(1e-20)
        y = y / scale
        eye = torch.eye(y.shape[1], dtype=y.dtype, device=y.device)
        factor, _ = torch.linalg.cholesky_ex(y.mT @ y + 1e-6 * eye)
        y = torch.linalg.solve_triangular(factor, y.mT, upper=False).mT
    return y
