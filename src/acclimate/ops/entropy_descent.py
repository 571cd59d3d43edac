"""Entropy minimisation on unlabelled batches (Tent, Eq. 1): which parameters it tunes, and its steps."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

from torch import Tensor
from torch.func import grad

from ..core import Predict, Task, Tree, tree
from .live import with_params
from .losses import entropy

Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
"""`update(gradients, optimiser state, parameters)` gives new parameters and a new state, as `Optimizer.update` does."""


def tuned_of(task: Task, model: Tree, params: Literal["norm", "all"]) -> Tree:
    """The parameters that are tuned: those of the normalisation layers, or all."""
    every: Tree = model["vars"]["params"]
    return tree.pick(every, task.norm) if params == "norm" else every


def descend(predict: Predict, model: Tree, state: Tree, x: Tensor, update: Update, steps: int) -> tuple[Tensor, Tree]:
    """Steps down the mean entropy of one batch's predictions: its logits before the last of them, and the new state.

    `state` has the tuned parameters as `params`, which take the place of the model's own, and the optimiser's as `opt`.
    """

    def loss(tuned: Tree) -> tuple[Tensor, Tensor]:
        logits = predict(with_params(model, tuned), x, "adapt").logits
        return entropy(logits).mean(), logits

    tuned, opt = state["params"], state["opt"]
    for _ in range(steps):
        grads, logits = grad(loss, has_aux=True)(tuned)
        tuned, opt = update(grads, opt, tuned)
    return logits, {"params": tuned, "opt": opt}
