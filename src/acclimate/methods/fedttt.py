"""FedTTT: FedAvg trained for TTT. Sun et al., ICML 2020, Eq. 2: the loss adds a self-supervised one (by how many
quarter turns was an image rotated?) on the features that both tasks share.

The rotation head is private to the client, as in FedTHE's released baseline. When the last model has arrived,
`finish_personal` trains body, head and rotation head jointly for `personal_work`: the personal model that the
adapter TTT then tunes, as FedTHE tests it. `personal_work.epochs=0` deploys the federated model instead.

An image is turned after its augmentation (a mirrored quarter turn would carry the wrong label), each by a random number
of turns. The turned pass has its own batch statistics and no dropout, and running statistics are those of the upright
pass alone, so that with weight=0 this is FedAvg. FedTHE's released code trains jointly in its personal epoch only, and
not in the rounds; there clients count equally (`weights="uniform"`).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial

import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, check, rng, tree
from ..ops import nets, requirements
from ..ops.augment import turned
from ..ops.nets import linear
from ..ops.params import model_of, train_jointly


@dataclass(frozen=True)
class FedTTT(Weighted):
    """FedAvg with a private rotation head trained along (Sun et al., ICML 2020)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    personal_work: Work = Work(epochs=1)
    """How long the last, joint personal phase is, when the final model has arrived."""
    weight: float = 1.0
    """The weight of the rotation loss."""
    trains_for = ("ttt",)

    def __post_init__(self) -> None:
        check.at_least(self, "weight", 0.0)
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        requirements.need(requirements.square_images(task, "FedTTT"))
        return super().init_server(task, clients, key)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"rotation": nets.layer(rng.fold(key, "rotation"), task.dim, 4)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        new = train_jointly(partial(self.loss, task), {**down, **mine}, data, self.opt, self.work, key)
        return {"delta": tree.sub(new["vars"], down["vars"]), "n": data["n"]}, {"rotation": new["rotation"]}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return train_jointly(partial(self.loss, task), {**down, **mine}, data, self.opt, self.personal_work, key)

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {**down, **mine}

    def loss(self, task: Task, both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        """The loss of model and rotation head on a labelled batch: Eq. 2."""
        model, x = model_of(both), batch["x"]
        ce, buffers = task.loss(model, batch, key)
        if task.augment is not None:  # the view that the main loss sees, too
            x = task.augment.views(x, rng.fold(key, "augment"))
        quarters = rng.randint(rng.fold(key, "turn"), 0, 4, x.shape[0])
        features = task.apply(model, turned(x, quarters), "adapt").features  # batch statistics, no further augmentation
        return ce + self.weight * F.cross_entropy(linear(both["params"]["rotation"], features), quarters), buffers
