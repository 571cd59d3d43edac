"""ODPFL-HN's test half. Amosy, Eyal & Chechik, 'Late to the party?', 2021: a model made for a newcomer's samples.

The encoder describes the whole unlabelled set, and the hypernetwork makes the model that answers. Nothing is trained.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from torch import Tensor

from ..core import Adapter, Predict, Task, Tree, rng
from ..ops import hyper
from ..ops.params import with_params


@dataclass(frozen=True)
class ODPFL(Adapter):
    """Answers with the model that the hypernetwork makes of the unlabelled set (Amosy et al., 2021)."""

    transductive: ClassVar[bool] = True
    requires: ClassVar[tuple[str, ...]] = ("encoder", "hyper")
    made_by: ClassVar[str] = "method=odpfl"

    def init(self, task: Task, model: Tree) -> Tree:
        return {"params": model["vars"]["params"]}

    def prepare(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, real: Tensor, key: rng.Key
    ) -> Tree:
        return {"params": hyper.model(model, task, x, real)}

    def step(
        self, task: Task, predict: Predict, model: Tree, state: Tree, x: Tensor, key: rng.Key
    ) -> tuple[Tensor, Tree]:
        return predict(with_params(model, state["params"]), x).logits, state

    @property
    def batch_free(self) -> bool:
        return True
