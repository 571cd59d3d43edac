"""Sharpness-aware losses: the loss at the worst point near the parameters (Foret et al., ICLR 2021)."""

from __future__ import annotations

from torch import Tensor
from torch.func import grad

from ..core import Loss, Tree, rng, tree


def sharp(loss: Loss, rho: float) -> Loss:
    """The loss at `rho` uphill from the parameters, the way there being a constant: its gradient is the one there.

    Buffers are those of the parameters themselves. The same batch and key serve both passes.
    """

    def worst(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        here = tree.map(lambda p: p.detach(), vars["params"])
        slope, buffers = grad(lambda p: loss({**vars, "params": p}, batch, key), has_aux=True)(here)
        up = tree.scale(slope, rho / (tree.norm(slope) + 1e-12))
        value, _ = loss({**vars, "params": tree.add(vars["params"], up)}, batch, key)
        return value, buffers

    return worst
