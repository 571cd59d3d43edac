"""How much every parameter matters to the deployed model: what EATA's regulariser weighs (Niu et al., ICML 2022).

The mean over the client's own training examples of the squared gradient of cross-entropy with the model's own answer
as label; no true label is read. `variant="released"` squares the mean gradient of batches of 64 instead, which is much
smaller. Batch norm keeps its running statistics (the released code has it use the batch's).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import grad, vmap

from ..core import Personalizer, Predict, Task, Tree, check, rng, tree
from ..ops.masks import real_rows

_BATCH = 64


@dataclass(frozen=True)
class Fisher(Personalizer):
    """Adds `fisher` to the model: the diagonal of the Fisher information, parameter by parameter."""

    samples: int = 2000
    """The largest number of training examples that count."""
    params: Literal["norm", "all"] = "norm"
    """The parameters that are weighed, those that EATA tunes; all of a model without normalisation layers."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.at_least(self, "samples", 1)
        check.choices(self)

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        params = model["vars"]["params"]
        tuned = tree.pick(params, task.norm) if self.params == "norm" and task.norm else params

        def loss(tuned: Tree, x: Tensor) -> Tensor:
            vars = {**model["vars"], "params": {**params, **tuned}}
            logits = predict({**model, "vars": vars}, x).logits
            return F.cross_entropy(logits, logits.detach().argmax(-1), reduction="none")

        size = min(data["rows"].shape[-1], self.samples)
        order = rng.order(rng.fold(key, "fisher"), data["rows"].shape[-1], data["n"])[:size]
        real = real_rows(size, data["n"])
        total, count = tree.zeros(tuned), real.sum().clamp_min(1)
        for rows, counts in zip(data["rows"][order].split(_BATCH), real.split(_BATCH), strict=True):
            total = tree.add(total, self._squares(loss, tuned, data["x"][rows], counts.to(torch.float32)))
        return {**model, "fisher": tree.map(lambda t: t / count, total)}

    def _squares(self, loss: Callable[[Tree, Tensor], Tensor], tuned: Tree, x: Tensor, counts: Tensor) -> Tree:
        """Squared gradients of a batch, summed over the rows that count: 1 for those, 0 for padding."""
        if self.variant == "released":
            weight = counts / counts.sum().clamp_min(1.0)
            mean = grad(lambda t: (loss(t, x) * weight).sum())(tuned)
            return tree.map(lambda g: g.square() * counts.sum(), mean)
        each = vmap(grad(lambda t, one: loss(t, one[None])[0]), in_dims=(None, 0))(tuned, x)
        return tree.map(lambda g: (g.square() * counts.view(-1, *[1] * (g.dim() - 1))).sum(0), each)
