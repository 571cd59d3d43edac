"""MBSL's equations. Liang et al., AAAI 2025, Eq. 5-14, and how they are read where they cannot hold as printed.

Eq. 9 is read as the student's prediction: as printed it has the teacher's, which has no gradient. The contrastive loss
(Eq. 11) compares principal components of features, each row centred by its own mean; its two PCAs are one, over both
views, since two bases could not be compared.

Weights, Eq. 12-14: (1 - a - b) strong + a weak + b contrast, b = b0 exp(-gamma j). As printed, a starts at 1, which
makes the strong weight negative, against the text (strong samples first, and an upper bound of 0.001 for a). Read
here: what Eq. 13 shrinks from 1 is the distance of a to its bound, a = bound (1 - prod(1 - delta)).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Tree, tree
from ..core.nn import cross_entropy
from ..ops.masks import mean_of
from .mbsl_contrast import contrastive, principal


@dataclass(frozen=True)
class Equations:
    """The equations as the paper has them; the fields are those of `MBSL` with these names."""

    weak: float
    contrast: float
    decay: float
    temperature: float
    components: int

    answers: ClassVar[str] = "teacher"
    """Which of the two models answers in the end."""

    def followed(self, before: Tree, after: Tree) -> Tree:
        """The student that the teacher moves to in a step (Eq. 5): the one after the student's own step."""
        return after

    def labels(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        """The teacher's prediction (Eq. 6) from its logits on views [E, B, C], and its margin (Eq. 7)."""
        mean = logits.softmax(-1).mean(0)
        return mean, margins(mean)

    def strong(self, margin: Tensor, delta: Tensor) -> Tensor:
        """Which samples have strong pseudo-labels (Eq. 8), where delta is the client's mean margin."""
        return margin >= delta

    def distance(self, logits: Tensor, taught: Tensor) -> Tensor:
        """How far the student is from the teacher's prediction, per sample (inside Eq. 10)."""
        return (taught - logits.softmax(-1)).square().sum(-1)

    def contrastive(self, features: Tensor, who: Tensor, strong: Tensor) -> Tensor:
        """Eq. 11 on the features of two views, [2, B, D]; `who` numbers the samples."""
        both = features.flatten(0, 1).detach()
        centre, basis = both.mean(0), principal(both, self.components)
        p, q = ((view - centre) @ basis for view in features)
        return contrastive(p, q, who, self.temperature).mean()

    def weights(self, grown: Tensor, delta: Tensor, margin: Tensor, j: Tensor) -> tuple[Tree, Tensor]:
        """The three losses' weights at step j (Eq. 12-14), and prod(1 - delta) of Eq. 13 for the next step."""
        grown = grown * (1 - delta)
        weak, contrast = self.weak * (1 - grown), self.contrast * torch.exp(-self.decay * j)
        return {"strong": 1 - weak - contrast, "weak": weak, "contrast": contrast}, grown

    def loss(
        self,
        logits: Tensor,
        views: Callable[[], tuple[Tensor, Tensor]],
        batch: Tree,
        weights: Tree,
        taking: Sequence[str],
    ) -> Tensor:
        """Eq. 12, over the losses that are `taking` part; `views` gives the student's answers on two views."""
        taught, strong = batch["taught"], self.strong(batch["margin"], batch["delta"]).to(logits.dtype)
        each = {
            "strong": lambda: mean_of(cross_entropy.each(logits, taught.argmax(-1)), strong),
            "weak": lambda: mean_of(self.distance(logits, taught), 1 - strong),
            "contrast": lambda: self.contrastive(views()[1], batch["who"], strong),
        }
        return torch.stack([weights[name] * each[name]() for name in taking]).sum()


def average(teacher: Tree, student: Tree, rho: float) -> Tree:
    """Eq. 5."""
    moved: Tree = tree.map(lambda t, s: rho * t + (1 - rho) * s, teacher, student)
    return moved


def margins(prediction: Tensor) -> Tensor:
    """The confidence separation score (Eq. 7): the best class's value less the second's, per row."""
    best = prediction.topk(2, dim=-1).values
    return best[..., 0] - best[..., 1]
