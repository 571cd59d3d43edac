"""What EM and BBSE share: answers under label shift.

Where only the class frequencies differ between source and test, the right posterior is the model's, times q(y) / p(y).
An adapter estimates these weights from the whole unlabelled stream, before the first answer.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, rng

LEAST = 1e-6
"""The least class frequency or weight, so that its logarithm stays finite."""


@dataclass(frozen=True)
class Reweighed(Adapter):
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
