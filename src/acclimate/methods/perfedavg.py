"""Per-FedAvg. Fallah et al., NeurIPS 2020, Algorithm 1: train the model from which one gradient step personalises best.

- Local step: w~ = w - alpha g(w, D), then w <- w - beta (I - alpha H(w, D'')) g(w~, D'), where g and H are
  gradient and Hessian of the client's loss on a batch. A step draws 3 x `work.batch` examples and cuts them into the
  batches D, D' and D'', which are disjoint where the client holds that many; beta is the learning rate of `opt`.
- The server averages the clients' models, every client counting as one.
- `finish_personal` personalises the last model by `steps` inner steps; a client without
  labelled data deploys it as it is.

`order="second"` takes the product of Hessian and gradient exactly, by differentiating through the inner step; the paper
estimates it by a difference of gradients (HF). `order="first"` leaves the Hessian out (FO), and D'' with it. Batch
statistics are those that D' gives the model after the inner step, so that with alpha=0 this is FedAvg on batches D'.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import ClassVar, Literal

from torch import Tensor

from ..core import SGD, Loss, Mean, Method, Optimizer, Rules, Task, Tree, Work, check, rng, train, tree
from ..core.gradient import grad


@dataclass(frozen=True)
class PerFedAvg(Method):
    """A model that is one gradient step away from every client's own (Fallah et al., NeurIPS 2020)."""

    alpha: float = 0.01
    """The rate of the inner step."""
    order: Literal["first", "second"] = "second"
    """Whether the Hessian of the inner step counts."""
    opt: Optimizer = SGD(lr=0.05)
    """The optimiser of the outer step: its rate is the paper's beta."""
    work: Work = Work()
    """How many outer steps there are; `batch` is the size of each of D, D' and D''."""
    steps: int = 1
    """Inner steps that personalise the model before it goes live."""

    uplink: ClassVar[Rules] = {"delta": Mean()}

    def __post_init__(self) -> None:
        check.at_least(self, "alpha", 0.0)
        check.choices(self)
        check.at_least(self, "steps", 0)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        batches = 3 if self.order == "second" else 2
        work = replace(self.work, batch=batches * self.work.batch)
        w = train(self.objective(task.loss), down["vars"], data, self.opt, work, key)
        return {"delta": tree.sub(w, down["vars"])}, mine

    def objective(self, loss: Loss) -> Loss:
        """A loss on the three batches in one (first order: two), whose gradient is Algorithm 1's outer step."""

        def outer(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            inner, judged, *curved = _cut(batch, self.work.batch)
            value = self._stepped(loss, vars, inner, rng.fold(key, "inner"))
            slope = vars["params"]  # the identity, as a function of the parameters
            if self.order == "second":  # I - alpha H(w, D'')
                slope = self._stepped(loss, vars, curved[0], rng.fold(key, "hessian"))
            params = tree.map(lambda v, s: v.detach() + (s - s.detach()), value, slope)
            return loss({**vars, "params": params}, judged, rng.fold(key, "outer"))

        return outer

    def _stepped(self, loss: Loss, vars: Tree, batch: Tree, key: rng.Key) -> Tree:
        """The parameters after one inner step on a batch."""

        def plain(params: Tree) -> tuple[Tensor, Tree]:
            return loss({**vars, "params": params}, batch, key)

        gradient, _ = grad(plain, has_aux=True)(vars["params"])
        stepped: Tree = tree.add(vars["params"], gradient, -self.alpha)
        return stepped

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        if not (self.steps and self.alpha):
            return mine
        work = replace(self.work, iterations=self.steps)
        return {"vars": train(task.loss, down["vars"], data, SGD(lr=self.alpha), work, key)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine.get("vars", down["vars"])}


def _cut(batch: Tree, size: int) -> list[Tree]:
    """A batch as consecutive ones of this size."""
    return [dict(zip(batch, part, strict=True)) for part in zip(*(v.split(size) for v in batch.values()), strict=True)]
