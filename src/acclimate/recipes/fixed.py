"""A global and a personal head mixed with one weight for all samples: what FedTHE is compared with in its Figure 14."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..experiment.names import allow
from ..ops.nets import linear


@dataclass(frozen=True)
class FixedHeads(Adapter):
    """Mixes a global and a personal head with the same weight for every client and sample; adapts nothing."""

    e: float = 0.5
    """Weight of the global head."""

    requires: ClassVar[tuple[str, ...]] = ("head",)

    def __post_init__(self) -> None:
        check.within(self, "e", 0.0, 1.0)

    @property
    def batch_free(self) -> bool:
        return True

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x)
        return self.e * out.logits + (1 - self.e) * linear(model["head"], out.features), state


allow(FixedHeads)
