"""FedTTA's test half, and FedTTA++. Ye et al., 'UPFL', 2023, Eq. 10-12, Sec. 3.3.2 and Algorithm 1.

The whole unlabelled set is seen once, before the first answer. The model takes `steps` gradient steps on the loss that
the adaptation net gives of it, at the rate of training's inner step; then it answers and changes no more.

- FedTTA: `steps=1`. Without `patience`, the model after the last step answers.
- FedTTA++: `steps=50, patience=5`. Of the models after each step, the one whose predictions have the least mean entropy
  answers; adaptation ends after `patience` steps in a row without a new least. What has ended is masked, so that
  clients that stop at different steps run together.

The loss is a norm over samples, so it grows with the root of their number. Training's inner step sees batches, and
the paper describes a client's whole data as one (footnote 2): with `norm="batch"` the norm is that of one training
batch with the set's mean square, so that a newcomer's step has training's length however much data it holds.
`norm="set"` is Eq. 11 to the letter. Both are blind to the order of samples; the released code's mean over mini-batches
is not. `variant="released"`: its FedTTA++ multiplies the log-probabilities with the patience counter in the place of
the probabilities, and lets the model before the first step compete, which then always wins.

Batch norm takes the statistics of what it is shown, as in training's inner step. Where clients of different sizes are
padded to one, these statistics count repeated samples; the loss and the entropy do not.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import ClassVar, Literal

import torch
from torch import Tensor
from torch.func import grad

from ..core import Adapter, Predict, Task, Tree, check, local, rng, tree
from ..ops.learned import learned_loss, scores
from ..ops.losses import entropy
from ..ops.masks import mean_of
from ..ops.params import with_params


@dataclass(frozen=True)
class FedTTA(Adapter):
    """Adapts the model on a whole unlabelled set, under a loss that was learned for it (Ye et al., 2023)."""

    steps: int = 1
    """The most steps: the paper's E."""
    patience: int | None = None
    """Keep the step of least mean entropy, and stop after this many steps without a new least; None: keep the last."""
    lr: float | None = None
    """The rate of a step; None: that of training's inner step."""
    norm: Literal["batch", "set"] = "batch"
    """Over how many samples the norm is taken: as many as a training batch has, or as the set has."""
    clip: float | None = None
    """Gradients are scaled down to at most this norm."""
    variant: Literal["paper", "released"] = "paper"

    transductive: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("net", "inner")
    traces: ClassVar[Mapping[str, str]] = {
        "entropy": "entropy of its answer, nats",
        "learned_loss": "size of the adaptation net's output",
        "chosen_step": "step whose model answers",
    }

    def __post_init__(self) -> None:
        check.at_least(self, "steps", 1)
        if self.patience is not None:
            check.at_least(self, "patience", 1)
        if self.lr is not None:
            check.at_least(self, "lr", 0.0)
        if self.clip is not None:
            check.positive(self, "clip")
        check.choices(self)

    def init(self, task: Task, model: Tree) -> Tree:
        zero = torch.zeros_like(model["inner"]["lr"])
        curve = torch.zeros(self.steps + 1, dtype=zero.dtype, device=zero.device)
        record = {"entropy": curve, "learned_loss": curve, "chosen_step": zero, "steps_taken": zero}
        return {"params": model["vars"]["params"], "record": record}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        rate = model["inner"]["lr"] if self.lr is None else self.lr

        def look(params: Tree) -> tuple[Tensor, Tree]:
            logits = self._logits(predict, model, params, x)
            loss = learned_loss(model["net"], logits, real, model["inner"]["batch"] if self.norm == "batch" else None)
            return loss, {"learned_loss": loss, **_certainty(logits, real)}

        search = _Search.start(state["params"], model["inner"]["lr"], self.patience, self.variant)
        seen: list[Tree] = []
        for t in range(self.steps):
            gradient, now = grad(look, has_aux=True)(search.params)
            search, seen = search.judged(t, now), [*seen, now]
            if self.clip is not None:
                gradient = local.clip(gradient, self.clip)
            search = search.moved(tree.add(search.params, gradient, -rate))
        now = look(search.params)[1]
        search, seen = search.judged(self.steps, now), [*seen, now]
        curves = {name: torch.stack([s[name] for s in seen]) for name in ("entropy", "learned_loss")}
        record = {**curves, "chosen_step": search.chosen, "steps_taken": search.taken}
        return {"params": search.best, "record": record}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return self._logits(predict, model, state["params"], x), state

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        uncertain, poor = entropy(logits), scores(model["net"], logits).abs()
        chosen = state["record"]["chosen_step"].expand_as(uncertain)
        return logits, new, {"entropy": uncertain, "learned_loss": poor, "chosen_step": chosen}

    def _logits(self, predict: Predict, model: Tree, params: Tree, x: Tensor) -> Tensor:
        return predict(with_params(model, params), x, "adapt").logits


def _certainty(logits: Tensor, real: Tensor) -> Tree:
    """Means over the real samples: the entropy, and the sum of -log2 p that the released code takes for it."""
    flat = -logits.log_softmax(-1).sum(-1) / math.log(2.0)
    return {"entropy": mean_of(entropy(logits), real), "surprise": mean_of(flat, real)}


@dataclass(frozen=True)
class _Search:
    """Where adaptation stands: the model that goes on, the best one so far, and whether it has ended."""

    params: Tree
    best: Tree
    least: Tensor
    stale: Tensor
    live: Tensor
    chosen: Tensor
    taken: Tensor
    patience: int | None
    released: bool

    @classmethod
    def start(cls, params: Tree, like: Tensor, patience: int | None, variant: str) -> _Search:
        zero, most = torch.zeros_like(like), torch.full_like(like, torch.inf)
        live = torch.ones_like(like, dtype=torch.bool)
        return cls(params, params, most, zero, live, zero, zero, patience, variant == "released")

    def judged(self, step: int, now: Tree) -> _Search:
        """With the model after `step` steps compared to the best so far."""
        here = torch.full_like(self.taken, float(step))
        taken = torch.where(self.live, here, self.taken)
        if self.patience is None:
            return replace(self, best=self.params, chosen=here, taken=taken)
        if step == 0 and not self.released:
            return self
        value = self.stale * now["surprise"] if self.released else now["entropy"]
        better = self.live & (value < self.least)
        stale = torch.where(better, torch.zeros_like(self.stale), self.stale + 1)
        return replace(
            self,
            best=tree.where(better, self.params, self.best),
            chosen=torch.where(better, here, self.chosen),
            least=torch.where(better, value, self.least),
            live=self.live & (stale < self.patience),
            stale=stale,
            taken=taken,
        )

    def moved(self, params: Tree) -> _Search:
        """One step further, where adaptation has not ended."""
        return replace(self, params=params if self.patience is None else tree.where(self.live, params, self.params))
