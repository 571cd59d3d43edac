"""Adapters that only the papers' tables need: TENT with one step on a whole set, and heads mixed with one weight."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, check, rng
from ..core.gradient import grad
from ..experiment.names import allow
from ..ops.losses import entropy
from ..ops.masks import mean_of
from ..ops.nets import linear
from ..ops.params import with_params


@dataclass(frozen=True)
class TentOnce(Adapter):
    """TENT as FedTTA is compared with it: one step of all parameters down the mean entropy of the whole set.

    Every sample counts once. `tent-all` with a batch of the longest client's length would be the same for clients of
    one size; a shorter client's batch wraps around, and its first samples would count twice. Batch norm takes the
    statistics of what it is shown, repeated samples included, as in `adapters.FedTTA`.
    """

    opt: Optimizer = SGD(lr=0.1)

    transductive: ClassVar[bool] = True

    def init(self, task: Task, model: Tree) -> Tree:
        return {"params": model["vars"]["params"]}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        def uncertain(params: Tree) -> Tensor:
            return mean_of(entropy(predict(with_params(model, params), x, "adapt").logits), real)

        params = state["params"]
        return {"params": self.opt.update(grad(uncertain)(params), self.opt.init(params), params)[0]}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(with_params(model, state["params"]), x, "adapt").logits, state


@dataclass(frozen=True)
class FixedHeads(Adapter):
    """Mixes a global and a personal head with the same weight for every client and sample; adapts nothing.

    FedTHE is compared with it in its Figure 14.
    """

    e: float = 0.5
    """Weight of the global head."""

    requires: ClassVar[tuple[str, ...]] = ("head",)

    def __post_init__(self) -> None:
        check.within(self, "e", 0.0, 1.0)

    @property
    def batch_free(self) -> bool:
        return True

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        out = predict(model, x)
        return self.e * out.logits + (1 - self.e) * linear(model["head"], out.features), state


allow(TentOnce, FixedHeads)
