"""Label-shift estimation: which classes a test stream holds, and answers weighted by it.

If only the class frequencies differ between source and test, the right posterior is the model's, times q(y) / p(y). The
test frequencies q are estimated from the whole unlabelled stream before the first answer:

- EM. Saerens et al., Neural Computation 2002: the likelihood's fixed point, from predicted probabilities and
  the class frequencies p that the model was trained under. For a federation whose classes balance out these are equal
  (`prior="uniform"`); for a personal model they are its client's, which the personaliser Confusion notes.
- BBSE. Lipton et al., ICML 2018, Algorithm 1: solves C w = mu for the weights w = q / p, where C[i, j] is how often the
  source has class j and the model says i, and mu how often it says i on the test stream. Confusion notes C, too.

As in BBSE's code negative weights become zero. `ridge` keeps the small systems of single clients solvable.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops.masks import mean_of
from ..ops.unlabelled import answers

_LEAST = 1e-6  # of a class frequency, so that its logarithm stays finite


@dataclass(frozen=True)
class _Reweighed(Adapter):
    """Answers with log weights per class, which `prepare` finds, added to the logits."""

    transductive: ClassVar[bool] = True

    @property
    def batch_free(self) -> bool:
        return True

    def init(self, task: Task, model: Tree) -> Tree:
        weight = model["vars"]["params"][task.head_weight]
        return {"shift": weight.new_zeros(task.num_classes)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(model, x).logits + state["shift"], state


@dataclass(frozen=True)
class EM(_Reweighed):
    """Class frequencies by expectation maximisation (Saerens et al., 2002)."""

    steps: int = 100
    prior: Literal["uniform", "noted"] = "uniform"
    """What the model was trained under: equal class frequencies, or those that Confusion noted."""

    def __post_init__(self) -> None:
        check.at_least(self, "steps", 0)
        check.choices(self)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if self.prior == "noted" and "confusion" not in model:
            return "EM with prior='noted' needs confusion in the deployed model: personalise with Confusion"
        return super().refusal(task, model)

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        _, logits = answers(predict, model, x)
        p = torch.full_like(state["shift"], 1.0 / task.num_classes)
        if self.prior == "noted":
            p = model["confusion"]["joint"].sum(0)
        return {"shift": estimate(logits, real, p, self.steps).log() - p.clamp_min(_LEAST).log()}


@dataclass(frozen=True)
class BBSE(_Reweighed):
    """Class frequencies from a confusion matrix of labelled source data (Lipton et al., ICML 2018)."""

    requires: ClassVar[tuple[str, ...]] = ("confusion",)

    ridge: float = 1e-3

    def __post_init__(self) -> None:
        check.positive(self, "ridge")

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        _, logits = answers(predict, model, x)
        said = mean_of(F.one_hot(logits.argmax(-1), task.num_classes).to(logits.dtype), real)
        return {"shift": solve(model["confusion"]["joint"], said, self.ridge).clamp_min(_LEAST).log()}


def estimate(logits: Tensor, real: Tensor, prior: Tensor, steps: int) -> Tensor:
    """Class frequencies of the real rows by EM, from the model's probabilities and its own prior."""
    likelihood = logits.log_softmax(-1) - prior.clamp_min(_LEAST).log()
    q = prior.clamp_min(_LEAST)
    for _ in range(steps):
        q = mean_of((likelihood + q.log()).softmax(-1), real).clamp_min(_LEAST)
    return q


def solve(joint: Tensor, said: Tensor, ridge: float) -> Tensor:
    """Weights w with `joint @ w` nearest to `said`, drawn towards one by `ridge`, the negative ones zero.

    Gauss-Jordan on the normal equations, which needs no pivots there: a library solver would wait for the device.
    """
    classes = joint.shape[-1]
    scale = joint.square().sum() / classes * ridge + 1e-12
    left = joint.mT @ joint + scale * torch.eye(classes, dtype=joint.dtype, device=joint.device)
    rows = torch.cat((left, (joint.mT @ said + scale)[:, None]), 1)
    for i in range(classes):
        pivot = rows[i] / rows[i, i]
        others = torch.arange(classes, device=rows.device) != i
        rows = torch.where(others[:, None], rows - rows[:, i : i + 1] * pivot, pivot)
    return rows[:, -1].clamp_min(0.0)
