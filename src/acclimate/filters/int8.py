"""Eight-bit codes with one scale per tensor. QSGD (Alistarh et al., NeurIPS 2017) with the largest entry as scale."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar, Literal

import torch
from torch import Tensor

from ..core import Tree, check, rng
from .codec import Codec


@dataclass(frozen=True)
class Int8(Codec):
    """Sends each tensor as 255 levels between minus and plus its largest entry, and that scale: a byte a number."""

    parts: ClassVar[tuple[str, ...]] = ("int8.codes", "int8.scale")

    rounding: Literal["stochastic", "nearest"] = "stochastic"
    """Stochastic rounding is right on average; nearest has half the error but may be off in one direction."""

    def __post_init__(self) -> None:
        check.choices(self)

    def encode(self, x: Tensor, key: rng.Key) -> Tree | Tensor:
        if x.numel() * x.element_size() <= x.numel() + 4:  # a scalar would grow
            return x
        scale = x.abs().amax().to(torch.float32) / 127.0
        levels = x / torch.where(scale > 0, scale, torch.ones_like(scale))
        shift = rng.uniform(key, *x.shape) if self.rounding == "stochastic" else 0.5
        return {"int8.codes": (levels + shift).floor().clamp(-127, 127).to(torch.int8), "int8.scale": scale}

    def decode(self, pieces: Tree) -> Tensor:
        codes, scale = pieces["int8.codes"], pieces["int8.scale"]
        restored: Tensor = codes.to(torch.float32) * scale
        return restored
