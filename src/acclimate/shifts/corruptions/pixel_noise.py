"""Noise: each pixel value changes on its own. All functions take bytes [B,C,S,S], keys [B] and the constant."""

from __future__ import annotations

from functools import lru_cache

import torch
from torch import Tensor

from .linear import normal, to_bytes, uniform


def gaussian_noise(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Adds noise of standard deviation `c` (of full scale): a sensor in low light."""
    return to_bytes(normal(keys, *x.shape[1:]) * (255 * c) + x)


def speckle_noise(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Multiplies by 1 + noise of standard deviation `c`: the noise of coherent imaging."""
    return to_bytes((normal(keys, *x.shape[1:]) * c + 1) * x)


def impulse_noise(x: Tensor, keys: Tensor, c: float) -> Tensor:
    """Replaces a fraction `c` of the values by white or black with equal chance: faulty bits."""
    u = uniform(keys, *x.shape[1:])
    return torch.where(u < c, (u < c / 2).to(torch.uint8) * 255, x)


@lru_cache(maxsize=32)
def poisson_cdf(photons: int, device: torch.device) -> Tensor:
    """P(count <= k) [256, photons + 1] in float64 for the rates `level * photons / 255` of the 256 grey levels."""
    rate = (torch.arange(256, dtype=torch.float64) * photons / 255)[:, None]
    count = torch.arange(photons + 1, dtype=torch.float64)
    return torch.exp(torch.xlogy(count, rate) - rate - torch.lgamma(count + 1)).cumsum(1).clamp(max=1).to(device)


def shot_noise(x: Tensor, keys: Tensor, c: int) -> Tensor:
    """Counts photons: Poisson of mean `x * c`, over `c`. Exact: an inverse CDF per grey level, no approximation.

    Counts above `c` all clip to white, so the tables end there. The rows are laid end to end, row `level` shifted to
    [level, level + 1], so that one sorted search serves all pixels.
    """
    cdf = poisson_cdf(c, x.device)
    level = torch.arange(256, dtype=torch.float64, device=x.device)
    query = uniform(keys, *x.shape[1:]).to(torch.float64) + x
    found = torch.searchsorted((cdf + level[:, None]).flatten(), query, right=True)
    count = (found - x.to(torch.int64) * (c + 1)).clamp(0, c)
    return torch.div(count * 255, c, rounding_mode="floor").to(torch.uint8)
