"""SHOT. Liang, Hu & Feng, ICML 2020: source hypothesis transfer, Eq. 3 to 7.

Before the first answer the feature extractor is tuned on the client's whole unlabelled test set, under the frozen head:
low entropy of every prediction, high entropy of their mean (Eq. 3), and cross-entropy with pseudo-labels, weighted by
`beta` (Eq. 7). Pseudo-labels are the nearest centroid by cosine; the centroids are means of features, first weighted by
predictions (Eq. 4), then by the labels so found (Eq. 6); they are made anew before every epoch. Of centroids that are
equally near, the model's own prediction decides: those of a lone sample all are.

The optimiser starts afresh with every epoch's labels, and one learning rate serves the whole extractor (the released
code decays it and takes a tenth for pre-trained layers). Batch-norm statistics move along with the extractor.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, Work, check, rng
from ..core.loops import Time, repeat
from ..ops.losses import entropy
from ..ops.unlabelled import answers, tune

TIED = 1e-5
"""Cosines that are nearer to each other than this are equal: rounding would decide between them."""


@dataclass(frozen=True)
class SHOT(Adapter):
    """Tunes the features under the frozen head: sure, diverse, and true to centroids (Liang et al., ICML 2020)."""

    transductive: ClassVar[bool] = True

    opt: Optimizer = SGD(lr=1e-3, momentum=0.9, weight_decay=1e-3)
    epochs: int = 15
    batch: int = 64
    beta: float = 0.3
    """Weight of the pseudo-labels; the paper has 0.1 for digits and 0.3 elsewhere."""

    def __post_init__(self) -> None:
        check.at_least(self, "epochs", 0)
        check.at_least(self, "batch", 1)
        check.at_least(self, "beta", 0.0)

    @property
    def batch_free(self) -> bool:
        return True

    def init(self, task: Task, model: Tree) -> Tree:
        return {"vars": model["vars"]}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = predict({**model, "vars": vars}, batch["x"], "adapt")
            labelled = F.cross_entropy(out.logits, batch["y"])
            return information(out.logits) + self.beta * labelled, out.buffers

        def epoch(t: Time, vars: Tree) -> tuple[Tree, Tree]:
            labels = pseudo_labels(*answers(predict, {**model, "vars": vars}, x), real)
            return tune(loss, vars, x, real, labels, self.opt, once, rng.fold(key, t), only=task.body), {}

        once = Work(epochs=1, batch=self.batch)
        return {"vars": repeat(epoch, state["vars"], self.epochs, x)[0]}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict({**model, **state}, x).logits, state


def information(logits: Tensor) -> Tensor:
    """Information maximisation (Eq. 3): mean entropy of the predictions less the entropy of their mean."""
    mean = logits.softmax(-1).mean(0)
    return entropy(logits).mean() + (mean * mean.clamp_min(1e-12).log()).sum()


def pseudo_labels(features: Tensor, logits: Tensor, real: Tensor) -> Tensor:
    """The class of the nearest centroid by cosine (Eq. 4 to 6) for every row; only `real` rows make centroids."""
    unit, likely = F.normalize(features, dim=-1), logits.softmax(-1)

    def nearest(member: Tensor) -> Tensor:
        member = member * real.to(member.dtype)[:, None]
        # the direction of a weighted sum is that of the weighted mean
        centroids = F.normalize(member.mT @ features, dim=-1)
        alike = torch.where(member.sum(0) > 0, unit @ centroids.mT, -torch.inf)
        near = alike >= alike.amax(-1, keepdim=True) - TIED
        return torch.where(near, likely, -1.0).argmax(-1)

    first = nearest(likely)
    return nearest(F.one_hot(first, logits.shape[-1]).to(features.dtype))
