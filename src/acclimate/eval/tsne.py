"""t-SNE: points in many dimensions drawn in two, so that neighbours stay neighbours.

Van der Maaten & Hinton, JMLR 2008: Gaussian neighbourhoods of equal perplexity above, Student's t below, KL divergence
in between. Exact (every pair counts), started from principal components and with nothing random, so that the same
points give the same picture. Time and memory grow with the square of the number of points: meant for a few thousand.
"""

from __future__ import annotations

import math

import torch
from torch import Tensor

EXAGGERATION = 12.0
"""How much stronger neighbours attract in the first half, so that clusters can still pass each other."""

LARGE = 1e15
"""Points that are further apart are scaled: their squared distances would be infinite."""


def embed(points: Tensor, perplexity: float = 30.0, steps: int = 500) -> Tensor:
    """Places in the plane, [N, 2], of points [N, D]. `perplexity` is about how many neighbours a point has."""
    if points.dim() != 2:
        raise ValueError(f"points has shape {tuple(points.shape)}; t-SNE needs [points, dimensions]")
    if perplexity <= 1:
        raise ValueError(f"perplexity={perplexity!r} must be above 1")
    count = points.shape[0]
    close = principal(points, 50)
    size = close.abs().amax() if close.numel() else 0.0
    close = (close / size if size > LARGE else close).to(torch.float32)  # t-SNE knows no scale, and squares overflow
    place = _two_columns(close) / close[:, :1].std().clamp_min(1e-12) * 1e-4 if count > 1 else _two_columns(close)
    if count < 4:
        return place
    near = affinities(close, min(perplexity, (count - 1) / 3))
    strong = EXAGGERATION * near
    rate = max(count / EXAGGERATION / 4, 50.0)
    speed, gain = torch.zeros_like(place), torch.ones_like(place)
    for step in range(steps):
        early = step < min(steps // 2, 250)
        slope = gradient(strong if early else near, place)
        gain = torch.where(slope * speed < 0, gain + 0.2, gain * 0.8).clamp_min(0.01)
        speed = (0.5 if early else 0.8) * speed - rate * gain * slope
        place = place + speed
        place = place - place.mean(0)
    return place


def principal(points: Tensor, most: int) -> Tensor:
    """Coordinates along the first `most` principal axes, [N, at most `most`], in double precision.

    An axis has no sign of its own: here the coordinate that is largest in size is positive.
    """
    centred = points.to(torch.float64)
    centred = centred - centred.mean(0)
    left, scale, _ = torch.linalg.svd(centred, full_matrices=False)
    along = (left * scale)[:, :most]
    if not along.numel():
        return along
    largest = along.gather(0, along.abs().argmax(0, keepdim=True))
    return along * torch.where(largest < 0, -1.0, 1.0)


def affinities(points: Tensor, perplexity: float) -> Tensor:
    """How near every two points are, [N, N], symmetric, summing to 1: each row's Gaussian has this perplexity."""
    apart = torch.cdist(points, points).square()
    apart.fill_diagonal_(math.inf)
    apart = apart - apart.amin(1, keepdim=True)  # only differences matter, and the nearest now never underflows
    low, high = torch.zeros_like(apart[:, :1]), torch.full_like(apart[:, :1], math.inf)
    beta = torch.ones_like(low) / apart.masked_fill(apart.isinf(), 0.0).mean(1, keepdim=True).clamp_min(1e-12)
    for _ in range(40):
        row = (-beta * apart).softmax(1)
        wide = torch.special.entr(row).sum(1, keepdim=True) > math.log(perplexity)
        low, high = torch.where(wide, beta, low), torch.where(wide, high, beta)
        beta = torch.where(high.isinf(), beta * 2, (low + high) / 2).clamp_max(1e30)
    row = (-beta * apart).softmax(1)
    return (row + row.T) / (2 * points.shape[0])


def gradient(near: Tensor, place: Tensor) -> Tensor:
    """The slope of the KL divergence between `near` and the affinities of the places, [N, 2]."""
    reach = place.square().sum(1)
    kernel = torch.addmm(1 + reach[:, None] + reach, place, place.T, alpha=-2).clamp_min_(1.0).reciprocal_()
    kernel.fill_diagonal_(0.0)
    pull = torch.sub(near, kernel / kernel.sum()).mul_(kernel)  # few passes over N x N: they are all that takes time
    return 4 * (pull.sum(1, keepdim=True) * place - pull @ place)


def _two_columns(points: Tensor) -> Tensor:
    """The first two columns; zeros where there are fewer."""
    return torch.cat((points, points.new_zeros(points.shape[0], 2)), 1)[:, :2]
