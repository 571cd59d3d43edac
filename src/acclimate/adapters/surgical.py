"""Surgical fine-tuning. Lee et al., ICLR 2023, at test time: entropy minimisation over chosen layers alone.

The paper's finding: the first layers answer shifts of the input (corruptions), the middle ones those of features, the
last those of the output. With all layers this is Tent on all parameters. `rate="rgn"` chooses by itself (Auto-RGN): the
step of every tensor is scaled by its gradient's norm relative to its own norm, the largest of these being one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng, tree
from ..ops.unlabelled import descend


@dataclass(frozen=True)
class Surgical(Adapter):
    """Tent over chosen layers (Lee et al., ICLR 2023)."""

    layers: tuple[str, ...] = ("first",)
    """`first` (the layer nearest to the input), `head`, `norm`, `body`, `all`, or patterns such as `body.3.*`."""
    opt: Optimizer = Adam(lr=1e-3)
    steps: int = 1
    rate: Literal["same", "rgn"] = "same"

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("Surgical: layers=() must name at least one layer")
        check.steady(self, "opt")
        check.at_least(self, "steps", 1)
        check.choices(self)

    def refusal(self, task: Task, model: Tree) -> str | None:
        try:
            self.chosen(task)
        except ValueError as error:
            return f"Surgical: {error}"
        return super().refusal(task, model)

    def chosen(self, task: Task) -> frozenset[str]:
        """Names of the parameters to tune."""
        owner, _, own = task.params[0].rpartition(".")
        first = f"{owner}.*" if owner else own  # a parameter of the model itself is a layer of its own
        roles = [first if layer == "first" else layer for layer in self.layers]
        return task.select(roles) & frozenset(task.params)

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tree.pick(model["vars"]["params"], self.chosen(task))
        return {"params": tuned, "opt": self.opt.init(tuned)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return descend(predict, model, state, x, self._update, self.steps)

    def _update(self, grads: Tree, opt: Tree, tuned: Tree) -> tuple[Tree, Tree]:
        """The optimiser's step, of which every tensor goes its own share with `rate="rgn"`."""
        new, opt = self.opt.update(grads, opt, tuned)
        if self.rate == "rgn":
            new = tree.map(torch.lerp, tuned, new, relative_norms(grads, tuned))
        return new, opt


def relative_norms(grads: Tree, params: Tree) -> Tree:
    """Per tensor the norm of the gradient over that of the parameters, the largest of these being one."""
    norms: Tree = tree.map(lambda g, p: g.norm() / p.norm().clamp_min(1e-12), grads, params)
    top = torch.stack(tree.leaves(norms)).amax().clamp_min(1e-12)
    scaled: Tree = tree.scale(norms, 1.0 / top)
    return scaled
