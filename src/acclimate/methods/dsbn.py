"""DSBN, domain-specific batch normalisation. Chang et al., CVPR 2019, in a federation: a client is a domain.

Every client has a branch of its own in all normalisation layers, affine parameters and statistics: private, never sent.
All other layers are shared and averaged by examples. So far this is FedBN; the difference is who comes later.

A newcomer opens a branch: affine parameters as they were before training (1 and 0, or those of a checkpoint), and the
statistics of the batch it asks about, since it has no others. A client that has trained answers with its own
statistics, also on a domain that it has not seen: there, add the adapter `bn` or `tent`. FedSPL counts DSBN among the
methods that adapt at test time and cites Jiang et al., ECCV 2022, for it, without saying how it was run.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import rng, tree
from ..core.local import Work, train
from ..core.method import Method
from ..core.optim import SGD, Optimizer
from ..core.task import Mode, Out, Task
from ..core.tree import Tree
from ..ops.private import merge, private, shared


@dataclass(frozen=True)
class DSBN(Method):
    """FedAvg with a branch of every normalisation layer per client, and batch statistics for newcomers."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": shared(task.init(key), task.select("norm"))}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        return {"vars": private(task.init(key), task.select("norm")), "trained": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        w = train(task.loss, merge(down["vars"], mine["vars"]), data, self.opt, self.work, key)
        up = {"delta": tree.sub(shared(w, task.norm), down["vars"]), "n": data["n"]}
        return up, {"vars": private(w, task.norm), "trained": torch.ones_like(mine["trained"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": merge(down["vars"], mine["vars"]), "trained": mine["trained"]}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        own = task.apply(model["vars"], x, mode, key)
        if mode != "eval" or not task.has_batch_norm:
            return own
        fresh = task.apply(model["vars"], x, "adapt", key)
        known = model["trained"] > 0
        return Out(
            torch.where(known, own.logits, fresh.logits),
            torch.where(known, own.features, fresh.features),
            own.buffers,
        )
