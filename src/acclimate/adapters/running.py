"""Batch-norm statistics that follow the stream: running ones, as in training, instead of those of one batch. Our own.

After every batch the running statistics move towards the batch's, `speed` times as far as in training (where a layer's
momentum says how far), and the batch is answered with them. So a small batch is enough, where `BNStats` needs a large
one. What it tunes are statistics and no parameters; clients that meet the same shift can share them (`Together`).
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng, tree
from ..ops import requirements
from ..ops.params import with_tuned


@dataclass(frozen=True)
class RunningStats(Adapter):
    """Answers with running batch-norm statistics of the stream; no gradient step."""

    speed: float = 1.0
    """How far statistics go with every batch, relative to training; 10 is the batch's own at the usual momentum."""

    def __post_init__(self) -> None:
        check.positive(self, "speed")

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.batch_statistics(task, "RunningStats") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return {"params": tree.pick(model["vars"]["buffers"], task.norm)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        old = state["params"]
        followed = tree.pick(predict(with_tuned(model, old), x, "adapt").buffers, old)
        new = tree.add(old, tree.sub(followed, old), self.speed)
        new = {name: v.clamp_min(0.0) if name.endswith("running_var") else v for name, v in new.items()}
        return predict(with_tuned(model, new), x).logits, {"params": new}
