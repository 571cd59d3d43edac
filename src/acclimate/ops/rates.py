"""One optimiser per group of parameters: for methods that train several networks in one step."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import Optimizer, Scalar, Tree
from ..core.local import clip


@dataclass(frozen=True)
class PerGroup(Optimizer):
    """Updates `params[name]` with the optimiser of that name; each group is clipped on its own."""

    groups: tuple[tuple[str, Optimizer], ...] = ()
    clip: float | None = None
    """Every group's gradient is scaled down to at most this norm."""

    def scale(self, round: Tensor, step: Tensor) -> Tensor:
        one = torch.ones_like(step, dtype=torch.float32)
        return torch.stack([one * opt.scale(round, step) for _, opt in self.groups])

    def init(self, params: Tree) -> Tree:
        return {name: opt.init(params[name]) for name, opt in self.groups}

    def update(self, grads: Tree, state: Tree, params: Tree, scale: Scalar = 1.0) -> tuple[Tree, Tree]:
        new_params, new_state = {}, {}
        for i, (name, opt) in enumerate(self.groups):
            own = grads[name] if self.clip is None else clip(grads[name], self.clip)
            factor = scale[i] if isinstance(scale, Tensor) else scale
            new_params[name], new_state[name] = opt.update(own, state[name], params[name], factor)
        return new_params, new_state
