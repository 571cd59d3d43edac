"""RoTTA. Yuan et al., CVPR 2023: for streams in which classes come in waves and the images change.

- Robust batch norm: running statistics go slowly to those of the memory, and these normalise.
- A memory with room for all classes (Algorithm 1), in which old and uncertain samples make way (`ops/memories.py`).
- Every `every` samples one step: the student sees augmented samples of the memory, the teacher plain ones; their
  cross-entropy counts by exp(-a) / (1 + exp(-a)), a being a sample's age by the capacity. The norm layers'
  affine parameters are tuned; the teacher follows slowly.

The teacher answers with its running statistics, before the update: a batch's own statistics touch no answer. Arrivals
are counted in parts of at most `every`, so a step may come a few samples late where batches do not divide it. Empty
places of the memory count nowhere. `prior="client"` is our own: a class may have its share of the client's training
data in the place of 1 / classes; a class's fill is judged by that share as well.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.gradient import grad
from ..ops import memories, requirements
from ..ops.losses import entropy
from ..ops.memory_norms import RobustNorm
from ..ops.params import with_vars
from ..ops.priors import PriorKind, class_prior, prior_refusal
from ..ops.strong_views import StrongViews
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class RoTTA(Adapter):
    """A slow teacher that learns from a balanced memory of recent samples (Yuan et al., CVPR 2023)."""

    capacity: int = 64
    """Samples in the memory, at least as many as there are classes."""
    every: int = 64
    """Samples that arrive between two steps."""
    opt: Optimizer = Adam(lr=1e-3)
    rate: float = 0.05
    """How far running statistics go to the memory's in one step (alpha)."""
    ema: float = 0.999
    """Weight of the teacher's past (1 - nu)."""
    timeliness: float = 1.0
    uncertainty: float = 1.0
    """Weights of age and entropy in the score by which samples make way."""
    prior: PriorKind = "uniform"
    """Which share of the memory a class may have."""
    augment: StrongViews = StrongViews()

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        memories.check_places(self)
        for name in ("rate", "ema"):
            check.within(self, name, 0.0, 1.0)
        for name in ("timeliness", "uncertainty"):
            check.at_least(self, name, 0.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        return (
            requirements.pixels(task, "RoTTA", "augment")
            or requirements.tunable_norm(task, "RoTTA")
            or memories.too_small(task, self.capacity, "RoTTA")
            or prior_refusal(task, model, self.prior, "RoTTA")
            or super().refusal(task, model)
        )

    def init(self, task: Task, model: Tree) -> Tree:
        tuned, buffers = tuned_of(task, model, "norm"), model["vars"]["buffers"]
        return {
            "params": tuned,
            "opt": self.opt.init(tuned),
            "buffers": buffers,
            "teacher": {"params": tuned, "buffers": buffers},
            "memory": memories.empty(task, model, self.capacity, "age", "entropy"),
            "arrived": torch.zeros((), dtype=torch.int64, device=model["vars"]["params"][task.head_weight].device),
        }

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        logits = predict(with_vars(model, **state["teacher"]), x).logits
        label, uncertain = logits.argmax(-1), entropy(logits)
        share = class_prior(task, model, self.prior)
        for at in range(0, len(x), self.every):
            part = slice(at, min(at + self.every, len(x)))
            memory = self.remembered(state["memory"], x[part], label[part], uncertain[part], share)
            learnt = self.learnt(predict, model, state, memory, rng.fold(key, "views", at))
            now = memories.due(state["arrived"], part.stop - at, self.every)
            kept = tree.where(now, learnt, tree.pick(state, learnt))
            state = {**kept, "memory": memory, "arrived": state["arrived"] + (part.stop - at)}
        return logits, state

    def remembered(self, memory: Tree, x: Tensor, label: Tensor, uncertain: Tensor, share: Tensor) -> Tree:
        """The memory after some samples, of which the teacher has given classes and entropies."""
        return memories.add_timely(memory, x, label, uncertain, share, self.timeliness, self.uncertainty)

    def learnt(self, predict: Predict, model: Tree, state: Tree, memory: Tree, key: rng.Key) -> Tree:
        """The state after one step on the memory."""
        held, way = memory["held"], RobustNorm(self.rate, memory["held"])
        taught = predict(with_vars(model, **state["teacher"]), memory["x"], way)
        soft, views = taught.logits.softmax(-1), self.augment.views(memory["x"], key)
        weight = held * torch.sigmoid(-memory["age"] / self.capacity)

        def loss(tuned: Tree) -> tuple[Tensor, Tree]:
            out = predict(with_vars(model, tuned, state["buffers"]), views, way)
            each = -(soft * out.logits.log_softmax(-1)).sum(-1)
            return (weight * each).sum() / held.sum().clamp_min(1.0), out.buffers

        grads, buffers = grad(loss, has_aux=True)(state["params"])
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        followed = tree.map(lambda t, s: self.ema * t + (1.0 - self.ema) * s, state["teacher"]["params"], tuned)
        teacher = {"params": followed, "buffers": taught.buffers}
        return {"params": tuned, "opt": opt, "buffers": buffers, "teacher": teacher}
