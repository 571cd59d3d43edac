"""kNN-Per. Marfoq et al., ICML 2022, Eq. 7-8: the model's prediction mixed with that of the nearest training features.

The neighbours vote with exp(-||z - z_i|| / sigma); `variant="released"` has exp(-||z - z_i||^2 / (dim sigma)), as the
authors' code. Needs the personaliser Memory.

`lam` is the weight of the neighbours. Left open, it is tuned for each client on its own labelled training data, before
the stream begins: stored examples are answered as if they were new, by the model and by the *other* stored examples
(leave-one-out), and the value that gets most of them right is taken, the smallest where several do. No test sample
takes part. The paper tunes on validation data that the model was not trained on; here the model has seen the examples,
so that `lam` errs on the side of the model. FedTHE's released comparison tunes on the test set; its grid of 101 values
is the default here, the paper has 11. FedTHE's code also mixes probabilities with raw logits; here both are
probabilities, and their logarithm is returned.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, rng
from ..ops.masks import mean_of, real_rows

CANDIDATES = 2
"""Times k: how many stored examples are looked at closely."""


@dataclass(frozen=True)
class KNNPer(Adapter):
    """Mixes in the vote of the k nearest training features; no gradient step (Marfoq et al., ICML 2022)."""

    requires: ClassVar[tuple[str, ...]] = ("memory",)
    made_by: ClassVar[str] = "personal=memory"

    k: int = 10
    sigma: float = 1.0
    lam: float | None = None
    """Weight of the neighbours; None tunes it per client on its stored training examples."""
    grid: int = 101
    """How many evenly spaced weights from 0 to 1 are tried."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.at_least(self, "k", 1)
        check.positive(self, "sigma")
        if self.lam is not None:
            check.within(self, "lam", 0.0, 1.0)
        check.at_least(self, "grid", 2)
        check.choices(self)

    @property
    def batch_free(self) -> bool:
        return True

    def refusal(self, task: Task, model: Tree) -> str | None:
        if reason := super().refusal(task, model):
            return reason
        noted = model["memory"]["asked"]["away"].shape[-1]
        if self.lam is None and self.k > noted:
            return f"KNNPer tunes lam with k={self.k}, and Memory noted {noted} neighbours: raise that, or set lam"
        return None

    def init(self, task: Task, model: Tree) -> Tree:
        memory = model["memory"]
        if self.lam is None:
            return {"lam": self._tuned(memory, task.num_classes)}
        return {"lam": torch.full_like(memory["z"][0, 0], self.lam)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out, memory = predict(model, x), model["memory"]
        # an empty store has no neighbours: its first, unreal entry keeps the sums finite, and `lam` is then 0
        real = real_rows(memory["z"].shape[0], memory["n"].clamp_min(1))
        away, which = _nearest(out.features, memory["z"], real, self.k)
        vote = self._vote(away, memory["y"][which], out.features.shape[-1], task.num_classes)
        lam = state["lam"] * (memory["n"] > 0)
        mixed = lam * vote + (1.0 - lam) * out.logits.softmax(-1)
        return mixed.clamp_min(1e-12).log(), state

    def _tuned(self, memory: Tree, num_classes: int) -> Tensor:
        """The weight that answers most stored examples right, each asked of the others."""
        asked, n = memory["asked"], memory["n"]
        away, labels = asked["away"][:, : self.k], asked["votes"][:, : self.k]
        # a lone example has no others: an unreal one keeps the sums finite, and nothing is counted
        real = real_rows(away.shape[-1], (n - 1).clamp_min(1))
        vote = self._vote(torch.where(real, away, torch.inf), labels, memory["z"].shape[-1], num_classes)
        own = asked["logits"].softmax(-1)
        lam = torch.linspace(0.0, 1.0, self.grid, dtype=own.dtype, device=own.device)[:, None, None]
        answers = (lam * vote + (1.0 - lam) * own).argmax(-1)
        counts = real_rows(own.shape[0], n) & (n > 1)
        right = (answers == asked["y"]) & counts
        return right.sum(-1).argmax().to(own.dtype) / (self.grid - 1)

    def _vote(self, away: Tensor, labels: Tensor, dim: int, num_classes: int) -> Tensor:
        """Class probabilities [B, C] by the kernel-weighted vote of neighbours [B, k] of these distances and labels."""
        d = away / self.sigma if self.variant == "paper" else away**2 / (dim * self.sigma)
        return ((-d).softmax(-1)[..., None] * F.one_hot(labels, num_classes).to(d.dtype)).sum(1)


def _nearest(z: Tensor, stored: Tensor, real: Tensor, k: int) -> tuple[Tensor, Tensor]:
    """Distances to the k nearest real rows of `stored`, [B, k], and which these are; inf where there are fewer.

    One product finds candidates, by squares around the stored mean; their distances are then taken by differences,
    which squares of large numbers would lose. All distances by differences take several times as long.
    """
    k, few = min(k, len(stored)), min(CANDIDATES * k, len(stored))
    centre = mean_of(stored, real)
    a, b = z - centre, stored - centre
    rough = torch.where(real, b.square().sum(-1) - 2.0 * (a @ b.T), torch.inf)
    some = torch.topk(rough, few, largest=False).indices
    away = torch.linalg.vector_norm(z[:, None] - stored[some], dim=-1)
    near = torch.topk(torch.where(real[some], away, torch.inf), k, largest=False)
    return near.values, some.gather(-1, near.indices)
