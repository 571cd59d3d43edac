"""THEPlus, the test half of FedTHE+. Jiang & Lin, ICLR 2023, Sec. 4.3 and Algorithm 2: THE, then tuning per sample.

THE finds the head weight e; with it fixed, body and both heads are tuned to lower the marginal entropy of the mixed
predictions over 16 AugMix views, 3 steps of SGD at 5e-4, and reset after every sample. The released code does the same,
on views that passed through 8-bit images.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..ops import requirements
from ..ops.nets import linear
from ..ops.params import with_params
from ..ops.unlabelled import augmix_views, map_samples, tuned_on_views
from .the import THE


@dataclass(frozen=True)
class THEPlus(Adapter):
    """THE, then MEMO-style tuning of body and both heads with the head weight fixed (Jiang & Lin, ICLR 2023)."""

    the: THE = THE()
    steps: int = 3
    views: int = 16
    opt: Optimizer = SGD(lr=5e-4)
    chunk: int = 8
    """How many samples of a client are tuned at once; it bounds memory."""

    requires: ClassVar[tuple[str, ...]] = THE.requires
    made_by: ClassVar[str] = THE.made_by
    traces: ClassVar[Mapping[str, str]] = {"personal_weight": THE.traces["personal_weight"]}

    def __post_init__(self) -> None:
        check.at_least(self, "steps", 0)
        check.at_least(self, "views", 1)
        check.at_least(self, "chunk", 1)

    @property
    def batch_free(self) -> bool:
        return self.the.batch_free

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.pixels(task, "THEPlus", "augment") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return self.the.init(task, model)

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        e, new = self._weighed(predict, model, state, x)
        return self._tuned(predict, model, e, x, key), new

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        e, new = self._weighed(predict, model, state, x)
        return self._tuned(predict, model, e, x, key), new, {"personal_weight": 1 - e[:, 0]}

    def _weighed(self, predict: Predict, model: Tree, state: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """The weights e that THE finds, and the next state."""
        out = predict(model, x)
        return self.the.weigh(model, state, out.features, out.logits, linear(model["head"], out.features))

    def _tuned(self, predict: Predict, model: Tree, e: Tensor, x: Tensor, key: rng.Key) -> Tensor:
        """Logits after tuning body and heads for every sample, with its weight fixed."""

        def one(sample: Tree, key: rng.Key) -> Tensor:
            model, e = sample["model"], sample["e"]

            def logits(tuned: Tree, x: Tensor) -> Tensor:
                out = predict(with_params(model, tuned["params"]), x)
                return e * out.logits + (1 - e) * linear(tuned["head"], out.features)

            start = {"params": model["vars"]["params"], "head": model["head"]}
            tuned = tuned_on_views(logits, start, sample["seen"], self.opt)
            return logits(tuned, sample["x"][None])[0]

        keys, draw = rng.rows(key, x.shape[0]), augmix_views(self.steps, self.views)
        logits: Tensor = map_samples(one, {"x": x, "e": e}, keys, self.chunk, draw, model)
        return logits
