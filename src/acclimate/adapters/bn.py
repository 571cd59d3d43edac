"""Batch-norm statistics from the test batch. Nado et al., 2020; Schneider et al., NeurIPS 2020, Eq. 3.

The statistics used are (N source + n test) / (N + n) with prior strength N in samples; N=0 uses the test batch alone.
"""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor

from ..core import Adapter, Blend, Predict, Task, Tree, check, rng
from ..ops import requirements


@dataclass(frozen=True)
class BNStats(Adapter):
    """Replaces, or mixes, the batch-norm statistics with those of the test batch; no gradient step."""

    prior: float = 0.0
    """How many samples the training statistics count for (Schneider et al. use 16 for ImageNet)."""

    def __post_init__(self) -> None:
        check.at_least(self, "prior", 0.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.batch_statistics(task, "BNStats") or super().refusal(task, model)

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(model, x, Blend(self.prior) if self.prior else "still").logits, state
