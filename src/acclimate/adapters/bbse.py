"""BBSE. Lipton et al., ICML 2018, Algorithm 1: class frequencies of a test stream through a confusion matrix.

Where only the class frequencies differ between source and test, the right posterior is the model's, times w(y) with
w = q / p. BBSE solves C w = mu, where C[i, j] is how often the source has class j and the model answers i, and mu is
how often it answers i on the whole unlabelled test stream. The personaliser Confusion notes C.

As in BBSE's code negative weights become zero. `ridge` keeps the small systems of single clients solvable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Predict, Task, Tree, check, rng
from ..ops.masks import mean_of
from ..ops.unlabelled import answers
from .labelshift import LEAST, Reweighed


@dataclass(frozen=True)
class BBSE(Reweighed):
    """Class frequencies from a confusion matrix of labelled source data (Lipton et al., ICML 2018)."""

    requires: ClassVar[tuple[str, ...]] = ("confusion",)
    made_by: ClassVar[str] = "personal=confusion"

    ridge: float = 1e-3

    def __post_init__(self) -> None:
        check.positive(self, "ridge")

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        _, logits = answers(predict, model, x)
        mu = mean_of(F.one_hot(logits.argmax(-1), task.num_classes).to(logits.dtype), real)
        return {"shift": solve(model["confusion"]["joint"], mu, self.ridge).clamp_min(LEAST).log()}


def solve(joint: Tensor, mu: Tensor, ridge: float) -> Tensor:
    """Weights w with `joint @ w` nearest to `mu`, drawn towards one by `ridge`, the negative ones zero.

    Gauss-Jordan on the normal equations, which needs no pivots there: a library solver would wait for the device.
    """
    classes = joint.shape[-1]
    scale = joint.square().sum() / classes * ridge + 1e-12
    left = joint.mT @ joint + scale * torch.eye(classes, dtype=joint.dtype, device=joint.device)
    rows = torch.cat((left, (joint.mT @ mu + scale)[:, None]), 1)
    for i in range(classes):
        pivot = rows[i] / rows[i, i]
        others = torch.arange(classes, device=rows.device) != i
        rows = torch.where(others[:, None], rows - rows[:, i : i + 1] * pivot, pivot)
    return rows[:, -1].clamp_min(0.0)
