"""FedSPL's training half. Liang et al., AAAI 2025, Eq. 1-4: FedAvg on features whose values are exchanged.

After chosen modules each sample's feature map keeps its own order (the contours) and takes over the values of another
sample of the batch (the colours), drawn anew in every step. The adapter `MBSL` is the other half. The paper does not
say where: the default is after the first two sizes of feature maps, and the released code's places are
`after=("layer1", "layer2")` of a ResNet. As printed (Eq. 3), every map is replaced. It says nothing of gradients: ours
reach the sample whose order is kept, and so its own label. `variant="released"`: half of the batches, mixed with a
Beta(0.1, 0.1) weight, and as in the work that it builds on (Zhang et al., CVPR 2022) gradients reach the sample whose
values are used too, in proportion to that weight.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Method, Optimizer, Task, Tree, Work, check, difference, rng
from ..ops import requirements


@dataclass(frozen=True)
class FedSPL(Method):
    """FedAvg whose features take over each other's values; deploy with `MBSL` (Liang et al., AAAI 2025)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    after: tuple[str, ...] = ()
    """Modules, by name or pattern, whose outputs are changed; none: the model's first two sizes of feature maps."""
    variant: Literal["paper", "released"] = "paper"
    trains_for = ("mbsl",)

    def __post_init__(self) -> None:
        check.choices(self)

    def init_server(self, task: Task, clients: int, key: rng.Key) -> Tree:
        if not self.after:  # without a place to exchange at, this would be FedAvg under another name
            requirements.need(requirements.feature_maps(task, "FedSPL"))
        return super().init_server(task, clients, key)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        places = task.places(self.after) if self.after else task.stages[:2]
        exchange = restyled if self.variant == "paper" else partial(mixed, chance=0.5, beta=0.1)

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            change = {name: partial(exchange, key=rng.fold(key, "place", i)) for i, name in enumerate(places)}
            out = task.apply(vars, batch["x"], "train", key, change)
            return F.cross_entropy(out.logits, batch["y"]), out.buffers

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}, mine


def matched(content: Tensor, style: Tensor) -> Tensor:
    """Along the last axis: the values of `style` in the order of `content`. Equal values keep their places' order."""
    values = style.sort(dim=-1, stable=True).values
    rank = content.argsort(dim=-1, stable=True).argsort(dim=-1)
    return values.gather(-1, rank)


def reorder(x: Tensor, key: rng.Key) -> Tensor:
    """Maps [B, C, H, W] with, channel by channel, each sample's order and the values of another drawn at random."""
    flat = x.flatten(2)
    partner = flat[rng.permutation(rng.fold(key, "shuffle"), x.shape[0])]
    return matched(flat, partner).view_as(x)


def restyled(x: Tensor, key: rng.Key) -> Tensor:
    """`reorder`, with the gradient of x itself: a layer before it learns from the label of the sample that it saw."""
    return x + (reorder(x, key) - x).detach()


def mixed(x: Tensor, key: rng.Key, chance: float, beta: float) -> Tensor:
    """`reorder` in part: with this chance for the batch, and a Beta(beta, beta) weight of its own for each sample.

    Gradients are those of Zhang et al.: x has all of the result's, and the sample whose values are used has its share
    of them besides.
    """
    own = rng.dirichlet(rng.fold(key, "weight"), beta, x.shape[0], 2)[:, :1].to(x.dtype)
    keep = own.view(-1, *[1] * (x.dim() - 1))
    change = (1.0 - keep) * (reorder(x, key) - x.detach())
    used = rng.uniform(rng.fold(key, "chance")) < chance
    return x + torch.where(used, change, torch.zeros_like(change))
