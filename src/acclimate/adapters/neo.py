"""NEO. Murphy et al., ICLR 2026: features are centred with their mean over the stream, and the head stays as it is.

The answer is W (z - c) + b, where c is the mean of the features of all samples so far, the batch's own included; with
`keep` it is the moving average of batch means (NEO-Continual has 0.9), which starts at the first batch's. No gradient,
nothing else to set.

A client's mean carries its classes: a stream of two classes is centred between these two. `against="client"` (our own)
subtracts the shift alone, c less the mean feature of the client's *training* data under the same model, which the
personaliser ClassMeans notes. A stream that is like the training data is then answered as the model does.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops.nets import answering_head, linear
from ..ops.prototypes import mean_of_means


@dataclass(frozen=True)
class NEO(Adapter):
    """Centres features with their mean over the stream; no gradient step (Murphy et al., ICLR 2026)."""

    keep: float | None = None
    """Weight of the past in the moving average, 0.9 in NEO-Continual; None: all samples count alike."""
    against: Literal["origin", "client"] = "origin"
    """What the stream's mean is brought to: zero, or the mean of the client's training features."""

    def __post_init__(self) -> None:
        check.choices(self)
        if self.keep is not None:
            check.within(self, "keep", 0.0, 1.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if self.against == "client" and "means" not in model:
            return (
                "NEO with against='client' needs means in the deployed model: personalise with ClassMeans "
                "(personal=means)"
            )
        if others := sorted({"known", "others"} & model.keys()):
            kind = "class prototypes" if others[0] == "known" else "a mixture of models"
            return f"NEO centres features before a linear head, and this model answers with {kind}"
        return super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        weight = model["vars"]["params"][task.head_weight]
        return {"mean": torch.zeros_like(weight[0]), "count": weight.new_zeros(())}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        features = predict(model, x).features
        now, seen = features.mean(0), state["count"] + len(x)
        share = len(x) / seen
        if self.keep is not None:
            share = 1.0 - self.keep * (state["count"] > 0)
        mean = state["mean"] + share * (now - state["mean"])
        shift = mean if self.against == "origin" else mean - mean_of_means(model["means"])
        return linear(answering_head(task, model), features - shift), {"mean": mean, "count": seen}
