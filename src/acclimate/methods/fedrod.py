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

from ..core import SGD, Loss, Method, Mode, Optimizer, Out, Rules, Sum, Task, Tree, Work, check, rng, train, tree
from ..ops.counting import mean_by
from ..ops.heads import features_of, head_of, linear, on_features
from ..ops.joint import joined, model_of
from ..ops.losses import balanced_softmax, class_counts


@dataclass(frozen=True)
class FedRoD(Method):
    """A balanced generic head, sent with the body, plus a private personal head (Chen & Chao, ICLR 2022)."""

    balanced: bool = True
    """Whether the generic loss is balanced softmax or plain cross-entropy."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    personal_work: Work = Work(epochs=1)
    """Of the last personal phase, when the final model has arrived."""
    variant: Literal["paper", "released"] = "paper"
    weights: Literal["samples", "uniform"] = "samples"
    """Whether a client counts by its number of examples or as one."""

    def __post_init__(self) -> None:
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {"delta": mean_by(self.weights), "n": Sum()}

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"head": tree.zeros(head_of(task, task.init(key)))}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        w, head = self._both(task, down["vars"], mine["head"], data, self.work, key)
        return {"delta": tree.sub(w, down["vars"]), "n": data["n"]}, {"head": head}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        vars = down["vars"]
        if self.variant == "released":
            tuned, head = self._both(task, vars, mine["head"], data, self.personal_work, key)
            return {"head": head, "vars": tuned}

        generic, fixed = head_of(task, vars), on_features(data, features_of(task, vars, data))

        def loss(own: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            summed = linear(generic, batch["x"]) + linear(own["params"], batch["x"])
            return F.cross_entropy(summed, batch["y"]), {}

        start = {"params": mine["head"], "buffers": {}}
        return {"head": train(loss, start, fixed, self.opt, self.personal_work, key)["params"]}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine.get("vars", down["vars"]), "head": mine["head"]}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        out = task.apply(model["vars"], x, mode, key)
        return out._replace(logits=out.logits + linear(model["head"], out.features))

    def _both(self, task: Task, vars: Tree, head: Tree, data: Tree, work: Work, key: rng.Key) -> tuple[Tree, Tree]:
        """Body with generic head, and personal head, after local training of all of them."""
        start = joined(vars, {"personal": head}, "generic")
        new = train(self._loss(task, data), start, data, self.opt, work, key)
        return model_of(new, "generic"), new["params"]["personal"]

    def _loss(self, task: Task, data: Tree) -> Loss:
        # balanced softmax under equal counts is cross-entropy
        counts = class_counts(data, task.num_classes)
        counts = counts if self.balanced else torch.zeros_like(counts)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(model_of(vars, "generic"), batch["x"], "train", key)
            summed = out.logits.detach() + linear(vars["params"]["personal"], out.features.detach())
            generic = balanced_softmax(out.logits, batch["y"], counts)
            return generic + F.cross_entropy(summed, batch["y"]), out.buffers

        return loss
