"""FedTTT: FedAvg trained for TTT. Sun et al., ICML 2020, Eq. 2: the loss adds a self-supervised one (by how many
quarter turns was an image rotated?) on the features that both tasks share.

The rotation head is private to the client, as in FedTHE's released baseline, and is deployed for the adapter TTT. An
image is turned after its augmentation (a mirrored quarter turn would carry the wrong label), each by a random number of
turns. Running statistics are those of the upright pass alone, so that with weight=0 this is FedAvg. FedTHE's released
code trains jointly in its personal epoch only, and not in the rounds.
"""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng, tree
from ..core.local import Work, train
from ..core.method import Method
from ..core.optim import SGD, Optimizer
from ..core.task import Task
from ..core.tree import Tree
from ..ops.heads import linear
from ..ops.rotation import square, turned


@dataclass(frozen=True)
class FedTTT(Method):
    """FedAvg with a private rotation head trained along (Sun et al., ICML 2020)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    weight: float = 1.0
    """Of the rotation loss."""

    def __post_init__(self) -> None:
        check.at_least(self, "weight", 0.0)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        if not square(task):
            raise ValueError(f"FedTTT needs square images to turn, and these inputs have shape {task.shape}")
        return super().init_server(task, clients, key)

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        bound, key = task.dim**-0.5, rng.fold(key, "rotation")
        draws = (rng.uniform(rng.fold(key, "weight"), 4, task.dim), rng.uniform(rng.fold(key, "bias"), 4))
        weight, bias = ((2.0 * u - 1.0) * bound for u in draws)
        return {"rotation": {"weight": weight, "bias": bias}}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = down["vars"]

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            own = {**vars, "params": tree.drop(vars["params"], ("rotation",))}
            ce, buffers = task.loss(own, batch, key)
            rotation = _rotation_loss(task, own, vars["params"]["rotation"], batch["x"], key)
            return ce + self.weight * rotation, buffers

        start = {**received, "params": {**received["params"], "rotation": mine["rotation"]}}
        w = train(loss, start, data, self.opt, self.work, key)
        trained = {**w, "params": tree.drop(w["params"], ("rotation",))}
        return {"delta": tree.sub(trained, received), "n": data["n"]}, {"rotation": w["params"]["rotation"]}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": down["vars"], "rotation": mine["rotation"]}


def _rotation_loss(task: Task, vars: Tree, head: Tree, x: Tensor, key: rng.Key) -> Tensor:
    if task.augment is not None:  # the view that the main loss sees, too
        x = task.augment.views(x, rng.fold(key, "augment"))
    quarters = rng.randint(rng.fold(key, "turn"), 0, 4, x.shape[0])
    features = _plain(task).apply(vars, turned(x, quarters), "train", rng.fold(key, "rotation")).features
    return F.cross_entropy(linear(head, features), quarters)


@functools.lru_cache(maxsize=8)
def _plain(task: Task) -> Task:
    """The task without its augmentation: train mode would augment once more, after the turn."""
    if task.augment is None:
        return task
    return Task(task.model, task.shape, task.num_classes, task.mean, task.std)
