"""Tent. Wang et al., ICLR 2021: entropy minimisation over the normalisation layers' affine parameters (Eq. 1, Sec. 3).

As published, batch statistics come from the test batch, and a batch is answered with the logits computed before its
own last update. The released code collects BatchNorm2d only; here group and layer norm count too, and `params="all"`
tunes every parameter of models that have no normalisation at all (as FedTTA's comparison does).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..ops import requirements
from ..ops.losses import entropy
from ..ops.params import with_params
from ..ops.unlabelled import descend, tuned_of


@dataclass(frozen=True)
class Tent(Adapter):
    """Minimises the entropy of its predictions, batch after batch (Wang et al., ICLR 2021)."""

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = Adam(lr=1e-3)
    steps: int = 1

    traces: ClassVar[Mapping[str, str]] = {"entropy": "entropy of its answer, nats"}

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.at_least(self, "steps", 1)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.norm_layers(task, "Tent") if self.params == "norm" else None
        return missing or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tuned_of(task, model, self.params)
        return {"params": tuned, "opt": self.opt.init(tuned)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return descend(predict, model, state, x, self.opt.update, self.steps)

    def answer(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tensor:
        if self.steps > 1:
            return super().answer(task, predict, model, state, x, key)
        return predict(with_params(model, state["params"]), x, "adapt").logits  # they are from before the update

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        return logits, new, {"entropy": entropy(logits)}
