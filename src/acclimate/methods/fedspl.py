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

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor

from ..core import SGD, Method, Optimizer, Task, Tree, Work, check, rng, train, tree
from ..ops.reorder import mixed, restyled


@dataclass(frozen=True)
class FedSPL(Method):
    """FedAvg whose features take over each other's values; deploy with `MBSL` (Liang et al., AAAI 2025)."""

    opt: Optimizer = SGD(lr=0.05)
    work: Work = Work()
    after: tuple[str, ...] = ()
    """Modules, by name or pattern, whose outputs are changed; none: the model's first two sizes of feature maps."""
    variant: Literal["paper", "released"] = "paper"

    def __post_init__(self) -> None:
        check.choices(self)

    def client(self, task: Task, down: Tree, mine: Tree, data: Tree, key: rng.Key) -> tuple[Tree, Tree]:
        places = task.places(self.after) if self.after else task.stages[:2]

        def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
            change = {name: self._change(rng.fold(key, "place", i)) for i, name in enumerate(places)}
            out = task.apply(vars, batch["x"], "train", key, change)
            return F.cross_entropy(out.logits, batch["y"]), out.buffers

        received = down["vars"]
        w = train(loss, received, data, self.opt, self.work, key)
        return {"delta": tree.sub(w, received), "n": data["n"]}, mine

    def _change(self, key: rng.Key) -> Callable[[Tensor], Tensor]:
        if self.variant == "released":
            return lambda x: mixed(x, key, chance=0.5, beta=0.1)
        return lambda x: restyled(x, key)
