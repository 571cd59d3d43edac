"""FedATP: the training of ATP. Bao et al., NeurIPS 2023, Algorithm 1: which tensors should adapt, and how fast?

- The model is trained as in FedAvg, on all but one in `parts` of a client's examples. A rate per parameter tensor and
  per batch-norm statistic is learned, from zero, on those left out. With `pretrain`, the model is trained in so many
  rounds, and the rates in those after them, with the model as it is then; without, every round does both.
- On a labelled batch: the unsupervised step that the adapter ATP would take with the present rates; the gradient of
  cross-entropy at the adapted model; each rate rises by `rate_lr` times the inner product of the two gradients, over
  the square root of the tensor's size: a descent step on the loss after adaptation.
- The server averages rates, every client counting as one.

Differs from the released code: deeper layers' batch statistics are those under batch normalisation of the layers before
them (there: under running statistics), and model and rates are learned in one run of rounds (there: in two, the second
as long as 200 to 400 rounds). The paper takes a trained model; how long a run is, a method does not know, so that any
number of rounds for `pretrain` would be too few or too many of some run's.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Mean, Method, Mode, Optimizer, Out, Predict, Rules, Sum, Task, Tree, Work, check, rng, tree
from ..core.local import batch_of, clip, train
from ..core.loops import Time, at, repeat
from ..ops.atp import directions, moved, slopes
from ..ops.masks import held_out


@dataclass(frozen=True)
class FedATP(Method):
    """FedAvg, then adaptation rates per tensor learned across clients, for the adapter ATP (Bao et al., 2023)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    pretrain: int | None = None
    """Rounds that train the model; the later ones learn the rates. None: every round does both."""
    rate_lr: float = 0.1
    rate_work: Work = Work(epochs=1)
    """How much the rates are trained; `clip` bounds the step of all rates together, before `rate_lr`."""
    parts: int = 5
    """One in so many of a client's examples is kept for the rates."""

    downlink = ("vars", "rates")
    trains_for = ("atp",)
    uplink: ClassVar[Rules] = {"delta": Mean("n"), "n": Sum(), "rates": Mean()}

    def __post_init__(self) -> None:
        if self.pretrain is not None:
            check.at_least(self, "pretrain", 0)
        check.positive(self, "rate_lr")
        check.at_least(self, "parts", 2)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        return {"vars": vars, "rates": tree.map(lambda v: v.new_zeros(()), vars)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        fitted, judged = held_out(data, self.parts)
        w = train(task.loss, down["vars"], fitted, self.opt, self.work, rng.fold(key, "model"))
        rates = self.learned(task, down["vars"], down["rates"], judged, rng.fold(key, "rates"))
        up = {"delta": tree.sub(w, down["vars"]), "rates": tree.sub(rates, down["rates"]), "n": data["n"]}
        if self.pretrain is not None:
            early = data["round"] < self.pretrain
            up["delta"] = tree.where(early, up["delta"], tree.zeros(up["delta"]))
            up["rates"] = tree.where(early, tree.zeros(up["rates"]), up["rates"])
        return up, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return tree.add(server, {"vars": total["delta"], "rates": total["rates"]})

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": down["vars"], "rates": down["rates"]}

    def learned(self, task: Task, vars: Tree, rates: Tree, data: Tree, key: rng.Key) -> Tree:
        """The rates after a pass over labelled batches, each from the same model."""

        def predict(model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
            return self.predict(task, model, x, mode, key)

        positions, active = self.rate_work.plan(data, key)

        def step(t: Time, rates: Tree) -> tuple[Tree, Tree]:
            risen = self._risen(task, predict, vars, rates, batch_of(data, at(positions, t)))
            return tree.where(at(active, t), risen, rates), {}

        return repeat(step, rates, positions.shape[0], active)[0]

    def _risen(self, task: Task, predict: Predict, vars: Tree, rates: Tree, batch: Tree) -> Tree:
        way = directions(predict, {"vars": vars}, batch["x"], task.norm_momentum)

        def loss(vars: Tree) -> Tensor:
            return F.cross_entropy(predict({"vars": vars}, batch["x"]).logits, batch["y"])

        slope = slopes(loss, moved(vars, rates, way), task.norm_eps)
        uphill = tree.map(lambda s, d: (s * d).sum() / max(d.numel(), 1) ** 0.5, slope, way)
        bound = self.rate_work.clip
        risen: Tree = tree.add(rates, uphill if bound is None else clip(uphill, bound), self.rate_lr)
        return risen
