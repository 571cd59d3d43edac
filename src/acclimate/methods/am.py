"""AM, amplitude mixing. Xu et al., 'A Fourier-based Framework for Domain Generalization', CVPR 2021, Eq. 4-6.

A training image keeps its phase and takes over part of another's amplitude: A <- (1 - w) A + w A', w ~ U(0, strength),
so that the network learns from what is where and not from light, colour and texture. The loss is plain cross-entropy;
the paper's teacher and consistency loss are not part of what federated comparisons call AM.

- `partner="batch"`: A' is that of another image of the client's batch, as where AM is compared in a federation
  (FedDG-GA's code: half of the batches, `chance`). Nothing more than the model is sent.
- `partner="clients"`: A' is the mean amplitude of all clients' images. A client sends its own mean amplitude, by
  examples, so that the server sees the federation's; in the first round clients take their own. No phase is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Optimizer, Rules, Task, Tree, Work, check, difference, rng, tree
from ..ops import fourier


@dataclass(frozen=True)
class AM(Method):
    """FedAvg on images that take over part of each other's amplitudes (Xu et al., CVPR 2021)."""

    strength: float = 1.0
    """The largest weight of the other amplitude: the paper's eta."""
    chance: float = 0.5
    """The probability that a batch is mixed."""
    partner: Literal["batch", "clients"] = "batch"
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "amplitude")

    def __post_init__(self) -> None:
        check.within(self, "strength", 0.0, 1.0)
        check.within(self, "chance", 0.0, 1.0)
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        return {**super().uplink, **({"amplitude": Mean("n")} if self.partner == "clients" else {})}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        unknown = {"amplitude": fourier.unknown(task, "AM", key.device, mixes=True)}
        return {"vars": task.init(key), **(unknown if self.partner == "clients" else {})}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        own = {"amplitude": fourier.mean_amplitude(data)} if self.partner == "clients" else {}
        other = fourier.known_or(down["amplitude"], own["amplitude"]) if own else None

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            return task.loss(vars, {**batch, "x": self.mixed(batch["x"], other, rng.fold(key, "mix"))}, key)

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"], **own}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return super().server(task, server, total, key) | tree.pick(total, ("amplitude",))

    def mixed(self, x: Tensor, other: Tensor | None, key: rng.Key) -> Tensor:
        """A batch with mixed amplitudes: with these, or with those of other images of the batch."""
        if other is None:
            other = fourier.amplitude(x[rng.permutation(rng.fold(key, "partner"), x.shape[0])])
        weight = self.strength * rng.uniform(rng.fold(key, "weight"), x.shape[0])
        used = rng.uniform(rng.fold(key, "chance")) < self.chance
        return torch.where(used, fourier.mixed(x, other, weight), fourier.pixels(x))
