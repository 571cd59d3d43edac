"""HarmoFL. Jiang, Wang & Dou, AAAI 2022: one common amplitude against local drift, flat minima against global drift.

- Amplitude normalisation: an image keeps its phase and gets the common amplitude, so that all clients' features are
  alike. A client sends the mean amplitude of its images; the server's is their mean by examples, moved along by
  `momentum` from the second round on. In the first round, when there is none yet, a client takes its own.
- Weight perturbation: the gradient is taken `alpha` uphill, along the normalised gradient (as in FedSAM).

The common amplitude is part of the model: it changes test images too, so newcomers and adapters see what training saw.
The paper averages over mini-batches with a decay and a client's own amplitude enters its images; we take the mean over
all of a client's images, which needs no decay, and the federation's in its images. No phase is sent.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import SGD, Mean, Method, Mode, Optimizer, Out, Rules, Sum, Task, Tree, Work, check, difference, rng, tree
from ..ops import fourier
from ..ops.losses import sharp


@dataclass(frozen=True)
class HarmoFL(Method):
    """FedAvg on images of one common amplitude, with perturbed weights (Jiang, Wang & Dou, AAAI 2022)."""

    alpha: float = 0.05
    """How far uphill the gradient is taken."""
    momentum: float = 0.1
    """How fast the server's amplitude follows a round's clients."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    downlink = ("vars", "amplitude")
    uplink: ClassVar[Rules] = {"delta": Mean("n"), "amplitude": Mean("n"), "n": Sum()}

    def __post_init__(self) -> None:
        check.at_least(self, "alpha", 0.0)
        check.within(self, "momentum", 0.0, 1.0)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        return {"vars": task.init(key), "amplitude": fourier.unknown(task, "HarmoFL", key.device)}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        own = fourier.mean_amplitude(data)
        common = fourier.known_or(down["amplitude"], own)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            return task.loss(vars, {**batch, "x": fourier.repainted(batch["x"], common)}, key)

        delta = difference(sharp(loss, self.alpha), down["vars"], data, self.opt, self.work, key)
        return {"delta": delta, "amplitude": own, "n": data["n"]}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        old, new = server["amplitude"], total["amplitude"]
        moved = old + self.momentum * (new - old)
        return {"vars": tree.add(server["vars"], total["delta"]), "amplitude": torch.where(old.sum() > 0, moved, new)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": down["vars"], "amplitude": down["amplitude"]}

    def predict(self, task: Task, model: Tree, x: Tensor, mode: Mode = "eval", key: rng.Key | None = None) -> Out:
        common = fourier.known_or(model["amplitude"], fourier.amplitude(x))
        return task.apply(model["vars"], fourier.repainted(x, common), mode, key)
