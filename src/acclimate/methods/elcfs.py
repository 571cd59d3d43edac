"""ELCFS. Liu et al., 'FedDG: Federated Domain Generalization ... Episodic Learning in Continuous Frequency Space', CVPR
2021, Eq. 2-5: clients meet the amplitudes of others, and learn to be good on them after a step on their own images.

- Every client sends low-frequency amplitudes of some of its images; the server hands out all clients' (the bank).
- Continuous frequency space: a training image keeps its phase, and its low frequencies move to (1 - w) A + w A', where
  A' is drawn from another client's and w ~ U(0, 1).
- Episode: one step of rate `inner` on the images as they are, then the loss of the moved images under the stepped
  parameters, differentiated through that step. Both losses add up.

The boundary term of the paper's outer loss is about contours in segmentation and is left out: there are none in
classification. The bank holds `bank` images per client, anew in every round; the paper's holds all of them. Only what
is used is sent, the low frequencies, but these are of single images and not means, which others (FedSPL) call a
leak; the messages are gathered, so the server sees whose they are. In the first round the bank is empty, and moved
images are the images themselves. Batch statistics are those of the first pass.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Gather, Loss, Mean, Method, Optimizer, Rules, Sum, Task, Tree, Work, check, rng, tree
from ..core.gradient import grad
from ..core.local import difference
from ..ops import fourier


@dataclass(frozen=True)
class ELCFS(Method):
    """FedAvg by episodes on images with other clients' low frequencies (Liu et al., CVPR 2021)."""

    inner: float = 1e-3
    """The rate of the step inside an episode."""
    bank: int = 4
    """Images per client whose amplitudes are shared."""
    reach: float = 0.1
    """Which frequencies are low: this share of the image's side, in each direction."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "bank", "filled")
    uplink: ClassVar[Rules] = {"delta": Mean("n"), "bank": Gather(), "id": Gather(), "n": Sum()}

    def __post_init__(self) -> None:
        check.at_least(self, "inner", 0.0)
        check.at_least(self, "bank", 1)
        check.within(self, "reach", 0.0, 0.5)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        fourier.need_pixels(task, "ELCFS")
        side = 2 * fourier.reach(task.shape, self.reach) + 1
        bank = torch.zeros(clients, self.bank, task.shape[0], side, side, device=key.device)
        return {"vars": task.init(key), "bank": bank, "filled": torch.zeros(clients, device=key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(self.episode(task, down, data["id"]), down["vars"], data, self.opt, self.work, key)
        shown = (rng.uniform(rng.fold(key, "bank"), self.bank) * data["n"]).to(torch.int64)
        amplitudes = fourier.amplitude(data["x"][data["rows"][shown]])
        bank = fourier.low(amplitudes, fourier.reach(task.shape, self.reach))
        return {"delta": delta, "bank": bank, "id": data["id"], "n": data["n"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        who = (total["id"],)
        bank = server["bank"].index_put(who, total["bank"])
        filled = server["filled"].index_put(who, torch.ones_like(total["id"], dtype=server["filled"].dtype))
        return {"vars": tree.add(server["vars"], total["delta"]), "bank": bank, "filled": filled}

    def episode(self, task: Task, down: Tree, me: Tensor) -> Loss:
        """The loss before the inner step plus that on moved images after it."""

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            def first(params: Tree) -> tuple[Tensor, tuple[Tensor, Tree]]:
                value, buffers = task.loss({**vars, "params": params}, batch, key)
                return value, (value, buffers)

            slope, (before, buffers) = grad(first, has_aux=True)(vars["params"])
            stepped = {**vars, "params": tree.add(vars["params"], slope, -self.inner)}
            after, _ = task.loss(stepped, {**batch, "x": moved(batch["x"], down, me, rng.fold(key, "moved"))}, key)
            return before + after, buffers

        return loss


def moved(x: Tensor, down: Tree, me: Tensor, key: rng.Key) -> Tensor:
    """Images whose low frequencies are on the way to those of other clients; as they are where the bank has none."""
    clients, each = down["bank"].shape[:2]
    others = (down["filled"] > 0) & (torch.arange(clients, device=x.device) != me)
    draw = rng.uniform(rng.fold(key, "whose"), x.shape[0], clients).masked_fill(~others, -1.0).argmax(1)
    which = rng.randint(rng.fold(key, "which"), 0, each, x.shape[0])
    own = fourier.amplitude(x)
    weight = rng.uniform(rng.fold(key, "weight"), x.shape[0]) * others.any()
    return fourier.mixed(x, fourier.with_low(own, down["bank"][draw, which]), weight)
