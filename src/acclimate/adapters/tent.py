"""Tent. Wang et al., ICLR 2021: entropy minimisation over the normalisation layers' affine parameters (Eq. 1, Sec. 3).

As published, batch statistics come from the test batch, and a batch is answered with the logits computed before its
own last update. The released code collects BatchNorm2d only; here group and layer norm count too, and `params="all"`
tunes every parameter of models that have no normalisation at all (as FedTTA's comparison does).

DELTA (Zhao, Chen & Xia, ICLR 2023) is two options, both off in Tent:

- `renorm`, its test-time batch renormalisation: batch norm gives what moving statistics of the stream give, with the
  gradient of the batch's own. Standard deviations are averaged, nothing is clipped. They start at the first batch's,
  or with `start="model"` at the training ones (our own: a first batch of one class is a bad place to start).
- `balance`, its dynamic online re-weighting: a sample counts by 1 / the moving frequency of the class that it is
  answered with, the weights of a batch having mean one. The frequencies start equal, or with `prior="client"` at those
  of the client's training data (our own; the personaliser ClassPrior notes them).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import ClassVar, Literal

from torch import Tensor

from ..core import Adam, Adapter, Mode, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import grad
from ..ops import requirements
from ..ops.losses import entropy
from ..ops.params import with_params
from ..ops.priors import PriorKind, class_prior, prior_refusal
from ..ops.self_training import rarity
from ..ops.statistics import Renorm, moving, running_of, with_buffers
from ..ops.unlabelled import descend, tuned_of


@dataclass(frozen=True)
class Tent(Adapter):
    """Minimises the entropy of its predictions, batch after batch (Wang et al., ICLR 2021)."""

    params: Literal["norm", "all"] = "norm"
    opt: Optimizer = Adam(lr=1e-3)
    steps: int = 1
    renorm: float | None = check.later(None)
    """Weight of the past in DELTA's moving statistics, 0.95 there; None: the batch's own statistics."""
    start: Literal["batch", "model"] = check.later("batch")
    """Where the statistics of `renorm` start."""
    balance: float | None = check.later(None)
    """Weight of the past in DELTA's moving class frequencies, 0.95 there; None: every sample counts as one."""
    prior: PriorKind = check.later("uniform")
    """Where the frequencies of `balance` start."""

    traces: ClassVar[Mapping[str, str]] = {"entropy": "entropy of its answer, nats"}

    def __post_init__(self) -> None:
        check.steady(self, "opt")
        check.choices(self)
        check.at_least(self, "steps", 1)
        for name in ("renorm", "balance"):
            if getattr(self, name) is not None:
                check.within(self, name, 0.0, 1.0)
        for name, given, of in (("prior", "uniform", "balance"), ("start", "batch", "renorm")):
            if getattr(self, name) != given and getattr(self, of) is None:
                raise check.FieldError(f"Tent: {name}={getattr(self, name)!r} needs {of}, such as 0.95", name, of)

    def refusal(self, task: Task, model: Tree) -> str | None:
        missing = requirements.norm_layers(task, "Tent") if self.params == "norm" else None
        if not missing and self.renorm is not None and (absent := requirements.batch_norm(task, "Tent with renorm")):
            missing = f"{absent}, or set renorm=None"
        return missing or prior_refusal(task, model, self.prior, "Tent") or super().refusal(task, model)

    def init(self, task: Task, model: Tree) -> Tree:
        tuned = tuned_of(task, model, self.params)
        state: Tree = {"params": tuned, "opt": self.opt.init(tuned)}
        if self.renorm is not None:
            state["buffers"] = moving(task, model["vars"]["buffers"], self.start == "batch")
        if self.balance is not None:
            state["frequency"] = class_prior(task, model, self.prior)
        return state

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        if self.renorm is None and self.balance is None:
            return descend(predict, model, state, x, self.opt.update, self.steps)
        for _ in range(self.steps):
            logits, state = self._delta(task, predict, model, state, x)
        return logits, state

    def _delta(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor) -> tuple[Tensor, Tree]:
        """One step of DELTA: what moves along with the parameters is used as the batches before left it."""
        mode: Mode = "still" if self.renorm is None else Renorm(self.renorm)
        seen = with_buffers(model, state.get("buffers", {}))

        def loss(tuned: Tree) -> tuple[Tensor, tuple[Tensor, Tree]]:
            out = predict(with_params(seen, tuned), x, mode)
            each = entropy(out.logits)
            if self.balance is not None:
                each = each * rarity(out.logits.detach(), state["frequency"])
            return each.mean(), (out.logits, running_of(task, out.buffers))

        grads, (logits, running) = grad(loss, has_aux=True)(state["params"])
        tuned, opt = self.opt.update(grads, state["opt"], state["params"])
        new = {**state, "params": tuned, "opt": opt}
        if self.renorm is not None:
            new["buffers"] = running
        if self.balance is not None:
            now = logits.softmax(-1).mean(0)
            new["frequency"] = self.balance * state["frequency"] + (1.0 - self.balance) * now
        return logits, new

    def answer(self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key) -> Tensor:
        if self.steps > 1 or self.renorm is not None:
            return super().answer(task, predict, model, state, x, key)
        return predict(with_params(model, state["params"]), x, "still").logits  # they are from before the update

    def trace(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree, Tree]:
        logits, new = self.step(task, predict, model, state, x, key)
        return logits, new, {"entropy": entropy(logits)}
