"""Which of FedTTA++'s adapted models answers, and when adaptation ends. Ye et al., 'UPFL', 2023, Sec. 3.3.2.

Of the models after each step, the one whose predictions have the least mean entropy answers; adaptation ends after
`patience` steps in a row without a new least. Clients that stop at different steps run together: one that has ended
walks on, and nothing of that counts. Without `patience` (FedTTA) the model after the last step answers.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, fields, replace
from typing import ClassVar, Self

import torch
from torch import Tensor

from ..core import Tree
from ..core.loops import Time
from ..core.nn import many
from ..ops.losses import entropy
from ..ops.masks import mean_of


@dataclass(frozen=True)
class StepSearch:
    """Where adaptation stands: the model that goes on, the best one so far, and whether adaptation is still active."""

    params: Tree
    best: Tree
    least: Tensor
    """The value of the best model."""
    stale: Tensor
    """Steps since the best model."""
    active: Tensor
    chosen: Tensor
    """The step of the best model."""
    taken: Tensor
    """Steps that were taken."""
    patience: int | None

    first: ClassVar[int] = 1
    """The first step whose model competes."""

    @classmethod
    def start(cls, params: Tree, like: Tensor, patience: int | None) -> Self:
        """Before the first step; the numbers have the type and the place of `like`."""
        zero, most = torch.zeros_like(like), torch.full_like(like, torch.inf)
        return cls(params, params, most, zero, torch.ones_like(like, dtype=torch.bool), zero, zero, patience)

    def state(self) -> Tree:
        """All that changes from step to step."""
        return {f.name: getattr(self, f.name) for f in fields(self) if f.name != "patience"}

    @staticmethod
    def measured(logits: Tensor, real: Tensor) -> Tree:
        """What models are judged by, as means over the real samples."""
        return {"entropy": mean_of(entropy(logits), real)}

    def value(self, now: Tree) -> Tensor:
        """The number of which the least is best, from what was measured."""
        least: Tensor = now["entropy"]
        return least

    def judged(self, step: Time, now: Tree) -> Self:
        """With the model after `step` steps compared to the best so far."""
        here = torch.zeros_like(self.taken) + step
        taken = torch.where(self.active, here, self.taken)
        if self.patience is None:
            return replace(self, best=self.params, chosen=here, taken=taken)
        if isinstance(step, int) and step < self.first:
            return self
        value = self.value(now)
        better = self.active & (value < self.least)
        stale = torch.where(better, torch.zeros_like(self.stale), self.stale + 1)
        return replace(
            self,
            best=many.where(better, self.params, self.best),
            chosen=torch.where(better, here, self.chosen),
            least=torch.where(better, value, self.least),
            active=self.active & (stale < self.patience),
            stale=stale,
            taken=taken,
        )

    def moved(self, params: Tree) -> Self:
        """One step further; where adaptation has ended, nobody asks where to."""
        return replace(self, params=params)

    def curve(self, each: Tensor) -> Tensor:
        """What was measured of each model, [models]; after the end it stays as it was there."""
        if self.patience is None:
            return each
        step = torch.arange(len(each), device=each.device)
        return each.gather(0, torch.minimum(step, self.taken.to(step.dtype)))


@dataclass(frozen=True)
class ReleasedStepSearch(StepSearch):
    """The authors' code (`variant="released"`): it multiplies the log-probabilities with the patience counter in the
    place of the probabilities, and lets the model before the first step compete, which then always wins."""

    first: ClassVar[int] = 0

    @staticmethod
    def measured(logits: Tensor, real: Tensor) -> Tree:
        surprise = -logits.log_softmax(-1).sum(-1) / math.log(2.0)
        return {**StepSearch.measured(logits, real), "surprise": mean_of(surprise, real)}

    def value(self, now: Tree) -> Tensor:
        return self.stale * now["surprise"]
