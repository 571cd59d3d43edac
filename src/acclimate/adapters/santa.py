"""SANTA. Chakrabarty, Sreenivas & Biswas, TMLR 2023: anchored at the source model, aligned with source prototypes.

- Source anchoring (Eq. 2): the cross-entropy of the adapted model's answers to a sample and to a random view of it,
  against the answer of the source model, whose batch norm has the batch's statistics too. `anchor=0.5` is the mean of
  the two, as a public benchmark has it.
- Target alignment: a contrastive loss over three views of every sample, its features, those of the random view, and the
  source prototype nearest by cosine, all through a small network that is tuned along (`project`).

Nobody holds the source data of a federation: the prototypes are those of the *client's* training data, which the
personaliser ClassMeans notes; classes that it does not hold are never nearest. Only normalisation layers
are tuned, one step per batch, which is answered with the logits from before it. RMT has the same contrastive loss, and
needs a teacher and source samples besides: a state twice as large, and data that must be kept.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import grad
from ..ops import nets, requirements
from ..ops.augment import Views
from ..ops.params import with_params
from ..ops.prototypes import contrastive, similarities
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class SANTA(Adapter):
    """Self-training anchored at the source model and at class prototypes (Chakrabarty et al., TMLR 2023)."""

    requires: ClassVar[tuple[str, ...]] = ("means",)

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = Adam(lr=1e-3)
    anchor: float = 1.0
    """Weight of the source anchoring."""
    align: float = 1.0
    """Weight of the target alignment; 0: prototypes are not used."""
    temperature: float = 0.1
    project: int | None = 128
    """Width of the network before the alignment, two layers that start at random (`seed`); None: no network."""
    seed: int = 0
    views: Views = Views(zoom=0.8, grey=0.0)

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.at_least(self, "anchor", 0.0)
        check.at_least(self, "align", 0.0)
        check.positive(self, "temperature")
        if self.project is not None:
            check.whole(self, "project", 1)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.norm_layers(task, "SANTA") if self.params == "norm" else None
        if missing := missing or requirements.pixels(task, "SANTA", "take views of"):
            return missing
        if self.align and (reason := super().refusal(task, model)):
            return f"{reason}; personalise with ClassMeans (personal=means), or set align=0"
        return None

    def init(self, task: Task, model: Tree) -> Tree:
        tuned: Tree = {"model": tuned_of(task, model, self.params)}
        if self.align and self.project is not None:
            key = rng.key(self.seed, model["vars"]["params"][task.head_weight].device)
            tuned["projector"] = nets.init(rng.fold(key, "santa"), (task.dim, self.project, self.project))
        return {"params": tuned, "opt": self.opt.init(tuned)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        source = predict(model, x, "still").logits
        view = self.views.views(x, rng.fold(key, "view"))

        def loss(tuned: Tree) -> tuple[Tensor, Tensor]:
            now, seen = (predict(with_params(model, tuned["model"]), some, "still") for some in (x, view))
            value = self.anchor * anchoring(now.logits, seen.logits, source)
            if self.align:
                z = three(now.features, seen.features, model["means"])
                z = nets.apply(tuned["projector"], z) if "projector" in tuned else z
                own = torch.arange(len(x), device=x.device)
                known = (model["means"]["counts"].sum() > 0).to(value.dtype)
                value = value + self.align * known * contrastive(z, own, self.temperature)
            return value, now.logits

        grads, logits = grad(loss, has_aux=True)(state["params"])
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        return logits, {"params": tuned, "opt": opt}


def anchoring(now: Tensor, seen: Tensor, source: Tensor) -> Tensor:
    """Eq. 2 of a batch's logits, those of its views, and those of the source model."""
    return -((now.softmax(-1) + seen.softmax(-1)) * source.log_softmax(-1)).sum(-1).mean()


def three(now: Tensor, seen: Tensor, means: Tree) -> Tensor:
    """Three views [3, B, d]: each sample's nearest prototype, its features, and those of its random view."""
    unit = F.normalize(means["prototypes"], dim=-1)
    nearest = similarities(F.normalize(now.detach(), dim=-1), unit, means["counts"], 1.0).argmax(-1)
    return torch.stack((means["prototypes"][nearest], now, seen))
