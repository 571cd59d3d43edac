"""What a client's training features look like under its model: what adapters compare a stream's features with.

Published adapters take class prototypes of the source data, which nobody holds in a federation. A client has its own;
a class that it does not hold has none.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import Personalizer, Predict, Task, Tree, rng
from ..ops.prototypes import class_means


@dataclass(frozen=True)
class ClassMeans(Personalizer):
    """Adds `means` to the model: per class the mean training feature, `prototypes` [classes, d], and `counts`."""

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        features = torch.cat(
            [predict(model, data["x"][rows]).features.detach() for rows in data["rows"].split(256, -1)]
        )
        prototypes, counts = class_means(features, data["y"][data["rows"]], data["n"], task.num_classes)
        return {**model, "means": {"prototypes": prototypes, "counts": counts}}
