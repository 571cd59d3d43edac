"""A data set whose images carry noise: FedPCL perturbs prototypes or, for comparison, pictures (its Table 15)."""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from ..core import check, rng
from ..ops.noise import Kind, perturbed
from .world import Examples
from .wrapping import Wrapper


@dataclass(frozen=True)
class Noisy(Wrapper):
    """Another data set's images x as (1 - p) x + p e, with noise e of scale s; the same noise in every run.

    Of `data` the images are taken, and its mean and std where this record has none. Everything else (partition,
    clients, splits, seed, fraction, angles and so on) is set on this record, and refused on `data`. Brightness is
    counted from 0 to 1, so s = 0.2 is a fifth of the range.
    """

    kind: Kind = "laplace"
    s: float = 0.05
    p: float = 0.1

    def __post_init__(self) -> None:
        super().__post_init__()
        check.choices(self)
        check.at_least(self, "s", 0.0)
        check.within(self, "p", 0.0, 1.0)

    def load(self) -> Examples:
        images = super().load()
        key = rng.fold(rng.key(0), "noisy", self.kind)
        parts = [self._noisy(x, rng.fold(key, i)) for i, x in enumerate(images.x.split(1024))]
        return replace(images, x=torch.cat(parts))

    def _noisy(self, x: Tensor, key: rng.Key) -> Tensor:
        if x.dtype != torch.uint8:
            return perturbed(x, key, self.kind, self.s, self.p)
        changed = perturbed(x.to(torch.float32) / 255.0, key, self.kind, self.s, self.p)
        return (changed * 255.0).round().clamp(0.0, 255.0).to(torch.uint8)
