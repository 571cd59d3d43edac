"""An adapter that answers as the one inside it does, and keeps of every sample what estimates of accuracy need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor, vmap

from ..core import Mode, Out, Predict, Task, Tree, Wrapping, check, rng
from ..ops import estimates


@dataclass(frozen=True)
class Observed(Wrapping):
    """Delegates everything, and traces its logits and, where `passes` is above 0, what dropout on the features before
    the head makes of them.

    A dropout pass is the inner adapter's own step, from the state it has, on a model whose features are partly zero;
    the state that it leaves is thrown away. So it needs no knowledge of the adapter. Where a method answers with more
    than one head, only what comes from the model's own head changes.
    """

    passes: int = 10
    rate: float = 0.4

    traces: ClassVar[Mapping[str, str]] = {
        "logits": "its answer",
        "differs": "share of dropout passes that answer otherwise",
        "dropped": "mean probabilities of the dropout passes",
    }

    def __post_init__(self) -> None:
        check.whole(self, "passes", 0)
        if not 0 < self.rate < 1:
            raise check.FieldError(f"Observed: rate={self.rate} must be between 0 and 1", "rate")

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.adapter.step(task, predict, model, state, x, key)
        if not self.passes:
            return logits, new, {"logits": logits}

        def one(number: Tensor) -> Tensor:
            return self.adapter.step(task, self._dropping(task, predict, key, number), model, state, x, key)[0]

        passes = vmap(one)(torch.arange(self.passes, device=key.device))  # what no mask reaches is computed once
        differs, dropped = estimates.disagreement(logits, passes)
        return logits, new, {"logits": logits, "differs": differs, "dropped": dropped}

    def _dropping(self, task: Task, predict: Predict, samples: rng.Key, number: Tensor) -> Predict:
        """The model with dropout before its head, whatever parameters the adapter gives it.

        A sample has the same masks however its stream is cut into batches."""

        def call(model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
            out = predict(model, x, mode, key)
            masks = rng.fold(rng.rows(samples, len(out.features)), "passes", number)
            features = estimates.dropout(out.features, self.rate, masks)
            change = (features - out.features) @ model["vars"]["params"][task.head_weight].T
            return out._replace(logits=out.logits + change, features=features)

        return call
