"""How much every parameter matters to the deployed model: what EATA's regulariser weighs (Niu et al., ICML 2022).

The mean over the client's own training examples of the squared gradient of cross-entropy with the model's own answer
as label; no true label is read. As printed, every example's gradient is squared (`batch=1`), with the running
statistics of batch norm. The released code squares the mean gradient of batches of 64 (`batch=64`, which
`variant="released"` means) that are normalised with their own statistics (`statistics="batch"`). That is about 64
times smaller, and EATA's published alpha of 2,000 goes with it: see `EATA.alpha`.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor
from torch.func import vmap

from ..core import Personalizer, Predict, Task, Tree, check, rng, tree
from ..core.gradient import grad
from ..core.loops import Time, at, repeat

_RELEASED, _CHUNK = 64, 64


@dataclass(frozen=True)
class Fisher(Personalizer):
    """Adds `fisher` to the model: the diagonal of the Fisher information, parameter by parameter."""

    samples: int = 2000
    """The largest number of training examples that count."""
    params: Literal["norm", "all"] = "norm"
    """The parameters that are weighed, those that EATA tunes; all of a model without normalisation layers."""
    variant: Literal["paper", "released"] = "paper"
    batch: int | None = None
    """How many examples share a gradient before it is squared; None is 1 in the paper's variant, 64 in the released."""
    statistics: Literal["running", "batch"] = "running"
    """What batch norm normalises with: its running statistics, or those of the batch."""

    def __post_init__(self) -> None:
        check.at_least(self, "samples", 1)
        check.choices(self)
        if self.batch is not None:
            check.whole(self, "batch", 1)
        if self.statistics == "batch" and self.together == 1:
            raise check.FieldError("Fisher: statistics='batch' needs a batch of at least 2", "statistics", "batch")

    @property
    def together(self) -> int:
        """How many examples share a gradient."""
        return self.batch or (_RELEASED if self.variant == "released" else 1)

    def run(self, task: Task, predict: Predict, model: Tree, data: Tree, key: rng.Key) -> Tree:
        params = model["vars"]["params"]
        tuned = tree.pick(params, task.norm) if self.params == "norm" and task.norm else params

        def loss(tuned: Tree, x: Tensor) -> Tensor:
            vars = {**model["vars"], "params": {**params, **tuned}}
            logits = predict({**model, "vars": vars}, x, "adapt" if self.statistics == "batch" else "eval").logits
            return F.cross_entropy(logits, logits.detach().argmax(-1), reduction="none")

        size = min(data["rows"].shape[-1], self.samples)
        order = rng.order(rng.fold(key, "fisher"), data["rows"].shape[-1], data["n"])[:size]
        chunk = self.together if self.together > 1 else min(_CHUNK, size)
        own = data["n"].clamp_max(size)
        wrap = own.clamp_min(1)
        places = torch.arange(-(-size // chunk) * chunk, device=order.device).view(-1, chunk)

        def step(t: Time, total: Tree) -> tuple[Tree, Tree]:
            # full batches: the last one wraps around, so that statistics do not depend on padding
            here = at(places, t)
            x, counts = data["x"][data["rows"][order[here % wrap]]], (here < own).to(torch.float32)
            return tree.add(total, self._squares(loss, tuned, x, counts)), {}

        total, _ = repeat(step, tree.zeros(tuned), len(places), order)
        return {**model, "fisher": tree.map(lambda t: t / wrap, total)}

    def _squares(self, loss: Callable[[Tree, Tensor], Tensor], tuned: Tree, x: Tensor, counts: Tensor) -> Tree:
        """Squared gradients of a batch, summed over the rows that count: 1 for those, 0 for padding."""
        if self.together > 1:
            weight = counts / counts.sum().clamp_min(1.0)
            mean = grad(lambda t: (loss(t, x) * weight).sum())(tuned)
            return tree.map(lambda g: g.square() * counts.sum(), mean)
        each = vmap(grad(lambda t, one: loss(t, one[None])[0]), in_dims=(None, 0))(tuned, x)
        return tree.map(lambda g: (g.square() * counts.view(-1, *[1] * (g.dim() - 1))).sum(0), each)
