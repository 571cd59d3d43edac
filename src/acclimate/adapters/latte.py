"""Latte. Bao et al., ICCV 2025: clients keep confident features of every class, and exchange their prototypes.

A client caches the `slots` features of lowest entropy of every predicted class. It sends one prototype per class, the
normalised mean of the cached features weighted by exp(-gamma H), H being the entropy over ln C. For every class it gets
the prototypes of the `neighbours` clients whose own are most similar to its own. A sample x is answered from the
`slots` entries of lowest entropy among cached and received ones: the class vector is their sum weighted by
exp(beta (cos - 1)) exp(-gamma H), and alpha * scale * cos(x, class vector) is added to the model's logits. Nothing is
tuned and no gradient is needed.

What is ours: features are those that enter the head of our models, where the paper has CLIP's, so `alpha`, `beta` and
`scale` (100 and 60 there) are not the paper's; the whole batch enters the cache before it is answered, where the paper
goes sample by sample; and a prototype's entropy is the weighted mean of those of its features, where the paper asks the
text classifier for the entropy of the prototype itself.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Exchanging, Gather, Predict, Rules, Task, Tree, check, rng
from ..core.limits import Limits, Within
from ..ops.losses import entropy


@dataclass(frozen=True)
class Latte(Exchanging):
    """Answers with cached features and the prototypes of similar clients (Bao et al., ICCV 2025)."""

    slots: int = 12
    neighbours: int = 9
    """Prototypes per class that a client gets from others; 0: it exchanges with nobody."""
    alpha: float = 1.0
    beta: float = 6.0
    gamma: float = 1.5
    scale: float = 10.0
    """What a cosine is worth in logits."""
    batch_statistics: bool = False
    """Whether batch norm takes its statistics from the test batch."""

    limits: ClassVar[Limits] = {"entropy": Within(0.0, 1.0)}

    def __post_init__(self) -> None:
        super().__post_init__()
        check.whole(self, "slots", 1)
        check.whole(self, "neighbours", 0)
        for name in ("alpha", "beta", "gamma", "scale"):
            check.at_least(self, name, 0.0)

    @property
    def uplink(self) -> Rules:
        return {"prototypes": Gather(), "entropy": Gather()} if self.neighbours else {}

    def init(self, task: Task, model: Tree) -> Tree:
        def empty(count: int) -> Tree:
            # a row of zeros adds nothing to a class vector, and comes last by its entropy
            like = model["vars"]["params"][task.head_weight]
            features = like.new_zeros(task.num_classes, count, task.dim)
            return {"features": features, "entropy": like.new_ones(task.num_classes, count)}

        return {"own": empty(self.slots), "others": empty(self.neighbours)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x, "still" if self.batch_statistics else "eval")
        features, classes = F.normalize(out.features, dim=-1), out.logits.argmax(-1)
        member = F.one_hot(classes, task.num_classes).T.to(features.dtype)
        unsure = 1.0 + member * (entropy(out.logits) / math.log(task.num_classes) - 1.0)
        own = lowest(state["own"], {"features": member[:, :, None] * features, "entropy": unsure}, self.slots)
        seen = lowest(own, state["others"], self.slots)
        weights = self.weighed(torch.einsum("csd,bd->bcs", seen["features"], features), seen["entropy"])
        vectors = F.normalize(torch.einsum("bcs,csd->bcd", weights, seen["features"]), dim=-1)
        near = torch.einsum("bcd,bd->bc", vectors, features)
        return out.logits + self.alpha * self.scale * near, {**state, "own": own}

    def weighed(self, cosine: Tensor, unsure: Tensor) -> Tensor:
        """What entries count for samples [B, C, S] in their class vectors."""
        return (self.beta * (cosine - 1.0) - self.gamma * unsure).exp()

    def send(self, task: Task, predict: Predict, model: Tree, state: Tree, key: rng.Key) -> Tree:
        features, unsure = state["own"]["features"], state["own"]["entropy"]
        weights = (-self.gamma * unsure).exp() * (features.norm(dim=-1) > 0)
        total = weights.sum(-1)
        known = torch.where(total > 0, total, 1.0)
        mean = (weights[..., None] * features).sum(1)
        spread = torch.where(total > 0, (weights * unsure).sum(-1) / known, 1.0)
        return {"prototypes": F.normalize(mean, dim=-1), "entropy": spread}

    def exchange(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        prototypes, unsure = total["prototypes"], total["entropy"]
        clients, most = len(prototypes), min(self.neighbours, len(prototypes) - 1)
        alike = torch.einsum("icd,jcd->icj", prototypes, prototypes)
        alike = alike - 4.0 * torch.eye(clients, device=alike.device)[:, None]  # never one's own
        chosen = alike.topk(most, -1).indices
        classes = torch.arange(prototypes.shape[1], device=chosen.device)[:, None]
        short = self.neighbours - most
        features = F.pad(prototypes[chosen, classes], (0, 0, 0, short))
        return {"own": {"features": features, "entropy": F.pad(unsure[chosen, classes], (0, short), value=1.0)}}

    def receive(self, task: Task, model: Tree, state: Tree, down: Tree) -> Tree:
        return {**state, "others": {"features": down["features"], "entropy": down["entropy"]}}


def lowest(a: Tree, b: Tree, count: int) -> Tree:
    """The `count` entries of lowest entropy of two caches, class by class."""
    features, unsure = (torch.cat((a[name], b[name]), 1) for name in ("features", "entropy"))
    kept = unsure.topk(count, 1, largest=False)
    at = kept.indices[..., None].expand(-1, -1, features.shape[-1])
    return {"features": features.gather(1, at), "entropy": kept.values}
