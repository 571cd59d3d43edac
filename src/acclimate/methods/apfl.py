"""APFL. Deng et al., 'Adaptive Personalized Federated Learning', 2020, Algorithm 1.

Every local step uses one batch for two updates, of the shared model w and of the client's own v:

- w <- w - lr grad f(w), averaged by the server as in FedAvg;
- v <- v - lr grad_v f(alpha v + (1 - alpha) w), the gradient by the chain rule (it carries the factor alpha).
- Once a round, before these steps: alpha <- clip(alpha - lr <v - w, grad f(alpha v + (1 - alpha) w)>, 0, 1), on one
  batch of its own, w being the model just received.

The client deploys alpha v + (1 - alpha) w, batch statistics alike: those kept with v are of the mixed model, the
others are the global ones. `work.clip` bounds the gradient of both models together. A client that never took part
deploys w. The paper gives no start for alpha; 0.5 is FedTHE's.

FedTHE's released code mixes the *outputs* of two networks instead of their parameters, with alpha on the global one;
its alpha gradient mixes the two networks' own gradients and adds 0.02 alpha; v starts as a copy of the first received
model; and the models trained so are trained for another epoch before they are tested.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import SGD, Optimizer, Scalar, Task, Tree, Weighted, Work, check, rng, train, tree
from ..core.gradient import grad
from ..core.local import batch_of


def mix(v: Tree, w: Tree, alpha: Scalar) -> Tree:
    """`alpha v + (1 - alpha) w`."""
    mixed: Tree = tree.map(lambda a, b: alpha * a + (1.0 - alpha) * b, v, w)
    return mixed


@dataclass(frozen=True)
class APFL(Weighted):
    """A mixture, with a learned weight, of a private model and the federated one (Deng et al., 2020)."""

    alpha: float = 0.5
    """Weight of the private model in the first round."""
    adapt_alpha: bool = True
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.within(self, "alpha", 0.0, 1.0)
        check.choices(self)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        alpha = torch.full((), self.alpha, device=key.device)
        return {"vars": task.init(key), "alpha": alpha, "seen": torch.zeros_like(alpha)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        received, alpha = down["vars"], mine["alpha"]
        if self.adapt_alpha:
            alpha = self._adapted(task, received, mine, data, rng.fold(key, "alpha"))

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            params, buffers = vars["params"], vars["buffers"]
            shared, new_w = task.loss({"params": params["w"], "buffers": buffers["w"]}, batch, key)
            mixed = mix(params["v"], tree.map(torch.Tensor.detach, params["w"]), alpha)
            own, new_v = task.loss({"params": mixed, "buffers": buffers["v"]}, batch, key)
            return shared + own, {"w": new_w, "v": new_v}

        both = {kind: {"w": received[kind], "v": mine["vars"][kind]} for kind in ("params", "buffers")}
        both = train(loss, both, data, self.opt, self.work, key)
        w, v = ({kind: both[kind][name] for kind in both} for name in ("w", "v"))
        up = {"delta": tree.sub(w, received), "n": data["n"]}
        return up, {"vars": v, "alpha": alpha, "seen": torch.ones_like(alpha)}

    def _adapted(self, task: Task, w: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tensor:
        positions, _ = Work(iterations=1, batch=self.work.batch).plan(data, rng.fold(key, "plan"))
        batch, v = batch_of(data, positions[0]), mine["vars"]

        def mixed_loss(alpha: Tensor) -> Tensor:
            params = mix(v["params"], w["params"], alpha)  # its derivative by alpha is <v - w, grad f>
            return task.loss({"params": params, "buffers": v["buffers"]}, batch, key)[0]

        rate = self.opt.lr * self.opt.scale(data["round"], torch.zeros_like(data["round"]))
        new: Tensor = mine["alpha"] - rate * grad(mixed_loss)(mine["alpha"])
        return new.clamp(0.0, 1.0)

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mix(mine["vars"], down["vars"], mine["alpha"] * mine["seen"])}
