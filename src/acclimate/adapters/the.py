"""THE, the test half of FedTHE. Jiang & Lin, ICLR 2023, Eq. 3-5 and Algorithm 2.

For every test sample the weight e of the global head against the personal one is optimised, with all else frozen:
- L_EM (Eq. 3): entropy of the mixed logits e y^g + (1-e) y^l; L_FA (Eq. 4): e ||h' - h^g|| + (1-e) ||h' - h^l||,
  where h'_n = beta h_n + (1-beta) h^history, and h^history is a moving average of the samples before (`the_history`).
- Eq. 5 weights them with the agreement of the two heads: lambda L_EM + (1-lambda) L_FA, lambda = cos(p^g, p^l).
- e is the softmax of two free numbers, 20 steps of Adam at 0.1 from e = 1/2.

Samples of a batch are optimised at once; results do not depend on its size. `variant="released"` has the history of
the authors' code and its mean of the objective over a batch, but not its beta=0.1 or its break of all samples at once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import grad
from ..ops.losses import entropy
from ..ops.nets import linear
from . import the_history


@dataclass(frozen=True)
class THE(Adapter):
    """Mixes a global and a personal head, with a weight optimised per unlabelled sample (Jiang & Lin, ICLR 2023)."""

    alpha: float = 0.1
    """Weight of the latest sample in the history."""
    beta: float = 0.3
    """Weight of the sample itself against the history."""
    opt: Optimizer = Adam(lr=0.1)
    steps: int = 20
    loss: Literal["slw", "em", "fa", "sum"] = "slw"
    """Eq. 5, entropy alone, alignment alone, or half of each: the ablations of Table 3."""
    per: Literal["sample", "batch"] = "sample"
    """One weight per sample, or one for a whole batch."""
    history: bool = True
    """Whether there is a history; without one, h' is the sample's own feature."""
    variant: Literal["paper", "released"] = "paper"
    requires: ClassVar[tuple[str, ...]] = ("head", "descriptors")
    made_by: ClassVar[str] = "method=fedthe"
    traces: ClassVar[Mapping[str, str]] = {
        "personal_weight": "weight of the personal head, 1 - e",
        "feature": "features without history",
        "smoothed_feature": "features with history, h'",
    }

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.within(self, "alpha", 0.0, 1.0)
        check.within(self, "beta", 0.0, 1.0)
        check.at_least(self, "steps", 0)
        check.choices(self)

    @property
    def batch_free(self) -> bool:
        return self.per == "sample" and self.variant == "paper"

    def init(self, task: Task, model: Tree) -> Tree:
        zero = torch.zeros_like(model["descriptors"]["local"])
        return {"history": zero, "last": zero, "started": torch.zeros_like(zero[0])}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        logits, new, _, _ = self._answer(predict, model, state, x)
        return logits, new

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new, e, features = self._answer(predict, model, state, x)
        smooth, _ = self._smooth(features, state)
        return logits, new, {"personal_weight": 1 - e[:, 0], "feature": features, "smoothed_feature": smooth}

    def _answer(self, predict: Predict, model: Tree, state: Tree, x: Tensor) -> tuple[Tensor, Tree, Tensor, Tensor]:
        """Mixed logits, the next state, and what they came from: e and the features."""
        out = predict(model, x)
        generic, personal = out.logits, linear(model["head"], out.features)
        e, new = self.weigh(model, state, out.features, generic, personal)
        return e * generic + (1 - e) * personal, new, e, out.features

    def weigh(
        self, model: Tree, state: Tree, features: Tensor, generic: Tensor, personal: Tensor
    ) -> tuple[Tensor, Tree]:
        """The weight e of the global head, [B, 1], and the state for the next batch."""
        smooth, state = self._smooth(features, state)
        apart = [(smooth - model["descriptors"][which]).norm(dim=-1) for which in ("global", "local")]
        agree = F.cosine_similarity(generic.softmax(-1), personal.softmax(-1), dim=-1)
        share = agree if self.loss == "slw" else torch.full_like(agree, {"em": 1.0, "fa": 0.0, "sum": 0.5}[self.loss])

        def objective(free: Tree) -> Tensor:
            e = free["w"].softmax(-1)
            certain = entropy(e[:, :1] * generic + e[:, 1:] * personal)
            aligned = e[:, 0] * apart[0] + e[:, 1] * apart[1]
            each = share * certain + (1 - share) * aligned
            return each.sum() if self.per == "sample" and self.variant == "paper" else each.mean()

        rows = features.shape[0] if self.per == "sample" else 1
        free = {"w": torch.ones(rows, 2, dtype=features.dtype, device=features.device)}
        moments = self.opt.init(free)
        for _ in range(self.steps):
            free, moments = self.opt.update(grad(objective)(free), moments, free)
        return free["w"].softmax(-1)[:, :1].expand(features.shape[0], 1), state

    def _smooth(self, features: Tensor, state: Tree) -> tuple[Tensor, Tree]:
        """h'_n of every sample of the batch (Eq. 4), and what the next batch's history starts from."""
        if not self.history:
            return features, state
        form = the_history.released if self.variant == "released" else the_history.paper
        history = form(features, state, self.alpha)
        new = {"history": history[-1], "last": features[-1], "started": torch.ones_like(state["started"])}
        return self.beta * features + (1 - self.beta) * history, new
