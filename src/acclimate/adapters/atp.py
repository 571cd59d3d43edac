"""ATP. Bao et al., NeurIPS 2023: one unsupervised step per batch, with a learned rate for every tensor.

The rates are those that the method FedATP learned; they may be negative, or zero for what should not adapt. ATP-batch
starts every batch from the deployed model. ATP-online does too, and answers with the mean of all adapted models so far.
Both answer after the step. With rates of zero nothing adapts.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, rng, tree
from ..ops.atp import directions, moved


@dataclass(frozen=True)
class ATP(Adapter):
    """Adapts every tensor at its own, learned rate; needs FedATP (Bao et al., NeurIPS 2023)."""

    requires: ClassVar[tuple[str, ...]] = ("rates",)
    made_by: ClassVar[str] = "method=fedatp"

    online: bool = False
    """Whether batches add up to a mean model instead of each starting afresh."""

    def init(self, task: Task, model: Tree) -> Tree:
        if not self.online:
            return {}
        count = model["vars"]["params"][task.head_weight].new_zeros(())
        return {"vars": model["vars"], "count": count}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        vars = moved(model["vars"], model["rates"], directions(predict, model, x, task.norm_momentum))
        if self.online:
            count = state["count"] + 1
            vars = tree.map(lambda old, new: old + (new - old) / count, state["vars"], vars)
            state = {"vars": vars, "count": count}
        return predict({**model, "vars": vars}, x).logits, state
