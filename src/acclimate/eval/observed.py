"""An adapter that answers as the one inside it does, and keeps of every sample what estimates of accuracy need."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor, vmap

from ..core import Adapter, Mode, Out, Predict, Task, Tree, check, rng
from ..ops import estimates


@dataclass(frozen=True)
class Observed(Adapter):
    """Delegates everything, and traces its logits and, where `passes` is above 0, what dropout on the features before
    the head makes of them.

    A dropout pass is the inner adapter's own step, from the state it has, on a model whose features are partly zero;
    the state that it leaves is thrown away. So it needs no knowledge of the adapter. Where a method answers with more
    than one head, only what comes from the model's own head changes.
    """

    adapter: Adapter = Adapter()
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

    @property
    def transductive(self) -> bool:  # type: ignore[override]
        return self.adapter.transductive

    @property
    def batch_free(self) -> bool:
        return self.adapter.batch_free

    def refusal(self, task: Task, model: Tree) -> str | None:
        return self.adapter.refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return self.adapter.init(task, model)

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        return self.adapter.prepare(task, predict, model, state, x, real, key)

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return self.adapter.step(task, predict, model, state, x, key)

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.adapter.step(task, predict, model, state, x, key)
        if not self.passes:
            return logits, new, {"logits": logits}

        def one(pass_key: rng.Key) -> Tensor:
            return self.adapter.step(task, self._dropping(task, predict, pass_key), model, state, x, key)[0]

        passes = vmap(one)(rng.rows(rng.fold(key, "passes"), self.passes))  # what no mask reaches is computed once
        differs, dropped = estimates.disagreement(logits, passes)
        return logits, new, {"logits": logits, "differs": differs, "dropped": dropped}

    def _dropping(self, task: Task, predict: Predict, pass_key: rng.Key) -> Predict:
        """The model with dropout before its head, whatever parameters the adapter gives it."""

        def call(model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
            out = predict(model, x, mode, key)
            features = estimates.dropout(out.features, self.rate, pass_key)
            change = (features - out.features) @ model["vars"]["params"][task.head_weight].T
            return out._replace(logits=out.logits + change, features=features)

        return call
