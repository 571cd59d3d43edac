"""kNN-Per. Marfoq et al., ICML 2022, Eq. 7-8: the model's prediction mixed with that of the nearest training features.

The neighbours vote with exp(-||z - z_i|| / sigma); `variant="released"` has exp(-||z - z_i||^2 / (dim sigma)), as the
authors' code. Needs the personaliser Memory. `lam` is the weight of the neighbours. The paper tunes it per client on
validation data, FedTHE's released comparison on the test set, which is not offered here: it is one fixed number.
FedTHE's code also mixes probabilities with raw logits; here both are probabilities, and their logarithm is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng
from ..core.adapter import Adapter, Predict
from ..core.task import Task
from ..core.tree import Tree


@dataclass(frozen=True)
class KNNPer(Adapter):
    """Mixes in the vote of the k nearest training features; no gradient step (Marfoq et al., ICML 2022)."""

    requires: ClassVar[tuple[str, ...]] = ("memory",)

    k: int = 10
    sigma: float = 1.0
    lam: float = 0.5
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.at_least(self, "k", 1)
        check.positive(self, "sigma")
        check.within(self, "lam", 0.0, 1.0)
        check.one_of(self, "variant", ("paper", "released"))

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out, memory = predict(model, x), model["memory"]
        vote = self._vote(out.features, memory, task.num_classes)
        lam = self.lam * (memory["n"] > 0)
        mixed = lam * vote + (1.0 - lam) * out.logits.softmax(-1)
        return mixed.clamp_min(1e-12).log(), state

    def _vote(self, z: Tensor, memory: Tree, num_classes: int) -> Tensor:
        """Class probabilities [B, C] by the kernel-weighted vote of the k nearest."""
        away = torch.cdist(z, memory["z"], compute_mode="donot_use_mm_for_euclid_dist")
        # an empty store has no neighbours: its first, unreal entry keeps the sums finite, and `lam` is then 0
        real = torch.arange(memory["z"].shape[0], device=z.device) < memory["n"].clamp_min(1)
        near = torch.topk(torch.where(real, away, torch.inf), min(self.k, memory["z"].shape[0]), largest=False)
        d = near.values / self.sigma if self.variant == "paper" else near.values**2 / (z.shape[-1] * self.sigma)
        voters = F.one_hot(memory["y"][near.indices], num_classes).to(z.dtype)
        return ((-d).softmax(-1)[..., None] * voters).sum(1)
