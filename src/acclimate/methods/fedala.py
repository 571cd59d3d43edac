"""FedALA, adaptive local aggregation. Zhang et al., AAAI 2023, Eq. 2-5 and Algorithm 1.

- At receipt, the body is the received one. The head is w = w_old + (w_received - w_old) * A, element by element, with
  the client's own head w_old of the round before, and with A in [0, 1], private and one at the start.
- A is trained first, on a random share of the client's examples: A <- clip(A - rate * grad_w L * (w_received - w_old)),
  which is gradient descent on the loss by A. Then the whole model is trained from there and averaged as in FedAvg.
- When the last model has arrived, the client mixes once more, and goes live with that.

The paper mixes the top p layers; p is 1 here, its own choice. The body being fixed, its features are computed once,
with running batch statistics and without augmentation. In the paper A is trained until its loss settles when a client
does so for the first time, and for one pass later; here for `mix_work` always, so that a round can be recorded.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Scalar, Task, Tree, Weighted, Work, check, rng, train, tree
from ..ops.nets import features_of, head_of, linear, on_features, with_head


@dataclass(frozen=True)
class FedALA(Weighted):
    """FedAvg whose clients learn how much of the received head they take over (Zhang et al., AAAI 2023)."""

    mix_lr: float = 1.0
    """The rate of the mixing weights: the paper's eta."""
    mix_work: Work = Work(epochs=1)
    """How much the mixing weights are trained in a round."""
    share: float = 0.8
    """The share of a client's examples that they are trained on: the paper's s."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.positive(self, "mix_lr")
        check.within(self, "share", 0.0, 1.0)
        check.choices(self)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        head = head_of(task, task.init(key))
        return {"head": head, "mix": tree.map(torch.ones_like, head), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        mine = self.finish_personal(task, down, mine, data, rng.fold(key, "mix"))
        w = train(task.loss, with_head(task, down["vars"], mine["head"]), data, self.opt, self.work, key)
        up = {"delta": tree.sub(w, down["vars"]), "n": data["n"]}
        return up, {**mine, "head": head_of(task, w), "seen": torch.ones_like(mine["seen"])}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        received = head_of(task, down["vars"])
        old = tree.where(mine["seen"] > 0, mine["head"], received)

        def loss(mix: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            head = tree.map(torch.lerp, old, received, mix["params"])
            return F.cross_entropy(linear(head, batch["x"]), batch["y"]), {}

        some = self.sampled(on_features(data, features_of(task, down["vars"], data)), rng.fold(key, "share"))
        start = {"params": mine["mix"], "buffers": {}}
        mix = train(loss, start, some, _Bounded(lr=self.mix_lr), self.mix_work, key)["params"]
        return {**mine, "head": tree.map(torch.lerp, old, received, mix), "mix": mix}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        head = tree.where(mine["seen"] > 0, mine["head"], head_of(task, down["vars"]))
        return {"vars": with_head(task, down["vars"], head)}

    def sampled(self, data: Tree, key: rng.Key) -> Tree:
        """A random share of the client's examples, at least one."""
        order = rng.order(key, data["rows"].shape[-1], data["n"])
        whole = torch.ceil(data["n"].double() * self.share - 1e-9)  # 0.6 * 25 must be 15 in floating point too
        few = whole.to(data["n"].dtype).clamp_min(1)
        # fewer rows than the table has room for: the steps beyond them must be undone
        return {**data, "rows": order, "n": few, "ragged": torch.ones_like(data["round"], dtype=torch.bool)}


@dataclass(frozen=True)
class _Bounded(SGD):
    """Gradient descent on numbers that stay between 0 and 1."""

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        new, state = super().update(grads, state, params, scale)
        return tree.map(lambda p: p.clamp(0.0, 1.0), new), state
