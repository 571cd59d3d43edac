"""The class frequencies of a client's labelled training data: where an adapter's class prior may start.

Published adapters start at equal frequencies. A client that holds two classes is far from those before its stream has
begun, and its own training data know better.
"""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Personalizer, Predict, Task, Tree, check, rng
from ..ops.losses import class_counts


@dataclass(frozen=True)
class ClassPrior(Personalizer):
    """Adds `prior` to the model: the share of every class among the client's training examples, float [classes]."""

    smooth: float = 1.0
    """Examples that every class counts for, whether the client has any or not, so that no share is zero."""

    def __post_init__(self) -> None:
        check.positive(self, "smooth")

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        counts = class_counts(data, task.num_classes) + self.smooth
        return {**model, "prior": counts / counts.sum()}
