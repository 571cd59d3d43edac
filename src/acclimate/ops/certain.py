"""The loss of entropy minimisation, as a function of the parameters that are tuned."""

from __future__ import annotations

from collections.abc import Callable

from torch import Tensor

from ..core.adapter import Predict
from ..core.tree import Tree
from .losses import entropy


def entropy_of(predict: Predict, model: Tree, x: Tensor) -> Callable[[Tree], tuple[Tensor, Tensor]]:
    """Mean entropy of a batch's predictions, and the logits, with some parameters in the place of the model's own."""

    def loss(tuned: Tree) -> tuple[Tensor, Tensor]:
        vars = {**model["vars"], "params": {**model["vars"]["params"], **tuned}}
        logits = predict({**model, "vars": vars}, x, "adapt").logits
        return entropy(logits).mean(), logits

    return loss
