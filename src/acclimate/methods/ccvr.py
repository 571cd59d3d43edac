"""CCVR, classifier calibration with virtual representations. Luo et al., NeurIPS 2021, Eq. 4-6 and Algorithm 1.

- Training is FedAvg's. Clients also send the mean and the second moments of their features of every class, under the
  model that they received. Averaged by class counts these are the federation's own: the server sees no client's.
- The server draws `virtual` features of every class from the Gaussian with that mean and covariance, and trains the
  head of the model that was sent on them (`head_work`). That model goes live.

The paper calibrates once, when training is over. Here the last exchange of a training is the one that calibrates: what
goes live after R rounds is FedAvg's model of R - 1 rounds, with a new head. It is sent beside the one that is trained
on, which doubles the download; a federation that knows its last round would send it then alone. The second moments are
classes x d x d numbers, for d features. Where only some clients take part, the moments are theirs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Mean, Optimizer, Rules, Sum, Task, Tree, Weighted, Work, check, difference, rng, train
from ..core.limits import COMMON, Level, Limits
from ..ops.masks import real_rows
from ..ops.nets import features_of, head_of, linear, with_head


@dataclass(frozen=True)
class CCVR(Weighted):
    """FedAvg whose head is trained anew on features drawn from class-wise Gaussians (Luo et al., NeurIPS 2021)."""

    virtual: int = 200
    """How many features are drawn of every class; without any, the head stays as it is."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    head_opt: Optimizer = SGD(lr=0.05)
    head_work: Work = Work(epochs=1)
    """How much the head is trained on the drawn features."""

    downlink = ("vars", "live")
    limits: ClassVar[Limits] = {**COMMON, "means": Level(), "seconds": Level()}

    def __post_init__(self) -> None:
        check.whole(self, "virtual", 0)
        check.steady(self, "head_opt")
        check.choices(self)

    @property
    def uplink(self) -> Rules:
        moments = {"means": Mean("counts"), "seconds": Mean("counts"), "counts": Sum()}
        return {"delta": self.mean, "n": Sum(), **moments}

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        vars = task.init(key)
        return {"vars": vars, "live": vars}

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        delta = difference(task.loss, down["vars"], data, self.opt, self.work, key)
        moments = class_moments(features_of(task, down["vars"], data), data, task.num_classes)
        return {"delta": delta, "n": data["n"], **moments}, mine

    def server(self, task: Task, server: Tree, total: Tree, key: rng.Key) -> Tree:
        return {**super().server(task, server, total, key), "live": self.calibrated(task, server["vars"], total, key)}

    def deploy(self, task: Task, down: Tree, mine: Tree) -> Tree:
        return {"vars": down["live"]}

    def calibrated(self, task: Task, vars: Tree, moments: Tree, key: rng.Key) -> Tree:
        """The model with its head trained on features drawn from the classes' Gaussians."""
        if self.virtual == 0:
            return vars
        known = (moments["counts"] > 0).to(torch.float32)
        z = drawn(moments, self.virtual, rng.fold(key, "virtual"))
        places = torch.arange(len(z), device=z.device)
        y = torch.div(places, self.virtual, rounding_mode="floor")
        data = {"x": z, "y": y, "rows": places, "n": torch.full((), len(z), device=z.device), "round": places[0]}

        def loss(head: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            each = F.cross_entropy(linear(head["params"], batch["x"]), batch["y"], reduction="none")
            held = known[batch["y"]]  # a class that nobody holds has no Gaussian
            return (each * held).sum() / held.sum().clamp_min(1.0), {}

        start = {"params": head_of(task, vars), "buffers": {}}
        return with_head(task, vars, train(loss, start, data, self.head_opt, self.head_work, key)["params"])


def class_moments(z: Tensor, data: Tree, num_classes: int) -> Tree:
    """Per class the mean of the client's features, the mean of their products, and how many there are."""
    real = real_rows(z.shape[0], data["n"])
    member = F.one_hot(data["y"][data["rows"]], num_classes).to(z.dtype) * real[:, None]
    counts = member.sum(0)
    share = member / counts.clamp_min(1.0)
    return {"means": share.mT @ z, "seconds": torch.einsum("nc,nd,ne->cde", share, z, z), "counts": counts}


def drawn(moments: Tree, count: int, key: rng.Key) -> Tensor:
    """So many features of every class, one class after the other, from Gaussians with these moments."""
    means, n = moments["means"], moments["counts"][:, None, None]
    covariance = (moments["seconds"] - means[:, :, None] * means[:, None, :]) * (n / (n - 1).clamp_min(1.0))
    values, axes = torch.linalg.eigh(covariance)  # and not Cholesky: few examples leave directions without spread
    # the symmetric root is one; the signs of axes are a library's choice
    root = (axes * values.clamp_min(0.0).sqrt()[:, None, :]) @ axes.mT
    z = rng.normal(key, means.shape[0], count, means.shape[1])
    return (means[:, None, :] + z @ root).flatten(0, 1)
