"""SAR. Niu et al., ICLR 2023: Tent that leaves out what is unreliable and goes to flat minima, for small batches.

- Samples count whose entropy is below the margin E0.
- The gradient is taken `rho` uphill of the parameters, along the gradient of the mean entropy there; of the
  samples that counted, those count that are still below the margin.
- Where the moving mean of that second loss is too low, the model has collapsed to one answer: it starts afresh.

A batch is answered with the logits of the first pass, and there is no step where no sample counts. The threshold of the
restart is 0.2 nats for 1,000 classes in the paper; it is a share of log(classes) here. A restart takes weights,
optimiser and moving mean back; `variant="released"` takes the weights back alone, and momentum moves them also where no
sample counts, as the published code does. The paper tunes no norm layer of the last stage: name it in `frozen`, such as
`layer3.*` of a ResNet-20. It advises group or layer norm; batch norm layers use the batch's statistics.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import SGD, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.adapter import Traced
from ..core.gradient import grad
from ..ops import requirements
from ..ops.losses import entropy
from ..ops.params import with_params
from ..ops.unlabelled import tuned_of

NONE_YET = -1.0
"""The moving mean before the first loss, which is never negative."""


@dataclass(frozen=True)
class SAR(Traced):
    """Sharpness-aware entropy minimisation on reliable samples, with restarts (Niu et al., ICLR 2023)."""

    traces: ClassVar[Mapping[str, str]] = {"weight": "whether the sample counts in the update"}

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = SGD(lr=2.5e-4, momentum=0.9)
    margin: float | None = 0.4
    """E0 in units of log(classes); None lets every sample count."""
    rho: float = 0.05
    """How far uphill, over all tuned parameters; 0: not at all."""
    keep: float = 0.9
    """Weight of the past in the moving mean of the loss."""
    reset_below: float = 0.029
    """A moving mean below this, in units of log(classes), starts it afresh (0.2 nats for 1,000 classes); 0: never."""
    frozen: tuple[str, ...] = ()
    """Patterns of parameters that are not tuned."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        if self.margin is not None:
            check.positive(self, "margin")
        check.at_least(self, "rho", 0.0)
        check.within(self, "keep", 0.0, 1.0)
        check.within(self, "reset_below", 0.0, 1.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if self.params == "norm" and (missing := requirements.norm_layers(task, "SAR")):
            return missing
        try:
            left = tuned_of(task, model, self.params).keys() - (task.select(self.frozen) if self.frozen else set())
        except ValueError as error:
            return f"SAR: frozen={self.frozen!r}: {error}"
        return super().refusal(task, model) if left else f"SAR: frozen={self.frozen!r} leaves nothing to tune"

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tuned_of(task, model, self.params)
        tuned = tree.drop(tuned, task.select(self.frozen)) if self.frozen else tuned
        mean = model["vars"]["params"][task.head_weight].new_full((), NONE_YET)
        return {"params": tuned, "opt": self.opt.init(tuned), "mean": mean}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        def loss(tuned: Tree, counts: Tensor | float) -> tuple[Tensor, tuple[Tensor, Tensor, Tensor]]:
            logits = predict(with_params(model, tuned), x, "still").logits
            uncertain = entropy(logits)
            weight = counts * self.reliable(uncertain.detach(), task.num_classes)
            value = (weight * uncertain).sum() / weight.sum().clamp_min(1.0)
            return value, (logits, weight, value)

        slope, (logits, first, _) = grad(loss, has_aux=True)(state["params"], 1.0)
        uphill = tree.add(state["params"], tree.scale(slope, self.rho / (tree.norm(slope) + 1e-12)))
        grads, (_, second, value) = grad(loss, has_aux=True)(uphill, first)
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        counted = second.sum() > 0
        mean = torch.where(state["mean"] < 0, value, self.keep * state["mean"] + (1.0 - self.keep) * value)
        new: Tree = {"params": tuned, "opt": opt, "mean": torch.where(counted, mean, state["mean"])}
        fresh = self.init(task, model)
        if self.variant == "released":
            fresh = {**new, "params": fresh["params"]}
        else:
            new = tree.where(counted, new, state)
        collapsed = (new["mean"] >= 0) & (new["mean"] < self.reset_below * math.log(task.num_classes))
        return logits, tree.where(collapsed, fresh, new), {"weight": second}

    def reliable(self, uncertain: Tensor, classes: int) -> Tensor:
        """1 for samples that count, 0 for the others."""
        if self.margin is None:
            return torch.ones_like(uncertain)
        return (uncertain < self.margin * math.log(classes)).to(uncertain.dtype)
