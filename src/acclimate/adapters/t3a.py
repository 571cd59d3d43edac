"""T3A. Iwasawa & Matsuo, NeurIPS 2021, Eq. 4-6: the head's rows become centroids of confident test features.

Per class, a support set starts with the head's own row and takes every test feature that the head assigns to it; the
`keep` supports of least entropy make the centroid (Eq. 6), and a batch is answered with the centroids it has already
joined. Entropies come from the original head, bias included; the answer has no bias. `keep=None` keeps all supports
(as a running sum). Differs from the released code, whose K=-1 drops the highest-entropy support per class each call.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops.losses import entropy


@dataclass(frozen=True)
class T3A(Adapter):
    """Replaces the head by running class centroids; no gradient step (Iwasawa & Matsuo, NeurIPS 2021)."""

    keep: int | None = 50

    def __post_init__(self) -> None:
        if self.keep is not None:
            check.at_least(self, "keep", 1)

    def init(self, task: Task, model: Tree) -> Tree:
        params = model["vars"]["params"]
        rows = params[task.head_weight]
        logits = rows @ rows.T + params.get(task.head_bias, 0.0)
        # The row of class k sits in the support set of the class that the head assigns to it, as any feature would.
        at = F.one_hot(logits.argmax(-1), task.num_classes).T
        if self.keep is None:
            return {"sum": at.to(rows.dtype) @ F.normalize(rows, dim=-1)}
        support, score = self._select(rows, entropy(logits), at.bool(), None)
        return {"support": support, "score": score}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x)
        member = F.one_hot(out.logits.argmax(-1), task.num_classes).T
        if self.keep is None:
            total = state["sum"] + member.to(out.features.dtype) @ F.normalize(out.features, dim=-1)
            return out.features @ F.normalize(total, dim=-1).T, {"sum": total}
        support, score = self._select(out.features, entropy(out.logits), member.bool(), state)
        centroid = (F.normalize(support, dim=-1) * torch.isfinite(score)[..., None]).sum(1)
        return out.features @ F.normalize(centroid, dim=-1).T, {"support": support, "score": score}

    def _select(
        self, features: Tensor, uncertainty: Tensor, member: Tensor, state: Tree | None
    ) -> tuple[Tensor, Tensor]:
        """Per class, the `keep` least uncertain of the old supports and the new members: [C, keep, d] and [C, keep]."""
        assert self.keep is not None
        score = torch.where(member, uncertainty, torch.inf)
        pool = features.expand(score.shape[0], *features.shape)
        if state is not None:
            score, pool = torch.cat([state["score"], score], 1), torch.cat([state["support"], pool], 1)
        short = max(self.keep - score.shape[1], 0)
        score = F.pad(score, (0, short), value=torch.inf)
        pool = F.pad(pool, (0, 0, 0, short))
        best = torch.topk(score, self.keep, dim=1, largest=False)
        return torch.take_along_dim(pool, best.indices[..., None], dim=1), best.values
