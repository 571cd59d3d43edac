"""Points of the probability simplex: the nearest to a vector, and the best mixtures of estimates."""

from __future__ import annotations

import torch
from torch import Tensor


def project(v: Tensor) -> Tensor:
    """The nearest point of the probability simplex, of each row: v less a common number, floored at zero."""
    high = v.sort(-1, descending=True).values
    count = torch.arange(1, v.shape[-1] + 1, device=v.device, dtype=v.dtype)
    excess = (high.cumsum(-1) - 1.0) / count  # what to take off if exactly the first `count` entries stay
    stays = (high > excess).sum(-1, keepdim=True) - 1
    return (v - excess.gather(-1, stays)).clamp_min(0.0)


def best_mixtures(points: Tensor, variance: Tensor, steps: int = 300) -> Tensor:
    """Row i is the a of the simplex of least |points_i - a points|^2 + sum_j a_j^2 variance_j: bias and variance of a
    mixture of estimates [m, ...] as an estimate of the i-th. By accelerated projected gradients (FISTA) from a = e_i,
    a row slowing down where its momentum leads uphill.
    """
    flat = (points - points.mean(0)).flatten(1)  # what all have in common cancels, as weights sum to one
    among = flat @ flat.mT
    rate = 1.0 / (torch.linalg.eigvalsh(among)[-1] + variance.max()).clamp_min(1e-12)
    own = torch.eye(len(flat), device=flat.device, dtype=flat.dtype)
    best = ahead = own
    speed = torch.ones_like(own[:, :1])
    for _ in range(steps):
        new = project(ahead - rate * ((ahead - own) @ among + ahead * variance))
        uphill = ((ahead - new) * (new - best)).sum(-1, keepdim=True) > 0
        speed = torch.where(uphill, torch.ones_like(speed), speed)
        faster = (1 + (1 + 4 * speed**2).sqrt()) / 2
        ahead = new + torch.where(uphill, torch.zeros_like(speed), (speed - 1) / faster) * (new - best)
        best, speed = new, faster
    return best
