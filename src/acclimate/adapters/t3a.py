"""T3A. Iwasawa & Matsuo, NeurIPS 2021, Eq. 4-6: the head's rows become centroids of confident test features.

Per class, a support set starts with the head's own row and takes every test feature that the head assigns to it; the
`keep` supports of least entropy make the centroid (Eq. 6), and a batch is answered with the centroids it has already
joined. Entropies come from the original head, bias included; the answer has no bias. `keep=-1`, or None, keeps all
supports (as a running sum): the released code's K=-1 means that, but drops the highest-entropy support of every class
with every call. `per="sample"` answers as if every batch held one sample, as FedTHE's tables have it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops.losses import entropy
from ..ops.nets import answering_head, linear


@dataclass(frozen=True)
class T3A(Adapter):
    """Replaces the head by running class centroids; no gradient step (Iwasawa & Matsuo, NeurIPS 2021)."""

    keep: int | None = 50
    """K, the supports that a class keeps; -1 or None keeps all."""
    per: Literal["batch", "sample"] = "batch"
    """Whether a sample is answered when its whole batch has joined the supports, or when it has itself."""

    def __post_init__(self) -> None:
        check.choices(self)
        if self.keep is not None and self.keep < 1 and self.keep != -1:
            raise check.FieldError(f"T3A: keep={self.keep} must be at least 1, or -1 or None for all", "keep")

    @property
    def batch_free(self) -> bool:
        return self.per == "sample"

    @property
    def _all(self) -> bool:
        return self.keep in (None, -1)

    def init(self, task: Task, model: Tree) -> Tree:
        head = answering_head(task, model)
        rows, logits = head["weight"], linear(head, head["weight"])
        # The row of class k sits in the support set of the class that the head assigns to it, as any feature would.
        at = F.one_hot(logits.argmax(-1), task.num_classes).T
        if self._all:
            return {"sum": at.to(rows.dtype) @ F.normalize(rows, dim=-1)}
        support, score = self._select(rows, entropy(logits), at.bool(), None)
        return {"support": support, "score": score}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x)
        member = F.one_hot(out.logits.argmax(-1), task.num_classes).T
        if self._all:
            return self._summed(out.features, member.to(out.features.dtype), state)
        uncertainty, logits = entropy(out.logits), []
        size = 1 if self.per == "sample" else len(x)
        for now in torch.arange(len(x), device=x.device).split(size):
            support, score = self._select(out.features[now], uncertainty[now], member[:, now].bool(), state)
            centroid = (F.normalize(support, dim=-1) * torch.isfinite(score)[..., None]).sum(1)
            logits.append(out.features[now] @ F.normalize(centroid, dim=-1).T)
            state = {"support": support, "score": score}
        return torch.cat(logits), state

    def _summed(self, features: Tensor, member: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """The same with all supports, of which only the sum is needed."""
        unit = F.normalize(features, dim=-1)
        if self.per == "batch":
            total = state["sum"] + member @ unit
            return features @ F.normalize(total, dim=-1).T, {"sum": total}
        totals = state["sum"] + (member.T[:, :, None] * unit[:, None]).cumsum(0)
        return (F.normalize(totals, dim=-1) @ features[:, :, None])[..., 0], {"sum": totals[-1]}

    def _select(
        self, features: Tensor, uncertainty: Tensor, member: Tensor, state: Tree | None
    ) -> tuple[Tensor, Tensor]:
        """Per class, the `keep` least uncertain of the old supports and the new members: [C, keep, d] and [C, keep]."""
        assert self.keep is not None and self.keep > 0
        score = torch.where(member, uncertainty, torch.inf)
        pool = features.expand(score.shape[0], *features.shape)
        if state is not None:
            score, pool = torch.cat([state["score"], score], 1), torch.cat([state["support"], pool], 1)
        short = max(self.keep - score.shape[1], 0)
        score = F.pad(score, (0, short), value=torch.inf)
        pool = F.pad(pool, (0, 0, 0, short))
        best = torch.topk(score, self.keep, dim=1, largest=False)
        return torch.take_along_dim(pool, best.indices[..., None], dim=1), best.values
