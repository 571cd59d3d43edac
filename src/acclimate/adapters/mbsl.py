"""MBSL, FedSPL's test half. Liang et al., AAAI 2025, Eq. 5-14 and Algorithm 1: a teacher labels, a student learns.

The adapter sees the client's whole unlabelled set first. `mbsl_equations` has the equations, `mbsl_released` those of
the authors' code, of which rho and the rates are. In every epoch:
- the teacher's prediction is its mean over E augmented views (Eq. 6); its margin between the best and the second class
  (Eq. 7) is strong where it reaches the client's mean margin (Eq. 8), else weak;
- the student learns: cross-entropy to the pseudo-labels of strong samples (Eq. 9), squared distance to the teacher's
  prediction on weak ones (Eq. 10), and a contrastive loss between two views (Eq. 11), weighted by Eq. 12-14;
- after every step the teacher moves to the student by an exponential average (Eq. 5; Algorithm 1 has it once per
  epoch, where rho 0.999 would leave it where it was). The teacher answers.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import SGD, Adapter, Augment, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import grad
from ..core.loops import Time, repeat
from ..ops import requirements
from ..ops.augment import FlipCrop
from ..ops.masks import mean_of
from .mbsl_equations import Equations, average
from .mbsl_released import ReleasedEquations
from .mbsl_views import answer, of_all, on_views, one_pass


@dataclass(frozen=True)
class MBSL(Adapter):
    """Teacher and student on strong and weak pseudo-labels, over the whole test set (Liang et al., AAAI 2025)."""

    transductive: ClassVar[bool] = True
    skips: ClassVar[bool] = True
    epochs: int = 3
    batch: int = 16
    opt: Optimizer = SGD(lr=2e-4, momentum=0.9, nesterov=True, weight_decay=1e-4)
    views: int = 10
    """E, the augmented views whose mean is the teacher's prediction."""
    augment: Augment = FlipCrop()
    rho: float = 0.999
    """How much of itself the teacher keeps in every step."""
    weak: float = 0.001
    """The bound that the weak loss's weight grows to."""
    contrast: float = 0.4
    """The contrastive loss's first weight."""
    decay: float = 1e-3
    """The rate per step at which the contrastive loss's weight decays."""
    temperature: float = 0.07
    components: int = 8
    """Principal components that the contrastive loss compares."""
    losses: tuple[str, ...] = ("strong", "weak", "contrast")
    """Which losses take part: the combinations of Table 2."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        for name in ("epochs", "batch", "views", "components"):
            check.at_least(self, name, 1)
        for name in ("rho", "weak", "contrast"):
            check.within(self, name, 0.0, 1.0)
        check.at_least(self, "decay", 0.0)
        check.positive(self, "temperature")
        check.choices(self)
        if not set(self.losses) <= {"strong", "weak", "contrast"}:
            raise check.FieldError(f"MBSL: losses={self.losses!r} must be among strong, weak and contrast", "losses")

    @property
    def equations(self) -> Equations:
        """Eq. 5-14 with this record's settings, as the paper or as the released code has them."""
        form = ReleasedEquations if self.variant == "released" else Equations
        return form(self.weak, self.contrast, self.decay, self.temperature, self.components)

    def refusal(self, task: Task, model: Tree) -> str | None:
        of = requirements.pixels if getattr(self.augment, "clips", False) else requirements.images
        return of(task, "MBSL", "augment") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return {"teacher": model["vars"]["params"]}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        def epoch(t: Time, now: Tree) -> tuple[Tree, Tree]:
            this = rng.fold(key, "epoch", t)
            labels = of_all(partial(self._taught, predict, model, now["teacher"]), x, own["n"], this)
            seen, delta = {"x": x, **labels, "who": own["rows"]}, {"delta": mean_of(labels["margin"], real)}
            return one_pass(partial(self._learn, predict, model), now, seen, delta, own, self.batch, this), {}

        own = {"rows": torch.arange(len(x), device=x.device), "n": real.sum()}
        now = {"teacher": state["teacher"], "student": state["teacher"], "opt": self.opt.init(state["teacher"])}
        now |= {"grown": torch.ones((), device=x.device), "j": torch.zeros((), device=x.device)}
        return {"teacher": repeat(epoch, now, self.epochs, x)[0][self.equations.answers]}

    def _taught(self, predict: Predict, model: Tree, teacher: Tree, x: Tensor, key: rng.Key) -> Tree:
        """What the teacher says of samples, by its answers on views of them."""
        views, _ = on_views(predict, model, teacher, x, self.augment, self.views, key)
        return dict(zip(("taught", "margin"), self.equations.labels(views), strict=True))

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return answer(predict, model, state["teacher"], x)[0], state

    def _learn(self, predict: Predict, model: Tree, now: Tree, batch: Tree, key: rng.Key) -> Tree:
        """One step of the student, and of the teacher that follows it."""
        weights, grown = self.equations.weights(now["grown"], batch["delta"], batch["margin"], now["j"])
        grads = grad(self._loss)(now["student"], predict, model, batch, weights, key)
        scale = self.opt.scale(torch.zeros_like(now["j"]), now["j"])
        student, opt = self.opt.update(grads, now["opt"], now["student"], scale)
        teacher = average(now["teacher"], self.equations.followed(now["student"], student), self.rho)
        return {"teacher": teacher, "student": student, "opt": opt, "grown": grown, "j": now["j"] + 1}

    def _loss(self, student: Tree, predict: Predict, model: Tree, batch: Tree, weights: Tree, key: rng.Key) -> Tensor:
        logits, _ = answer(predict, model, student, batch["x"])
        views = partial(on_views, predict, model, student, batch["x"], self.augment, 2, rng.fold(key, "contrast"))
        return self.equations.loss(logits, views, batch, weights, self.losses)
