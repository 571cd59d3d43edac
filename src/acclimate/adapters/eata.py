"""EATA. Niu et al., ICML 2022: Tent that skips what it cannot learn from, and that does not forget.

- Reliable samples count: their entropy H is below the margin E0, and exp(E0 - H) weights them. Redundant ones do not:
  their prediction is nearer by cosine than `redundancy` to the moving average of the predictions that counted before.
- Parameters that mattered in training are held: alpha times the Fisher-weighted squared way from the start. The
  personaliser Fisher notes those weights; `alpha=0` is ETA, which needs none.

As published, a batch is answered with the logits from before its own update, there is no step where no sample counts,
and the weights carry no gradient. FedICON's E0 = 0.4 log(1000) for ten classes is `margin=1.2`: every sample passes.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.adapter import Traced
from ..core.gradient import grad
from ..ops import requirements
from ..ops.losses import entropy
from ..ops.params import with_params
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class EATA(Traced):
    """Minimises entropy on reliable, non-redundant samples, near the trained model (Niu et al., ICML 2022)."""

    requires: ClassVar[tuple[str, ...]] = ("fisher",)
    traces: ClassVar[Mapping[str, str]] = {"weight": "weight of the sample in the update"}

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = SGD(lr=2.5e-4, momentum=0.9)
    margin: float | None = 0.4
    """E0 in units of log(classes), 0.4 in the paper; None lets every sample count, and as one."""
    redundancy: float | None = 0.05
    """Samples at least as alike to those before are left out; None: none. 0.05 is for 1,000 classes, 0.4 for ten."""
    keep: float = 0.9
    """Weight of the past in the moving average of predictions."""
    alpha: float = 2000.0 / 64
    """Weight of the Fisher regulariser; 0: none. The published 2,000 squares means of 64 (`Fisher(batch=64)`)."""
    steps: int = 1

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        if self.margin is not None:
            check.positive(self, "margin")
        if self.redundancy is not None:
            check.within(self, "redundancy", 0.0, 1.0)
        check.within(self, "keep", 0.0, 1.0)
        check.at_least(self, "alpha", 0.0)
        check.at_least(self, "steps", 1)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if self.params == "norm" and (missing := requirements.norm_layers(task, "EATA")):
            return missing
        if not self.alpha:
            return None
        if reason := super().refusal(task, model):
            return f"{reason}; personalise with Fisher (personal=fisher), or set alpha=0"
        if unweighed := sorted(set(tuned_of(task, model, self.params)) - set(model["fisher"])):
            return f"EATA tunes {unweighed[0]}, and Fisher did not weigh it: set its params='{self.params}'"
        return None

    def init(self, task: Task, model: Tree) -> Tree:
        tuned, head = tuned_of(task, model, self.params), model["vars"]["params"][task.head_weight]
        # no average yet: zeros, to which no prediction is alike
        return {"params": tuned, "opt": self.opt.init(tuned), "average": head.new_zeros(task.num_classes)}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        start = tuned_of(task, model, self.params)

        def loss(tuned: Tree) -> tuple[Tensor, tuple[Tensor, Tensor]]:
            logits = predict(with_params(model, tuned), x, "still").logits
            weight = self.weigh(logits.detach(), state["average"])
            uncertain = (weight * entropy(logits)).sum() / (weight > 0).sum().clamp_min(1)
            return uncertain + self._held(model, start, tuned), (logits, weight)

        for _ in range(self.steps):
            grads, (logits, weight) = grad(loss, has_aux=True)(state["params"])
            tuned, opt = self.opt.update(grads, state["opt"], state["params"])
            new = {"params": tuned, "opt": opt, "average": self._averaged(state["average"], logits, weight)}
            state = tree.where((weight > 0).any(), new, state)
        return logits, state, {"weight": weight}

    def weigh(self, logits: Tensor, average: Tensor) -> Tensor:
        """S(x) of every sample: zero for those that do not count."""
        weight = torch.ones_like(logits[:, 0])
        if self.margin is not None:
            room = self.margin * math.log(logits.shape[-1]) - entropy(logits)
            weight = torch.where(room > 0, room.exp(), 0.0)
        if self.redundancy is not None:
            alike = F.cosine_similarity(logits.softmax(-1), average[None], dim=-1)
            weight = torch.where((alike < self.redundancy) | (average.sum() == 0), weight, 0.0)
        return weight

    def _averaged(self, average: Tensor, logits: Tensor, weight: Tensor) -> Tensor:
        counted = (weight > 0).to(logits.dtype)[:, None]
        now = (counted * logits.softmax(-1)).sum(0) / counted.sum().clamp_min(1.0)
        return torch.where(average.sum() == 0, now, self.keep * average + (1.0 - self.keep) * now)

    def _held(self, model: Tree, start: Tree, tuned: Tree) -> Tensor | float:
        if not self.alpha:
            return 0.0
        away = tree.map(lambda a, b: (a - b).square(), tuned, start)
        return self.alpha * tree.dot(tree.pick(model["fisher"], frozenset(away)), away)
