"""pFedMe. Dinh et al., NeurIPS 2020, Algorithm 1: personal models tied to a common one by a Moreau envelope.

- Local step, on one batch: the personal model theta approaches the minimum of f(theta) + lam/2 |theta - w|^2 in `steps`
  steps of `opt`; then the client's copy of the common model follows, w <- w - eta lam (w - theta).
- theta starts a round at the received w, and each local step where the last one ended, as in the published code.
- The server takes (1 - beta) of the old model and `beta` of the mean over clients, each counting as one.
- What is deployed is theta; `finish_personal` makes it for the last model. Batch statistics follow theta.

`work.clip` bounds the gradient of every personal step, the envelope's part in it. A schedule that counts steps counts
batches: the personal steps of one have one rate.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Loss, Mean, Method, Optimizer, Rules, Scalar, Task, Tree, Work, check, rng, tree
from ..core.gradient import grad
from ..core.local import batch_of, clip
from ..core.loops import Time, at, repeat


@dataclass(frozen=True)
class PFedMe(Method):
    """Personal models under a Moreau envelope of the common one (Dinh et al., NeurIPS 2020)."""

    opt: Optimizer = SGD(lr=0.05)
    """The optimiser of the personal model."""
    work: Work = Work()
    """How many local steps there are, and the size of their batches."""
    lam: float = 15.0
    """How strongly the personal model is tied to the common one."""
    steps: int = 5
    """Personal steps per batch: the paper's K."""
    eta: float = 0.005
    """The rate at which the common model follows."""
    beta: float = 1.0
    """The share of the clients' mean in the server's new model."""

    uplink: ClassVar[Rules] = {"delta": Mean()}

    def __post_init__(self) -> None:
        for name in ("lam", "eta", "beta"):
            check.positive(self, name)
        check.at_least(self, "steps", 1)

    def init_mine(self, task: Task, key: rng.Key) -> Tree:
        return {"vars": task.init(key)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        common, personal = self.round(task.loss, down["vars"], data, key)
        return {"delta": tree.sub(common, down["vars"])}, {"vars": personal}

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {"vars": tree.add(server["vars"], total["delta"], self.beta)}

    def finish_personal(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> Tree:
        return {"vars": self.round(task.loss, down["vars"], data, key)[1]}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": mine["vars"]}

    def round(self, loss: Loss, start: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        """One client's round: the common model that it returns, and its personal one."""
        positions, active = self.work.plan(data, rng.fold(key, "plan"))
        clock = torch.arange(positions.shape[0], device=active.device)
        keys = rng.fold(
            rng.fold(key, "step", clock)[:, None], "personal", torch.arange(self.steps, device=active.device)
        )

        def step(t: Time, now: Tree) -> tuple[Tree, Tree]:
            batch, common = batch_of(data, at(positions, t)), now["w"]
            scale = self.opt.scale(data["round"], at(clock, t))
            near, state = self._approach(loss, common, now["theta"], now["state"], batch, scale, at(keys, t))
            follow = tree.sub(near["params"], common["params"])
            moved = {"params": tree.add(common["params"], follow, self.eta * self.lam), "buffers": near["buffers"]}
            new = {"w": moved, "theta": near, "state": state}
            return tree.where(at(active, t), new, now) if "ragged" in data else new, {}

        begun = {"w": start, "theta": start, "state": self.opt.init(start["params"])}
        end, _ = repeat(step, begun, positions.shape[0], active)
        return end["w"], end["theta"]

    def _approach(
        self, loss: Loss, common: Tree, personal: Tree, state: Tree, batch: Tree, scale: Scalar, keys: rng.Key
    ) -> tuple[Tree, Tree]:
        """The personal model after `steps` steps towards the minimum of Eq. 3's inner problem on one batch."""
        for k in range(self.steps):

            def objective(p: Tree, buffers: Tree = personal["buffers"], now: rng.Key = keys[k]) -> tuple[Tensor, Tree]:
                return loss({"params": p, "buffers": buffers}, batch, now)

            grads, buffers = grad(objective, has_aux=True)(personal["params"])
            # the envelope's own gradient by hand: differentiating a square costs more than the batch does
            grads = tree.add(grads, tree.sub(personal["params"], common["params"]), self.lam)
            grads = grads if self.work.clip is None else clip(grads, self.work.clip)
            params, state = self.opt.update(grads, state, personal["params"], scale)
            personal = {"params": params, "buffers": buffers}
        return personal, state
