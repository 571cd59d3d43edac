"""TENT as FedTTA is compared with it: one step on a client's whole unlabelled set, and then the answers."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor
from torch.func import grad

from ..core import SGD, Adapter, Optimizer, Predict, Task, Tree, rng
from ..experiment.names import allow
from ..ops.losses import entropy
from ..ops.masks import mean_of
from ..ops.params import with_params


@dataclass(frozen=True)
class TentOnce(Adapter):
    """One step of all parameters down the mean entropy of the whole set, every sample counting once.

    `tent-all` with a batch of the longest client's length would be the same for clients of one size; a shorter client's
    batch wraps around, and its first samples would count twice. Batch norm takes the statistics of what it is shown,
    repeated samples included, as in `adapters.FedTTA`.
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


allow(TentOnce)
