"""The datastore of kNN-Per. Marfoq et al., ICML 2022, Algorithm 1: features and labels of the client's training data.

The store has the same `capacity` for every client; one with more examples keeps a random subset of them (the paper's
study of the datastore size), one with fewer leaves the rest empty.

So that the adapter KNNPer can tune its mixing weight without a test label, up to `tune` of the stored examples are also
asked of the *others* (leave-one-out): what the model says of them, and their nearest neighbours but for themselves.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Personalizer, Predict, Task, Tree, check, rng
from ..ops.masks import real_rows


@dataclass(frozen=True)
class Memory(Personalizer):
    """Adds `memory` to the model: features `z` [capacity, d] and labels `y` [capacity] of examples in random order, how
    many of them are real, `n`, and for the first `tune` of them what the model and the others say (`asked`)."""

    capacity: int = 4096
    """The largest number of examples that are stored."""
    tune: int = 512
    """Stored examples on which KNNPer may choose its mixing weight."""
    neighbours: int = 10
    """Nearest others that are noted for each of these: KNNPer's `k` may be up to so many."""

    def __post_init__(self) -> None:
        for name in ("capacity", "tune", "neighbours"):
            check.at_least(self, name, 1)

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        size = min(data["rows"].shape[-1], self.capacity)
        kept = data["rows"][rng.order(rng.fold(key, "memory"), data["rows"].shape[-1], data["n"])[:size]]
        outs = [predict(model, data["x"][rows]) for rows in kept.split(256, dim=-1)]
        z, logits = (torch.cat([getattr(o, part).detach() for o in outs]) for part in ("features", "logits"))
        y, n = data["y"][kept], data["n"].clamp_max(self.capacity)
        z, logits = (torch.where(real_rows(size, n)[:, None], t, 0.0) for t in (z, logits))  # padding is not kept
        asked = {"logits": logits[: self.tune], "y": y[: self.tune], **self._others(z, y, n)}
        asked = {k: padded(v, self.tune) for k, v in asked.items()}
        memory = {"z": padded(z, self.capacity), "y": padded(y, self.capacity), "n": n, "asked": asked}
        return {**model, "memory": memory}

    def _others(self, z: Tensor, y: Tensor, n: Tensor) -> Tree:
        """Distances `away` and labels `votes` of the nearest others of the first `tune` examples, nearest first."""
        places = torch.arange(z.shape[0], device=z.device)
        away = torch.cdist(z[: self.tune], z, compute_mode="donot_use_mm_for_euclid_dist")
        others = (places < n) & (places != places[: self.tune, None])
        near = torch.topk(torch.where(others, away, torch.inf), min(self.neighbours, z.shape[0]), largest=False)
        found = {"away": near.values.nan_to_num(posinf=0.0), "votes": y[near.indices]}
        return {k: F.pad(v, (0, self.neighbours - v.shape[-1])) for k, v in found.items()}


def padded(rows: Tensor, length: int) -> Tensor:
    """Zeros below, up to this many rows: models of all clients have the same shape."""
    return F.pad(rows, (0, 0) * (rows.dim() - 1) + (0, length - rows.shape[0]))
