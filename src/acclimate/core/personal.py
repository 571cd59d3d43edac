"""The base record of personalisers."""

from __future__ import annotations

from dataclasses import dataclass

from . import rng
from .adapter import Predict
from .task import Task
from .tree import Tree


@dataclass(frozen=True)
class Personalizer:
    """Turns the deployed model into a personal one, once per client, on its labelled training data.

    The base record leaves the model as it is.
    """

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        """The personal model: the same keys as `model`, perhaps more."""
        return model
