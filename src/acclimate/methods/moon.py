"""MOON, model-contrastive learning. Li, He & Song, CVPR 2021, Eq. 3-5 and Algorithm 1.

Local loss: cross-entropy plus mu times -log(e^{s(z, z_g) / tau} / (e^{s(z, z_g) / tau} + e^{s(z, z_p) / tau})), with
the cosine s and the features z of the trained model, z_g of the received one and z_p of the client's own from its last
round. In its first round that is the received one, too, and the term is a constant.

The paper contrasts the outputs of a projection head of two layers that it adds to the network; here they are the
features that enter the last layer, so that the model stays the user's own. All three networks see the same view of a
batch, with the batch's own statistics. The paper tunes mu in 0.1, 1, 5 and 10; without the projection head larger ones
hold a small network back, so 1 is the default.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Optimizer, Task, Tree, Weighted, Work, check, rng, train, tree


@dataclass(frozen=True)
class MOON(Weighted):
    """FedAvg whose features stay near the received model's, away from the client's last (Li et al., CVPR 2021)."""

    mu: float = 1.0
    """The weight of the contrastive term."""
    tau: float = 0.5
    """The temperature."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.at_least(self, "mu", 0.0)
        check.positive(self, "tau")
        check.choices(self)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "seen": torch.zeros((), device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received = down["vars"]
        last = tree.where(mine["seen"] > 0, mine["vars"], received)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out, near, far = (task.apply(v, batch["x"], "train", key) for v in (vars, received, last))
            term = contrast(out.features, near.features, far.features, self.tau)
            return F.cross_entropy(out.logits, batch["y"]) + self.mu * term, out.buffers

        w = train(loss, received, data, self.opt, self.work, key)
        up = {"delta": tree.sub(w, received), "n": data["n"]}
        return up, {"vars": w, "seen": torch.ones_like(mine["seen"])}


def contrast(z: Tensor, near: Tensor, far: Tensor, tau: float) -> Tensor:
    """-log of the softmax of the two similarities at `near`, mean over the batch."""
    towards, away = F.cosine_similarity(z, near), F.cosine_similarity(z, far)
    return F.softplus((away - towards) / tau).mean()
