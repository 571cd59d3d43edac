"""MEMO. Zhang et al., NeurIPS 2022, Eq. 2 and Algorithm 1: for each test sample, all parameters are tuned to lower
the marginal entropy over its augmented views; they then answer the sample and are forgotten.

Defaults are those that the FedTHE paper found best for this baseline (App. C.2): 32 AugMix views, 3 steps, lr 5e-4;
MEMO's own for CIFAR-10 are 32 views, 1 step, lr 5e-3. Views are drawn anew in each step, as released. FedTHE's released
code runs 2 steps, and at lr 0.01 with momentum and weight decay, because it sets an attribute that torch ignores.
MEMO (G) is this adapter on the global model, MEMO (P) the same after FineTune. Samples are tuned in parallel, `chunk`
at a time; each has a key of its own, so the numbers do not depend on the chunks.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import SGD, Adapter, Blend, Mode, Optimizer, Predict, Task, Tree, check, rng
from ..ops import requirements
from ..ops.losses import entropy
from ..ops.params import with_params
from ..ops.unlabelled import augmix_views, map_samples, tuned_on_views


@dataclass(frozen=True)
class MEMO(Adapter):
    """Per sample, minimises the entropy of the mean prediction over augmented views (Zhang et al., NeurIPS 2022)."""

    steps: int = 3
    views: int = 32
    opt: Optimizer = SGD(lr=5e-4)
    prior: float | None = None
    """How many samples batch norm's running statistics count for against those of the views (MEMO on ImageNet has 16);
    None uses the running statistics alone."""
    chunk: int = 8
    """How many samples of a client are tuned at once; it bounds memory."""

    traces: ClassVar[Mapping[str, str]] = {"entropy": "entropy of its answer, nats"}

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.at_least(self, "steps", 0)
        check.at_least(self, "views", 1)
        check.at_least(self, "chunk", 1)
        if self.prior is not None:
            check.at_least(self, "prior", 0.0)

    @property
    def batch_free(self) -> bool:
        return True

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.pixels(task, "MEMO", "augment") or super().refusal(task, model)

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        mode: Mode = "eval" if self.prior is None else Blend(self.prior)

        def one(sample: Tree, key: rng.Key) -> Tensor:
            model = sample["model"]

            def logits(params: Tree, x: Tensor) -> Tensor:
                return predict(with_params(model, params), x, mode).logits

            params = tuned_on_views(logits, model["vars"]["params"], sample["seen"], self.opt)
            return logits(params, sample["x"][None])[0]

        keys, draw = rng.rows(key, x.shape[0]), augmix_views(self.steps, self.views)
        return map_samples(one, {"x": x}, keys, self.chunk, draw, model), state

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        return logits, new, {"entropy": entropy(logits)}
