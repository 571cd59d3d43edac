"""NOTE. Gong et al., NeurIPS 2022: test streams in which samples that follow each other are alike.

The model is trained with instance-aware batch norm (`norm="iabn"`, `core/nn/iabn.py`), so that a sample is answered by
itself. A memory is a reservoir in which predicted classes balance (Algorithm 1, `ops/memories.py`). Every `every`
samples one step goes down the mean entropy of the samples that it holds, over the norm layers' affine parameters; in
the same pass the memory's statistics, with the correction for every sample, normalise, and the running ones follow them
by `rate`.

Samples are answered with running statistics, before the step. Arrivals are counted in parts of at most `every`, so a
step may come a few samples late where batches do not divide it. Empty places of the memory count nowhere. The published
code divides the entropy by the number of classes, which Adam does not notice. `prior="client"` is our own: classes
balance around their shares of the client's training data.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Adam, Adapter, Optimizer, Predict, Task, Tree, check, rng, tree
from ..core.gradient import grad
from ..ops import memories
from ..ops.losses import entropy
from ..ops.masks import mean_of
from ..ops.memory_norms import MemoryNorm
from ..ops.params import with_vars
from ..ops.priors import PriorKind, class_prior, prior_refusal
from ..ops.unlabelled import tuned_of


@dataclass(frozen=True)
class NOTE(Adapter):
    """Lowers the entropy of a balanced reservoir of test samples, and follows its statistics (Gong et al., 2022)."""

    capacity: int = 64
    """Samples in the memory, at least as many as there are classes."""
    every: int = 64
    """Samples that arrive between two updates."""
    opt: Optimizer = Adam(lr=1e-4)
    steps: int = 1
    """Steps of an update, each on the whole memory."""
    rate: float = 0.01
    """How far running statistics go to the memory's in one step."""
    prior: PriorKind = "uniform"
    """Around which shares the memory's classes balance."""

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        memories.check_places(self)
        check.whole(self, "steps", 1)
        check.within(self, "rate", 0.0, 1.0)

    def refusal(self, task: Task, model: Tree) -> str | None:
        if not task.has_iabn:
            return "NOTE needs instance-aware batch norm, and this model has none; train it with norm='iabn'"
        return (
            memories.too_small(task, self.capacity, "NOTE")
            or prior_refusal(task, model, self.prior, "NOTE")
            or super().refusal(task, model)
        )

    def init(self, task: Task, model: Tree) -> Tree:
        tuned, head = tuned_of(task, model, "norm"), model["vars"]["params"][task.head_weight]
        seen = {"seen": head.new_zeros(task.num_classes)}
        return {
            "params": tuned,
            "opt": self.opt.init(tuned),
            "buffers": model["vars"]["buffers"],
            "memory": {**memories.empty(task, model, self.capacity), **seen},
            "arrived": torch.zeros((), dtype=torch.int64, device=head.device),
        }

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        logits = predict(with_vars(model, state["params"], state["buffers"]), x).logits
        label, share = logits.argmax(-1), class_prior(task, model, self.prior)
        for at in range(0, len(x), self.every):
            part = slice(at, min(at + self.every, len(x)))
            memory = memories.add_balanced(state["memory"], x[part], label[part], share, rng.advance(key, at))
            learnt = tree.pick(state, frozenset(("params", "opt", "buffers")))
            for _ in range(self.steps):
                learnt = self._learnt(predict, model, learnt, memory)
            now = memories.due(state["arrived"], part.stop - at, self.every)
            kept = tree.where(now, learnt, tree.pick(state, learnt))
            state = {**kept, "memory": memory, "arrived": state["arrived"] + (part.stop - at)}
        return logits, state

    def _learnt(self, predict: Predict, model: Tree, state: Tree, memory: Tree) -> Tree:
        """Parameters, optimiser and statistics after one step on the memory."""
        way = MemoryNorm(self.rate, memory["held"])

        def loss(tuned: Tree) -> tuple[Tensor, Tree]:
            out = predict(with_vars(model, tuned, state["buffers"]), memory["x"], way)
            return mean_of(entropy(out.logits), memory["held"]), out.buffers

        grads, buffers = grad(loss, has_aux=True)(state["params"])
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        return {"params": tuned, "opt": opt, "buffers": buffers}
