"""CoTTA. Wang et al., CVPR 2022: a mean teacher's targets, and weights that find back to the source now and then.

Per batch, the student learns from the teacher's soft answer by cross-entropy. That answer is the mean of the
teacher's logits over `views` augmented views where the source model is unsure, its mean confidence being below
`unsure`, and else the answer to the image itself. The teacher then follows the student, and every
weight of the student goes back to the source's with the chance `restore`. A batch is answered with the
teacher's target, from before the update. All parameters are tuned; batch norm uses the batch's statistics.

The text does not say over what the confidence is taken; the published code means the batch (`per="batch"`), here it can
also be decided for every sample. With fixed shapes the views are always computed, `chunk` of them at once; `unsure=1`
takes them always, `unsure=0` never and makes none: a student that says what its teacher says then has nothing to learn.
Published for ImageNet: `SGD(lr=0.01)`, restore=0.001, unsure=0.1.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import vmap

from ..core import Adam, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.adapter import Traced
from ..core.gradient import grad
from ..core.loops import chunked
from ..ops import requirements
from ..ops.params import with_params
from ..ops.strong_views import StrongViews


@dataclass(frozen=True)
class CoTTA(Traced):
    """Learns from a mean teacher's averaged views and restores weights at random (Wang et al., CVPR 2022)."""

    traces: ClassVar[Mapping[str, str]] = {"confidence": "confidence of the source model"}

    opt: Optimizer = Adam(lr=1e-3)
    ema: float = 0.999
    """Weight of the teacher's past."""
    views: int = 32
    unsure: float = 0.92
    """The source's confidence below which views are averaged (p_th; 0.72 for CIFAR-100)."""
    per: Literal["batch", "sample"] = "batch"
    """Whether the mean confidence of the batch decides, or that of each sample for itself."""
    restore: float = 0.01
    """The chance of every weight to go back to the source's, with every batch."""
    augment: StrongViews = StrongViews()
    chunk: int = 8
    """How many views of a batch are answered at once; it bounds memory."""

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.whole(self, "views", 1)
        check.whole(self, "chunk", 1)
        for name in ("ema", "unsure", "restore"):
            check.within(self, name, 0.0, 1.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.pixels(task, "CoTTA", "augment") if self.unsure else None
        return f"{missing}; set unsure=0" if missing else super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        source = model["vars"]["params"]
        return {"params": source, "teacher": source, "opt": self.opt.init(source)}

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        confidence = predict(model, x, "still").logits.softmax(-1).amax(-1)
        target = self._target(predict, with_params(model, state["teacher"]), x, confidence, key)
        soft = target.softmax(-1)

        def loss(params: Tree) -> Tensor:
            logits = predict(with_params(model, params), x, "still").logits
            return -(soft * logits.log_softmax(-1)).sum(-1).mean()

        params, opt = self.opt.update(grad(loss)(state["params"]), state["opt"], state["params"])
        teacher = tree.map(lambda t, s: self.ema * t + (1.0 - self.ema) * s, state["teacher"], params)
        back = restored(params, model["vars"]["params"], self.restore, rng.fold(key, "restore"))
        return target, {"params": back, "teacher": teacher, "opt": opt}, {"confidence": confidence}

    def _target(self, predict: Predict, teacher: Tree, x: Tensor, confidence: Tensor, key: rng.Key) -> Tensor:
        """The teacher's logits: of the images, or their mean over views where the source is unsure."""
        plain = predict(teacher, x, "still").logits
        if not self.unsure:
            return plain

        def one(key: rng.Key) -> Tensor:
            return predict(teacher, self.augment.views(x, key), "still").logits

        keys = rng.fold(key, "view", torch.arange(self.views, device=x.device))
        mean = chunked(lambda some: {"y": vmap(one)(some["k"])}, {"k": keys}, self.chunk)["y"].mean(0)
        sure = (confidence.mean().expand_as(confidence) if self.per == "batch" else confidence) >= self.unsure
        return torch.where(sure[:, None], plain, mean)


def restored(params: Tree, source: Tree, chance: float, key: rng.Key) -> Tree:
    """Every single weight as it is or, with this chance, as in the source."""
    if not chance:
        return params
    draws = rng.uniforms([rng.fold(key, name) for name in params], [p.shape for p in params.values()])
    return {
        name: torch.where(draw < chance, source[name], p) for (name, p), draw in zip(params.items(), draws, strict=True)
    }
