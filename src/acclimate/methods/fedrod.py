"""FedRoD. Chen & Chao, 'On Bridging Generic and Personalized Federated Learning', ICLR 2022.

Two predictors on one body, trained in the same local steps:

- the body and its generic head minimise a balanced risk, here balanced softmax, and are averaged;
- the personal head, private and never sent, minimises the plain risk of the sum of both heads' logits. Body and generic
  logits are constants for it, so what is sent does not depend on it (but for `work.clip`, which bounds both together).

The client predicts with the sum. The personal head is linear; the paper's variant whose personal heads come from a
hypernetwork is left out. It starts at zero: a client that never trained one predicts with the generic head, as the
paper lets new clients do. `finish_personal` fits the personal head to the last body and generic head, both frozen, for
`personal_work`.

`variant="released"` ends as FedTHE's released code does: after the last model has arrived, body and both heads take
`personal_work` together, and the tuned body and generic head go live too. (That code trains the personal head in this
phase only, from a random start, while here it learns in every local step; elsewhere its loss is the one above.)
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Loss, Mode, Optimizer, Out, Task, Tree, Weighted, Work, rng, train, tree
from ..ops.losses import balanced_softmax, class_counts
from ..ops.nets import SUMMED, features_of, head_of, linear, on_features
from ..ops.params import model_of, train_jointly


@dataclass(frozen=True)
class FedRoD(Weighted):
    """A balanced generic head, sent with the body, plus a private personal head (Chen & Chao, ICLR 2022)."""

    balanced: bool = True
    """Whether the generic loss is balanced softmax or plain cross-entropy."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    personal_work: Work = Work(epochs=1)
    """How long the last personal phase is, when the final model has arrived."""
    variant: Literal["paper", "released"] = "paper"

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"head": tree.zeros(head_of(task, task.init(key)))}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        new = train_jointly(self.loss(task, data), {**down, **mine}, data, self.opt, self.work, key, "generic")
        return {"delta": tree.sub(new["vars"], down["vars"]), "n": data["n"]}, {"head": new["head"]}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        if self.variant == "released":
            return self.finish_released(task, down, mine, data, key)
        vars = down["vars"]
        generic, fixed = head_of(task, vars), on_features(data, features_of(task, vars, data))

        def loss(own: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            summed = linear(generic, batch["x"]) + linear(own["params"], batch["x"])
            return F.cross_entropy(summed, batch["y"]), {}

        start = {"params": mine["head"], "buffers": {}}
        return {"head": train(loss, start, fixed, self.opt, self.personal_work, key)["params"]}

    def finish_released(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        """The last phase of the released code: body and generic head are tuned too, and go live."""
        nets = {**down, **mine}
        return train_jointly(self.loss(task, data), nets, data, self.opt, self.personal_work, key, "generic")

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {**down, **mine, SUMMED: torch.ones_like(mine["head"]["weight"][0, 0])}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        return out._replace(logits=out.logits + linear(model["head"], out.features))

    def loss(self, task: Task, data: Tree) -> Loss:
        """The balanced risk of body and generic head, plus the plain risk of both heads' sum."""
        counts = class_counts(data, task.num_classes)
        counts = counts if self.balanced else torch.zeros_like(counts)  # equal counts make it plain cross-entropy

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(model_of(vars, "generic"), batch["x"], "train", key)
            summed = out.logits.detach() + linear(vars["params"]["head"], out.features.detach())
            generic = balanced_softmax(out.logits, batch["y"], counts)
            return generic + F.cross_entropy(summed, batch["y"]), out.buffers

        return loss
