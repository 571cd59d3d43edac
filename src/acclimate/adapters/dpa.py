"""DPA, the test half of FedDPA. Yang et al., NeurIPS 2024: a weight of the local LoRA for every test sample.

The weight is `scale` times the mean cosine similarity between the sample's features and those of a few of the client's
training examples, both under the local LoRA alone: what looks like the client's own data is answered by its own LoRA.
The two LoRAs are then mixed in every layer. The released code has five examples and a scale of one half; similarities
below zero, which it does not treat, count as zero here.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from ..core import Predict, Task, Tree, check, rng
from ..core.adapter import Traced
from ..ops.pairs import share_of


@dataclass(frozen=True)
class DPA(Traced):
    """Weighs a shared and a local LoRA per sample by likeness to training examples (Yang et al., NeurIPS 2024)."""

    scale: float = 0.5
    """The weight of the local LoRA for a sample that is just like the training examples."""

    requires: ClassVar[tuple[str, ...]] = ("share", "anchors")
    made_by: ClassVar[str] = "method=feddpa model=lora-vit-local"
    traces: ClassVar[Mapping[str, str]] = {"personal_weight": "weight of the local LoRA"}

    def __post_init__(self) -> None:
        check.within(self, "scale", 0.0, 1.0)

    @property
    def batch_free(self) -> bool:
        return True

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, share = self._answer(predict, model, x)
        return logits, state, {"personal_weight": share}

    def _answer(self, predict: Predict, model: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
        features = predict(share_of(model, 1.0), x).features
        alike = F.cosine_similarity(features[:, None], model["anchors"], dim=-1).mean(-1)
        mixture = share_of(model, self.scale * alike.clamp_min(0.0))
        return predict(mixture, x).logits, mixture["share"]
