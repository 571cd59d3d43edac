"""Contrastive losses between two views of a batch, of MBSL's paper and of its released code."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import rng
from ..ops.masks import mean_of

LEAST = 1e-6
"""What is added to the products of columns with themselves, whose sum is one."""


def repeated(who: Tensor) -> Tensor:
    """Which places of a batch hold a sample that an earlier place has: a client may have fewer samples than a batch."""
    return (who[:, None] == who).tril(-1).any(1)


def contrastive(first: Tensor, second: Tensor, who: Tensor, temperature: float) -> Tensor:
    """Eq. 11 per row: every row centred by its own mean, compared by cosine; a repeated sample counts once."""
    p, q = (F.normalize(v - v.mean(-1, keepdim=True), dim=-1) for v in (first, second))
    nothing = torch.finfo(p.dtype).min  # finite, so that a row without others has a gradient
    pairs, again = (p * q).sum(-1) / temperature, repeated(who)
    apart = (p @ p.mT / temperature).masked_fill((who[:, None] == who) | again, nothing)
    total = torch.logaddexp(pairs.masked_fill(again, nothing).logsumexp(0), apart.logsumexp(1))
    return total - pairs


def simclr(first: Tensor, second: Tensor, counted: Tensor, temperature: float) -> Tensor:
    """The released loss: among the counted samples each view tells its partner from all other views, of both kinds.

    Unit vectors less one number, the mean of all their entries; a mean over anchors, zero where none is counted.
    """
    z = F.normalize(torch.cat((first, second)), dim=-1)
    among = torch.cat((counted, counted))
    z = z - mean_of(z.mean(-1), among)
    own = torch.eye(len(z), dtype=torch.bool, device=z.device)
    scores = (z @ z.mT / temperature).masked_fill(own | ~among, torch.finfo(z.dtype).min).log_softmax(-1)
    partner = torch.arange(len(z), device=z.device).roll(len(first))
    return mean_of(-scores.gather(1, partner[:, None])[:, 0], among)


def principal(x: Tensor, components: int, rounds: int = 6) -> Tensor:
    """Orthonormal directions [D, k] of most variance of x [N, D], by subspace iteration.

    No call waits for the device, so that this can be part of a captured round.
    """
    x = x - x.mean(0)
    size = min(components, *x.shape)
    start = rng.normal(rng.key(0, x.device), x.shape[1], size).to(x.dtype)
    basis = _orthonormal(start)
    for _ in range(rounds):
        basis = _orthonormal(x.mT @ (x @ basis))
    return basis


def _orthonormal(y: Tensor) -> Tensor:
    """The columns made orthonormal through the Cholesky factor of their products, twice for accuracy.

    By elimination, row by row: a library's factorisation may wait for the device. Where products round (TF32), those of
    columns that are nearly alike need not be positive definite any more: no pivot is below what was added to it.
    """
    count = y.shape[1]
    for _ in range(2):
        y = y / y.square().sum().sqrt().clamp_min(1e-20)
        eye = torch.eye(count, dtype=y.dtype, device=y.device)
        rows, done = torch.cat((products(y) + LEAST * eye, y.mT), 1), []
        for i in range(count):
            root = rows[0, i].clamp_min(LEAST).sqrt()
            done.append(rows[0] / root)
            if len(rows) > 1:  # as in a factorisation, rows below the pivot's lose their share of it
                rows = rows[1:] - rows[1:, i : i + 1] / root * done[-1]
        y = torch.stack(done)[:, count:].mT
    return y


def products(y: Tensor) -> Tensor:
    """Of every two columns."""
    return y.mT @ y
