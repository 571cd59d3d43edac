"""ROID. Marsden, Doebler & Yang, WACV 2024: weighted self-training that stays near the source, for any kind of stream.

- The loss is the soft likelihood ratio, sum_c -p_c log(p_c / (1 - p_c)), with p_c at most 0.99, so that sure samples
  still have a gradient.
- Samples are weighted by exp(d u / T): d is how unlike (1 - cosine) a prediction is to the moving average of all, u is
  minus its entropy, both scaled to 0..1 over the batch. Those with less than the mean d do not count.
- Consistency: the symmetric cross-entropy between the answers to a sample and to a random view of it, weighted alike.
- After every step the parameters go back to the source's by a hundredth of the way (weight ensembling).
- Prior correction: the batch's mean prediction pi is smoothed to (pi + g) / (1 + g C), with g = max(1/B, 1/C) / max pi,
  and answers are weighed by that: its logarithm is added to the logits. `variant="released"` multiplies logits by it.

The moving average starts uniform, or with `prior="client"` at the class frequencies of the client's training data (our
own; the personaliser ClassPrior notes them). A batch is answered with the logits from before its own update. The
released code forwards views of the counting samples alone: with `variant="released"` their batch statistics are of
these, else of all views. Its views are CoTTA's; here they are those of `views`.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adam, Mode, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.adapter import Traced
from ..core.gradient import grad
from ..ops import requirements
from ..ops.augment import Views
from ..ops.losses import entropy
from ..ops.memory_norms import CountedNorm
from ..ops.params import with_params
from ..ops.priors import PriorKind, class_prior, prior_refusal
from ..ops.self_training import likelihood_ratio, scaled, symmetric
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class ROID(Traced):
    """Weighted self-training with weight ensembling and prior correction (Marsden et al., WACV 2024)."""

    traces: ClassVar[Mapping[str, str]] = {"weight": "weight of the sample in the update"}

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = Adam(lr=1e-3)
    temperature: float = 1 / 3
    keep: float = 0.9
    """Weight of the past in the moving average of predictions."""
    ensemble: float = 0.99
    """What stays of the tuned parameters after a step; the rest is the source's. 1: no ensembling."""
    consistency: float = 1.0
    """Weight of the consistency with a random view; 0: no view is taken."""
    views: Views = Views(zoom=0.8, grey=0.0)
    correct: bool = True
    """Whether answers are corrected by the batch's class prior."""
    prior: PriorKind = "uniform"
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.positive(self, "temperature")
        check.within(self, "keep", 0.0, 1.0)
        check.within(self, "ensemble", 0.0, 1.0)
        check.at_least(self, "consistency", 0.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.norm_layers(task, "ROID") if self.params == "norm" else None
        if not missing and self.consistency and (flat := requirements.pixels(task, "ROID", "take views of")):
            missing = f"{flat}; set consistency=0"
        return missing or prior_refusal(task, model, self.prior, "ROID") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tuned_of(task, model, self.params)
        return {"params": tuned, "opt": self.opt.init(tuned), "average": class_prior(task, model, self.prior)}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        def loss(tuned: Tree) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            logits = predict(with_params(model, tuned), x, "still").logits
            weight, each = self.weigh(logits.detach(), state["average"]), likelihood_ratio(logits)
            if self.consistency:
                mode: Mode = "still" if self.variant == "paper" else CountedNorm((weight > 0).to(logits.dtype))
                seen = predict(with_params(model, tuned), self.views.views(x, rng.fold(key, "view")), mode).logits
                each = each + self.consistency * symmetric(seen, logits)
            return (weight * each).mean(), (logits, weight)

        grads, (logits, weight) = grad(loss, has_aux=True)(state["params"])
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        source = tuned_of(task, model, self.params)
        tuned = tree.map(lambda new, old: self.ensemble * new + (1.0 - self.ensemble) * old, tuned, source)
        average = self.keep * state["average"] + (1.0 - self.keep) * logits.softmax(-1).mean(0)
        new = {"params": tuned, "opt": opt, "average": average}
        return self._corrected(logits), new, {"weight": weight}

    def weigh(self, logits: Tensor, average: Tensor) -> Tensor:
        """Weights of the samples: zero for those that are too like the average."""
        unlike = scaled(1.0 - F.cosine_similarity(logits.softmax(-1), average[None], dim=-1))
        weight = (unlike * scaled(-entropy(logits)) / self.temperature).exp()
        return torch.where(unlike < unlike.mean(), 0.0, weight)

    def _corrected(self, logits: Tensor) -> Tensor:
        if not self.correct:
            return logits
        prior = smoothed(logits.softmax(-1).mean(0), len(logits))
        return logits + prior.log() if self.variant == "paper" else logits * prior


def smoothed(prior: Tensor, batch: int) -> Tensor:
    """Class shares as if every class had been met a little, the less the larger batch and number of classes are."""
    g = max(1.0 / batch, 1.0 / len(prior)) / prior.amax()
    return (prior + g) / (1.0 + g * len(prior))
