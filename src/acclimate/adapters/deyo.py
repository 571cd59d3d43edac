"""DeYO. Lee et al., ICLR 2024: entropy alone trusts shortcuts; a sample should lose its class when its shape is gone.

The second measure is the difference of the pseudo-label's probability (PLPD): p(y | x) - p(y | x'), where y is the
answer to x, and x' is x with its patches in a random order, which keeps colours and textures and destroys the object.
Samples count with an entropy H below `margin` and a PLPD above `least`; they are weighted by exp(E0 - H) + exp(PLPD),
and their weighted entropies are averaged. Neither x' nor the weights carry a gradient. There is no step where no sample
counts.

A batch is answered with the logits from before its own update. Published settings are for 1,000 classes and ResNet-50;
the thresholds are shares of log(classes), as there. The paper leaves the layers of the last stage alone, here
all normalisation layers are tuned. The released code forwards x' of the samples of low entropy alone: with
`variant="released"` its batch statistics are of these, else of all. Where sides are no multiple of `patches`, the rest
stays in place.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import SGD, Mode, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.adapter import Traced
from ..core.gradient import grad
from ..ops import requirements
from ..ops.augment import shuffle_patches
from ..ops.losses import entropy
from ..ops.memory_norms import CountedNorm
from ..ops.params import with_params
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class DeYO(Traced):
    """Minimises entropy on samples whose answer hangs on the object's shape (Lee et al., ICLR 2024)."""

    traces: ClassVar[Mapping[str, str]] = {
        "weight": "weight of the sample in the update",
        "plpd": "how much less likely its answer is without the shape",
    }

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = SGD(lr=2.5e-4, momentum=0.9)
    margin: float = 0.5
    """Samples count with an entropy below this, in units of log(classes)."""
    centre: float = 0.4
    """E0, the entropy of weight one, in units of log(classes)."""
    least: float = 0.2
    """Samples count with a PLPD above this."""
    patches: int = 4
    """Patches per side of the image."""
    steps: int = 1
    variant: Literal["paper", "released"] = check.later("paper")

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.positive(self, "margin")
        check.positive(self, "centre")
        check.within(self, "least", -1.0, 1.0)
        check.whole(self, "patches", 2)
        check.at_least(self, "steps", 1)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.norm_layers(task, "DeYO") if self.params == "norm" else None
        missing = missing or requirements.images(task, "DeYO", "cut into patches")
        if not missing and min(task.shape[1:]) < self.patches:
            missing = (
                f"DeYO cuts sides into patches={self.patches}, and these inputs have shape {task.shape}: set fewer"
            )
        return missing or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tuned_of(task, model, self.params)
        return {"params": tuned, "opt": self.opt.init(tuned)}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        for t in range(self.steps):
            broken = shuffle_patches(x, rng.fold(key, "patches", t), self.patches)
            now = with_params(model, state["params"])

            def loss(tuned: Tree, broken: Tensor = broken, now: Tree = now) -> tuple[Tensor, tuple[Tensor, ...]]:
                logits = predict(with_params(model, tuned), x, "still").logits
                sure = (entropy(logits.detach()) < self.margin * math.log(task.num_classes)).to(logits.dtype)
                mode: Mode = "still" if self.variant == "paper" else CountedNorm(sure)
                weight, plpd = self.weigh(logits.detach(), predict(now, broken, mode).logits)
                return (weight * entropy(logits)).sum() / (weight > 0).sum().clamp_min(1), (logits, weight, plpd)

            grads, (logits, weight, plpd) = grad(loss, has_aux=True)(state["params"])
            tuned, opt = self.opt.update(grads, state["opt"], state["params"])
            state = tree.where((weight > 0).any(), {"params": tuned, "opt": opt}, state)
        return logits, state, {"weight": weight, "plpd": plpd}

    def weigh(self, logits: Tensor, without: Tensor) -> tuple[Tensor, Tensor]:
        """Weights of the samples, zero for those that do not count, and their PLPD."""
        label, h, unit = logits.argmax(-1, keepdim=True), entropy(logits), math.log(logits.shape[-1])
        plpd = torch.take_along_dim(logits.softmax(-1) - without.softmax(-1), label, -1)[:, 0]
        weight = (self.centre * unit - h).exp() + plpd.exp()
        return torch.where((h < self.margin * unit) & (plpd > self.least), weight, 0.0), plpd
