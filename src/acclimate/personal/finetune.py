"""Fine-tuning of the deployed model on the client's own labelled data: all of it, the head, or the head first."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import SGD, Optimizer, Personalizer, Predict, Task, Tree, Work, check, rng, train
from ..ops.losses import balanced_softmax, class_counts


@dataclass(frozen=True)
class FineTune(Personalizer):
    """Fine-tunes the deployed model on the client's own labelled data (FedAvg+FT, LP, LP-FT).

    `parts="all"` tunes everything, `"head"` the last layer on frozen features (linear probing), `"head-then-all"` is
    LP-FT (Kumar et al., ICLR 2022): probe first, then tune everything from there.
    """

    parts: Literal["all", "head", "head-then-all"] = "all"
    opt: Optimizer = SGD(lr=0.01)
    work: Work = Work(epochs=1)
    balanced: bool = False
    """Whether the loss is balanced softmax instead of cross-entropy (FedTHE's Table 13, row 16)."""

    def __post_init__(self) -> None:
        check.choices(self)

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        for i, part in enumerate(self.parts.split("-then-")):
            only = task.head if part == "head" else None
            model = self._tune(task, predict, model, data, only, rng.fold(key, i))
        return model

    def _tune(
        self, task: Task, predict: Predict, model: Tree, data: Tree, only: frozenset[str] | None, key: rng.Key
    ) -> Tree:
        # A probed head sits on fixed features, so batch norm keeps its statistics while only the head is trained.
        frozen = only is not None
        # Balanced softmax under equal counts is cross-entropy.
        counts = class_counts(data, task.num_classes)
        counts = counts if self.balanced else torch.zeros_like(counts)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = predict({**model, "vars": vars}, batch["x"], "eval" if frozen else "train", key)
            risk = balanced_softmax(out.logits, batch["y"], counts)
            return risk, vars["buffers"] if frozen else out.buffers

        return {**model, "vars": train(loss, model["vars"], data, self.opt, self.work, key, only)}
