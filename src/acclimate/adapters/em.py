"""EM. Saerens et al., Neural Computation 2002: class frequencies of a test stream as the likelihood's fixed point.

Where only the class frequencies differ between source and test, the right posterior is the model's, times q(y) / p(y).
The test frequencies q come from the predicted probabilities of the whole unlabelled stream and from the frequencies p
that the model was trained under. For a federation whose classes balance out these are equal (`prior="uniform"`); for a
personal model they are its client's, which the personaliser Confusion notes.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import Predict, Task, Tree, check, rng
from ..ops.masks import mean_of
from ..ops.unlabelled import answers
from .labelshift import LEAST, Reweighed


@dataclass(frozen=True)
class EM(Reweighed):
    """Class frequencies by expectation maximisation (Saerens et al., 2002)."""

    steps: int = 100
    prior: Literal["uniform", "noted"] = "uniform"
    """The class frequencies of training: equal ones, or those that Confusion noted."""

    def __post_init__(self) -> None:
        check.at_least(self, "steps", 0)
        check.choices(self)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if self.prior == "noted" and "confusion" not in model:
            return (
                "EM with prior='noted' needs confusion in the deployed model: personalise with Confusion "
                "(personal=confusion)"
            )
        return super().refusal(task, model)

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        _, logits = answers(predict, model, x)
        p = torch.full_like(state["shift"], 1.0 / task.num_classes)
        if self.prior == "noted":
            p = model["confusion"]["joint"].sum(0)
        return {"shift": estimate(logits, real, p, self.steps).log() - p.clamp_min(LEAST).log()}


def estimate(logits: Tensor, real: Tensor, prior: Tensor, steps: int) -> Tensor:
    """Class frequencies of the real rows by EM, from the model's probabilities and its own prior."""
    likelihood = logits.log_softmax(-1) - prior.clamp_min(LEAST).log()
    q = prior.clamp_min(LEAST)
    for _ in range(steps):
        q = mean_of((likelihood + q.log()).softmax(-1), real).clamp_min(LEAST)
    return q
