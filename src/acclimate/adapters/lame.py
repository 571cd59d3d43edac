"""LAME. Boudiaf et al., CVPR 2022: parameters stay, the answers of a batch are made to agree with each other.

The assignments z minimise sum_i KL(z_i || p_i) - lam * sum_ij w_ij z_i . z_j over the simplex, where p are the model's
probabilities and w_ij how near the features of two samples are. Bounding the concave part gives the fixed point

    z_i <- softmax(log p_i + lam * sum_j w_ij z_j),    starting at z = p.

Where neighbours in a stream share a class this corrects mistakes; where they do not it may make some. The published
code stops when the energy rests; here there are always `steps` iterations, since 20 are far from the fixed point and
100 are not. Affinities are those of unit features: `knn` is 1 for the k nearest others, `rbf` is exp(-d^2 / (2 s^2))
with s the mean distance to the k-th nearest (the sample itself counts as the first), `linear` the inner product.

`window` is our own: so many samples of the batches before are neighbours too, with the assignments that they got. A
batch of one sample has no neighbours without it and is answered as the model does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng


@dataclass(frozen=True)
class LAME(Adapter):
    """Laplacian-adjusted answers of a batch; no gradient step (Boudiaf et al., CVPR 2022)."""

    affinity: Literal["knn", "rbf", "linear"] = "knn"
    k: int = 5
    """Neighbours of a sample (for `rbf`: which of them sets the width)."""
    lam: float = 1.0
    """Weight of the neighbours' answers against the model's own."""
    steps: int = 100
    window: int = 0
    """Samples of earlier batches that are neighbours too."""

    def __post_init__(self) -> None:
        check.choices(self)
        check.whole(self, "k", 1)
        check.at_least(self, "lam", 0.0)
        check.whole(self, "steps", 1)
        check.whole(self, "window", 0)

    def init(self, task: Task, model: Tree) -> Tree:
        if not self.window:
            return {}
        like = model["vars"]["params"][task.head_weight]
        past = {"features": like.new_zeros(self.window, task.dim), "z": like.new_zeros(self.window, task.num_classes)}
        return {**past, "held": like.new_zeros(self.window)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x)
        unit = F.normalize(out.features, dim=-1)
        nodes, fixed, real = unit, out.logits[:0], torch.ones_like(unit[:, 0])
        if self.window:
            nodes, fixed = torch.cat((unit, state["features"])), state["z"]
            real = torch.cat((real, state["held"]))
        logits = agreed(out.logits, fixed, self.lam * self.affinities(unit, nodes, real), self.steps)
        if self.window:
            kept = {"features": unit, "z": logits.softmax(-1), "held": torch.ones_like(unit[:, 0])}
            state = {name: torch.cat((state[name], new))[-self.window :] for name, new in kept.items()}
        return logits, state

    def affinities(self, unit: Tensor, nodes: Tensor, real: Tensor) -> Tensor:
        """w [B, N] of a batch's features to those of all nodes, of which the batch is the first; 0 for unreal ones."""
        if self.affinity == "linear":
            return (unit @ nodes.mT) * real
        away = torch.cdist(unit, nodes, compute_mode="donot_use_mm_for_euclid_dist")
        away, count = torch.where(real > 0, away, torch.inf), len(nodes)
        if self.affinity == "knn":
            own = torch.eye(len(unit), count, dtype=torch.bool, device=unit.device)
            near = torch.topk(torch.where(own, torch.inf, away), min(self.k, count), largest=False)
            found = F.one_hot(near.indices, count).to(unit.dtype) * torch.isfinite(near.values)[..., None]
            return found.sum(1)
        kth = torch.topk(away, min(self.k, count), largest=False).values
        width = torch.where(torch.isfinite(kth), kth, 0.0).amax(-1).mean().clamp_min(1e-6)
        return torch.exp(-away.square() / (2.0 * width.square()))


def agreed(logits: Tensor, fixed: Tensor, weight: Tensor, steps: int) -> Tensor:
    """Log assignments [B, C] after so many fixed-point iterations, up to a number per row.

    `weight` [B, B + F] is for the batch's own assignments and the `fixed` ones [F, C] behind them.
    """
    z = logits.softmax(-1)
    for _ in range(steps):
        new = logits + weight @ torch.cat((z, fixed))
        z = new.softmax(-1)
    return new
