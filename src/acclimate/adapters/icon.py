"""FedICON, test half. Tan et al., KDD FL4Data-Mining 2023, Sec. 3.2 and Algorithm 1, LocalTest.

Before the first answer the encoder is tuned on the client's whole unlabelled test set with the unsupervised contrastive
loss (Eq. 5) on two random views: the other view of a sample is its only positive. The classifier stays as it is. The
paper names neither the learning rate of this phase nor its epochs, but calls them as those of training: as many here.
Batch-norm statistics belong to the encoder and move along. It serves any model, so that Table 8's rows without
contrastive training can be adapted, too.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, Work, check, rng
from ..ops import requirements
from ..ops.augment import Views
from ..ops.prototypes import contrastive
from ..ops.unlabelled import tune


@dataclass(frozen=True)
class ICON(Adapter):
    """Tunes the encoder on two views of every test sample, then answers (FedICON's test-time adaptation)."""

    transductive: ClassVar[bool] = True
    skips: ClassVar[bool] = True

    opt: Optimizer = SGD(lr=1e-4)
    work: Work = Work()
    """How long the encoder is tuned, as long as in training; `batch` is also how many samples are compared at once."""
    temperature: float = 0.1
    views: Views = Views()

    def __post_init__(self) -> None:
        check.positive(self, "temperature")

    @property
    def batch_free(self) -> bool:
        return True

    def refusal(self, task: Task, model: Tree) -> str | None:
        return requirements.pixels(task, "ICON", "take views of") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        return {"vars": model["vars"]}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = predict({**model, "vars": vars}, self.views.several(batch["x"], key), "adapt")
            return contrastive(out.features.unflatten(0, (2, -1)), batch["y"], self.temperature), out.buffers

        samples = torch.arange(x.shape[0], device=x.device)
        return {"vars": tune(loss, state["vars"], x, real, samples, self.opt, self.work, key, only=task.body)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict({**model, **state}, x).logits, state
