"""FedAS. Yang, Huang & Ye, 'Bridging Inconsistency in Personalized Federated Learning', CVPR 2024.

A shared body and private heads, as in FedPer, and

- at receipt, the received body is trained for a little (`align_work`) so that the class means of its features in a
  batch are those of the client's own model of the round before, by mean squared difference; not in its first round;
- at the server, clients count by the trace of their Fisher information: here the mean squared norm of the gradients of
  batches, in one pass over the client's examples at the trained model. The client goes live with that model.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Limits, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Within, Work, rng, train, tree
from ..ops.losses import fisher_trace
from ..ops.params import merge, private, shared
from ..ops.prototypes import class_means, own_prototypes


@dataclass(frozen=True)
class FedAS(Method):
    """FedPer that aligns the received body with the client's last and weighs by Fisher (Yang et al., CVPR 2024)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    align_opt: Optimizer = SGD(lr=0.01)
    align_work: Work = Work(epochs=1)
    """How much the received body is trained towards the client's own class means."""

    uplink: ClassVar[Rules] = {"delta": Mean("fisher"), "fisher": Sum()}
    limits: ClassVar[Limits] = {"fisher": Within(0.0)}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), task.head)}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        start = self.aligned(task, down, mine, data, rng.fold(key, "align"))
        w = train(task.loss, start, data, self.opt, self.work, key)
        fisher = fisher_trace(task, w, data, self.work, rng.fold(key, "fisher"))
        up = {"delta": tree.sub(shared(w, task.head), down["vars"]), "fisher": fisher}
        return up, {"vars": w, "seen": torch.ones_like(mine["seen"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": tree.where(mine["seen"] > 0, mine["vars"], _whole(task, down, mine))}

    def aligned(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        """The received body with the private head, moved towards the features of the client's last model."""
        received, (own, _) = _whole(task, down, mine), own_prototypes(task, mine["vars"], data)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out, y = task.apply(vars, batch["x"], "train", key), batch["y"]
            means, counts = class_means(out.features, y, torch.full_like(data["n"], y.shape[-1]), task.num_classes)
            here = (counts > 0).to(means.dtype)
            return ((means - own).square().mean(-1) * here).sum() / here.sum(), out.buffers

        new = train(loss, received, data, self.align_opt, self.align_work, key, only=task.body)
        moved: Tree = tree.where(mine["seen"] > 0, new, received)
        return moved


def _whole(task: Task, down: Tree, mine: Tree) -> Tree:
    return merge(down["vars"], private(mine["vars"], task.head))
