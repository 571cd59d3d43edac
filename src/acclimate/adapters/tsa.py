"""TSA. Zhang et al., NeurIPS 2022 (SADE), Sec. 4.2: test-time self-supervised aggregation of two heads.

The weights of the global and the personal head maximise the cosine similarity of the aggregated predictions (softmax of
the weighted logits) on two random views; updates stop once a head's weight falls below `floor`. The paper learns one
pair of weights for a whole test set; here it is one per batch, or one per sample as in FedTHE's comparison
(`per="sample"`, Adam 0.1, 10 steps there). Views are crop, flip, brightness and contrast; the paper adds hue, grey
and blur. FedTHE's released code never applies its views: both are the image itself, and its weights stay equal.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adam, Optimizer, Predict, Task, Tree, check, rng
from ..core.adapter import Traced
from ..core.gradient import grad
from ..ops import requirements
from ..ops.augment import FlipCrop
from ..ops.nets import head_of, linear, personal_head


@dataclass(frozen=True)
class TSA(Traced):
    """Weighs global and personal head by how steady they are under augmentation (Zhang et al., NeurIPS 2022)."""

    requires: ClassVar[tuple[str, ...]] = ("head",)
    made_by: ClassVar[str] = "method=fedthe"
    traces: ClassVar[Mapping[str, str]] = {"personal_weight": "weight of the personal head"}

    per: Literal["batch", "sample"] = "batch"
    steps: int = 10
    opt: Optimizer = Adam(lr=0.1)
    floor: float = 0.05
    jitter: float = 0.4
    """Brightness and contrast are scaled by factors within 1 +- jitter."""

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.at_least(self, "steps", 0)
        check.within(self, "floor", 0.0, 0.5)
        check.within(self, "jitter", 0.0, 1.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.pixels(task, "TSA", "augment") or super().refusal(task, model)

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, share = self._answer(task, predict, model, x, key)
        return logits, state, {"personal_weight": share[:, 1].expand(x.shape[0])}

    def _answer(self, task: Task, predict: Predict, model: Tree, x: Tensor, key: rng.Key) -> tuple[Tensor, Tensor]:
        """Mixed logits, and the share of both heads in them, [1 or B, 2]."""

        def heads(x: Tensor) -> Tensor:
            features = predict(model, x).features
            each = head_of(task, model["vars"]), personal_head(task, model)
            return torch.stack([linear(head, features) for head in each])

        first, second = (heads(self._view(x, rng.fold(key, i))) for i in range(2))
        weights = self._learn(first, second)
        return _mix(weights, heads(x)), weights.softmax(-1)

    def _learn(self, first: Tensor, second: Tensor) -> Tensor:
        """Free weights [1 or B, 2] (before the softmax) from both heads' logits [2, B, C] on two views."""

        def loss(tuned: Tree) -> Tensor:
            a, b = (_mix(tuned["weights"], logits).softmax(-1) for logits in (first, second))
            alike = F.cosine_similarity(a, b, dim=-1)
            return -alike.sum() if self.per == "sample" else -alike.mean()

        tuned = {"weights": first.new_zeros(first.shape[1] if self.per == "sample" else 1, 2)}
        opt = self.opt.init(tuned)
        for _ in range(self.steps):
            new, opt = self.opt.update(grad(loss)(tuned), opt, tuned)
            active = tuned["weights"].softmax(-1).amin(-1, keepdim=True) >= self.floor
            tuned = {"weights": torch.where(active, new["weights"], tuned["weights"])}
        return tuned["weights"]

    def _view(self, x: Tensor, key: rng.Key) -> Tensor:
        x = x.to(torch.float32) / 255.0 if x.dtype == torch.uint8 else x
        x = FlipCrop().views(x, rng.fold(key, "crop"))
        light, contrast = 1.0 + self.jitter * (2.0 * rng.uniform(rng.fold(key, "light"), 2, x.shape[0], 1, 1, 1) - 1.0)
        x = (x * light).clamp(0.0, 1.0)
        mean = x.mean((1, 2, 3), keepdim=True)
        return (mean + (x - mean) * contrast).clamp(0.0, 1.0)


def _mix(weights: Tensor, logits: Tensor) -> Tensor:
    """The heads' logits [2, B, C] under weights [1 or B, 2]."""
    share = weights.softmax(-1)
    return share[:, :1] * logits[0] + share[:, 1:] * logits[1]
