"""FedTTA's test half, and FedTTA++. Ye et al., 'UPFL', 2023, Eq. 10-12, Sec. 3.3.2 and Algorithm 1.

The whole unlabelled set is seen once, before the first answer. The model takes `steps` gradient steps on the loss that
the adaptation net gives of it, at the rate that training's inner step had in the last round; then it answers and
changes no more. Gradients are bounded by 10, as released; the paper has no bound (`clip=None`).

- FedTTA: `steps=1`. Without `patience`, the model after the last step answers; `record` tells of those before it.
- FedTTA++: `steps=50, patience=5`. Of the models after each step, the one whose predictions have the least mean entropy
  answers; adaptation ends after `patience` steps in a row without a new least.

The loss is a norm over samples, so it grows with the root of their number. Training's inner step sees batches, and
the paper describes a client's whole data as one (footnote 2): with `norm="batch"` the norm is that of one training
batch with the set's mean square, so that a newcomer's step has training's length however much data it holds.
`norm="set"` is Eq. 11 to the letter. Both are blind to the order of samples; the released code's mean over mini-batches
is not. `variant="released"` judges models as the authors' code does: see `fedtta_search`.

Batch norm takes the statistics of what it is shown, as in training's inner step. Where clients of different sizes are
padded to one, repeated samples count neither in these statistics nor in the loss and the entropy.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, check, local, rng, tree
from ..core.gradient import grad
from ..core.loops import Time, repeat
from ..ops.learned import learned_loss, scores
from ..ops.losses import entropy
from ..ops.memory_norms import CountedNorm
from ..ops.params import with_params
from .fedtta_search import ReleasedStepSearch, StepSearch


@dataclass(frozen=True)
class FedTTA(Adapter):
    """Adapts the model on a whole unlabelled set, under a loss that was learned for it (Ye et al., 2023)."""

    steps: int = 1
    """The largest number of steps, the paper's E."""
    patience: int | None = None
    """How many steps without a new least mean entropy end adaptation, which keeps the least; None keeps the last."""
    lr: float | None = None
    """The rate of a step; None takes that of training's last inner step."""
    norm: Literal["batch", "set"] = "batch"
    """The norm is taken over as many samples as a training batch has, or over those of the set."""
    clip: float | None = 10.0
    """The norm to which gradients are scaled down, as released; None leaves them as they are."""
    variant: Literal["paper", "released"] = "paper"
    transductive: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("net", "inner")
    made_by: ClassVar[str] = "method=fedtta"
    traces: ClassVar[Mapping[str, str]] = {
        "entropy": "entropy of its answer, nats",
        "learned_loss": "size of the adaptation net's output",
        "chosen_step": "step whose model answers",
    }

    def __post_init__(self) -> None:
        check.at_least(self, "steps", 1)
        for name, least in (("patience", 1), ("lr", 0.0)):
            if getattr(self, name) is not None:
                check.at_least(self, name, least)
        if self.clip is not None:
            check.positive(self, "clip")
        check.choices(self)

    def init(self, task: Task, model: Tree) -> Tree:
        zero = torch.zeros_like(model["inner"]["lr"])
        curve = torch.zeros(self.steps + (self.patience is not None), dtype=zero.dtype, device=zero.device)
        record = {"entropy": curve, "learned_loss": curve, "chosen_step": zero, "steps_taken": zero}
        return {"params": model["vars"]["params"], "record": record}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        rate = model["inner"]["lr"] if self.lr is None else self.lr
        form = ReleasedStepSearch if self.variant == "released" else StepSearch
        counts = real.to(model["inner"]["lr"].dtype)

        def look(params: Tree) -> tuple[Tensor, Tree]:
            logits = predict(with_params(model, params), x, CountedNorm(counts)).logits
            loss = learned_loss(model["net"], logits, real, model["inner"]["batch"] if self.norm == "batch" else None)
            return loss, {"learned_loss": loss, **form.measured(logits, real)}

        def further(t: Time, state: Tree) -> tuple[Tree, Tree]:
            search = form(**state, patience=self.patience)
            gradient, now = grad(look, has_aux=True)(search.params)
            if self.clip is not None:
                gradient = local.clip(gradient, self.clip)
            return search.judged(t, now).moved(tree.add(search.params, gradient, -rate)).state(), now

        begun, first = further(0, form.start(state["params"], model["inner"]["lr"], self.patience).state())
        ended, seen = repeat(lambda t, s: further(t + 1, s), begun, self.steps - 1, x)
        search = form(**ended, patience=self.patience)
        # without patience the last model answers whatever it is worth: nobody looks at the set once more
        last = {} if self.patience is None else look(search.params)[1]
        search = search.judged(self.steps, last)
        parts = [tree.map(lambda v: v[None], first), seen, tree.map(lambda v: v[None], last)]
        curves = {n: search.curve(torch.cat([p[n] for p in parts if n in p])) for n in ("entropy", "learned_loss")}
        return {"params": search.best, "record": {**curves, "chosen_step": search.chosen, "steps_taken": search.taken}}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(with_params(model, state["params"]), x, "still").logits, state

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        uncertain, poor = entropy(logits), scores(model["net"], logits).abs()
        chosen = state["record"]["chosen_step"].expand_as(uncertain)
        return logits, new, {"entropy": uncertain, "learned_loss": poor, "chosen_step": chosen}
