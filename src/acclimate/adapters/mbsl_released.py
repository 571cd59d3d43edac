"""MBSL as its authors' code has it, where that differs from the paper (`variant="released"`).

Margins are taken view by view and averaged, their mean is the mini-batch's, and strong is above it; weak distances are
between mean logits; the strong weight starts at 1 and shrinks by (1 - 0.001 exp(-margin)) per step, the rest going to
the weak loss; the contrast is SimCLR's among weak samples, without PCA, with weight 0.5 exp(-1e-4 j); the teacher moves
before every step, and the student answers. `views=5` is its number.

Left out: labels made anew in every step, promoting weak samples, topping up missing classes, a larger rate for the
head, a cosine for the rate, strong views for the student.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Tree
from .mbsl_contrast import repeated, simclr
from .mbsl_equations import Equations, margins


@dataclass(frozen=True)
class ReleasedEquations(Equations):
    """What the released code computes in the place of the paper's equations."""

    answers: ClassVar[str] = "student"

    def followed(self, before: Tree, after: Tree) -> Tree:
        return before

    def labels(self, logits: Tensor) -> tuple[Tensor, Tensor]:
        return logits.mean(0), margins(logits.softmax(-1)).mean(0)

    def strong(self, margin: Tensor, delta: Tensor) -> Tensor:
        return margin > margin.mean()

    def distance(self, logits: Tensor, taught: Tensor) -> Tensor:
        return (taught - logits).square().sum(-1)

    def contrastive(self, features: Tensor, who: Tensor, strong: Tensor) -> Tensor:
        first, second = features
        return simclr(first, second, ~repeated(who) & (strong == 0), self.temperature)

    def weights(self, grown: Tensor, delta: Tensor, margin: Tensor, j: Tensor) -> tuple[Tree, Tensor]:
        """Here the number that is carried along is the strong loss's own weight."""
        weights = {"strong": grown, "weak": 1 - grown, "contrast": 0.5 * torch.exp(-1e-4 * j)}
        return weights, grown * (1 - 0.001 * torch.exp(-margin.mean()))
