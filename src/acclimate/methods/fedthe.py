"""FedTHE, training half. Jiang & Lin, ICLR 2023, Sec. 4.2 and Algorithm 1 (the test half is adapters/the.py).

- Body and global head are trained on the client with balanced softmax (footnote 3) and averaged, as in FedAvg.
- The personal head is trained with cross-entropy on the frozen, unadapted body received from the server; it stays.
- The local descriptor h^l is the mean feature of the client's training data under the received body; it is sent, and
  the server averages them into the global descriptor h^g, which comes back with the next model.
- When the last model has arrived, the personal phase runs once more on it (`finish_personal`): what is deployed
  is what a client would hold in the next round, but for schedules, which start anew.

Rates are those of all methods here; the paper trains all of its methods at 0.01 with weight decay 5e-4, as recipes do.

Differs from the released code: clients count by their examples (there: uniformly, `weights="uniform"`), and personal
heads and descriptors see plain images (there: augmented ones, with the body in train mode).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from ..core import SGD, Mean, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, difference, rng, tree
from ..ops.losses import local_loss
from ..ops.nets import features_of, fit_head, head_of, mean_feature


@dataclass(frozen=True)
class FedTHE(Weighted):
    """A shared body and head, a personal head, and feature descriptors for the adapters THE and THEPlus."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    head_opt: Optimizer = SGD(lr=0.05)
    head_work: Work = Work(epochs=1)
    """How much the personal head is trained, on the received body."""
    balanced: bool = True
    """Balanced softmax for body and global head; False is the ablation without it."""

    downlink = ("vars", "descriptor")
    trains_for = ("the",)

    @property
    def uplink(self) -> Rules:
        return {"delta": self.mean, "n": Sum(), "descriptor": Mean()}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "descriptor": torch.zeros(task.dim, device=key.device)}

    def init_client(self, task: Task, client: int, key: rng.Key) -> Tree:
        head = head_of(task, task.init(rng.fold(key, "personal head", client)))
        return {"head": head, "descriptor": torch.zeros(task.dim, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        mine = self.finish_personal(task, down, mine, data, key)
        loss = local_loss(task, data, self.balanced)
        delta = difference(loss, down["vars"], data, self.opt, self.work, rng.fold(key, "global"))
        return {"delta": delta, "n": data["n"], "descriptor": mine["descriptor"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"vars": tree.add(server["vars"], total["delta"]), "descriptor": total["descriptor"]}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        features = features_of(task, down["vars"], data)
        head = fit_head(mine["head"], features, data, self.head_opt, self.head_work, rng.fold(key, "personal"))
        return {"head": head, "descriptor": mean_feature(features, data["n"])}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        descriptors = {"global": down["descriptor"], "local": mine["descriptor"]}
        return {"vars": down["vars"], "head": mine["head"], "descriptors": descriptors}
