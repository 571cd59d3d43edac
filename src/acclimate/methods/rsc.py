"""RSC, representation self-challenging. Huang et al., ECCV 2020, Algorithm 1: learn without what predicts best.

- g = d logit_y / d features: how much each feature speaks for the true class (Eq. 1). The `features` share with the
  largest g is muted (Eq. 2-3).
- Of a batch, only the `samples` share whose true class loses most probability by that is challenged (Eq. 4); the rest
  is trained as it is. Cross-entropy on both (Eq. 5).

The paper mutes positions or channels of the last feature map, at random one or the other. Here it is the vector that
enters the head, which every model has: a network that averages its last map gives all positions the same gradient.
With a linear head, g is the head's row of the true class. Both shares are a third, as in the paper's experiments;
either at 0 is plain training. In a federation each client does this, and models are averaged by examples.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Method, Optimizer, Task, Tree, Work, check, difference, rng, tree
from ..ops.nets import head_of, linear


@dataclass(frozen=True)
class RSC(Method):
    """FedAvg whose local training mutes the features that predict best (Huang et al., ECCV 2020)."""

    features: float = 1 / 3
    """The share of features that is muted."""
    samples: float = 1 / 3
    """The share of a batch whose features are muted."""
    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()

    def __post_init__(self) -> None:
        check.within(self, "features", 0.0, 1.0)
        check.within(self, "samples", 0.0, 1.0)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            out = task.apply(vars, batch["x"], "train", key)
            head = head_of(task, vars)
            keep = self.challenge(tree.map(lambda p: p.detach(), head), out.features.detach(), batch["y"])
            return F.cross_entropy(linear(head, out.features * keep), batch["y"]), out.buffers

        return {"delta": difference(loss, down["vars"], data, self.opt, self.work, key), "n": data["n"]}, mine

    def challenge(self, head: Tree, features: Tensor, y: Tensor) -> Tensor:
        """What each feature of each sample is multiplied with: 0 where it is muted, else 1."""
        count, width = features.shape
        muted = _without_largest(head["weight"][y], round(self.features * width))
        lost = _sure(linear(head, features), y) - _sure(linear(head, features * muted), y)
        spared = _without_largest(lost[None], round(self.samples * count))[0]
        return torch.where(spared[:, None] > 0, torch.ones_like(muted), muted)


def _without_largest(scores: Tensor, count: int) -> Tensor:
    """Ones, and zeros at the `count` largest scores of every row."""
    return torch.ones_like(scores).scatter(-1, scores.topk(count, dim=-1).indices, 0.0)


def _sure(logits: Tensor, y: Tensor) -> Tensor:
    """The true class's probability, per row."""
    return logits.softmax(-1).gather(-1, y[:, None])[:, 0]
