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
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..ops import nets, requirements
from ..ops.counting import mean_by
from ..ops.heads import linear
from ..ops.joint import joined, model_of
from ..ops.rotation import turned


@dataclass(frozen=True)
class FedTTT(Method):
    """FedAvg with a private rotation head trained along (Sun et al., ICML 2020)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    personal_work: Work = Work(epochs=1)
    """Of the last, joint personal phase, when the final model has arrived."""
    weight: float = 1.0
    """Of the rotation loss."""
    weights: Literal["samples", "uniform"] = "samples"
    """Whether a client counts by its number of examples or as one."""

    def __post_init__(self) -> None:
        check.at_least(self, "weight", 0.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": mean_by(self.weights), "n": Sum()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        if missing := requirements.square_images(task, "FedTTT"):
            raise ValueError(missing)
        return super().init_server(task, clients, key)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"rotation": nets.layer(rng.fold(key, "rotation"), task.dim, 4)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        w, rotation = self._jointly(task, down["vars"], mine["rotation"], data, self.work, key)
        return {"delta": tree.sub(w, down["vars"]), "n": data["n"]}, {"rotation": rotation}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        w, rotation = self._jointly(task, down["vars"], mine["rotation"], data, self.personal_work, key)
        return {"rotation": rotation, "vars": w}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine.get("vars", down["vars"]), "rotation": mine["rotation"]}

    def _jointly(
        self, task: Task, vars: Tree, rotation: Tree, data: Tree, work: Work, key: rng.Key
    ) -> tuple[Tree, Tree]:
        """Model and rotation head after local training of both."""

        def loss(both: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            model = model_of(both)
            ce, buffers = task.loss(model, batch, key)
            return ce + self.weight * _rotation_loss(task, model, both["params"]["rotation"], batch["x"], key), buffers

        new = train(loss, joined(vars, {"rotation": rotation}), data, self.opt, work, key)
        return model_of(new), new["params"]["rotation"]


def _rotation_loss(task: Task, vars: Tree, head: Tree, x: Tensor, key: rng.Key) -> Tensor:
    if task.augment is not None:  # the view that the main loss sees, too
        x = task.augment.views(x, rng.fold(key, "augment"))
    quarters = rng.randint(rng.fold(key, "turn"), 0, 4, x.shape[0])
    # Mode "adapt" has batch statistics, as training has, and does not augment once more after the turn.
    features = task.apply(vars, turned(x, quarters), "adapt").features
    return F.cross_entropy(linear(head, features), quarters)
