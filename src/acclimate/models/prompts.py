"""Prompt vectors. Jia et al., ECCV 2022 (VPT-shallow): a frozen vision transformer, and learned tokens among its own.

The tokens stand between the class token and those of the image, from the first block on, without positions. The frozen
weights are shared by all clients, as in models/lora.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import nn

from ..core import check
from .lora import OnTrunk, trunk
from .vit import ViT


@dataclass(frozen=True)
class Prompts:
    """A frozen vision transformer with learned prompt tokens (Jia et al., ECCV 2022)."""

    base: ViT = ViT()
    """The model whose weights are frozen; without `weights` a random one, drawn with seed 0 for every experiment."""
    count: int = 8
    """How many tokens are learned."""
    train: tuple[str, ...] = ("head",)
    """What of the base is trained besides: `head`, `norm`, or patterns."""

    def __post_init__(self) -> None:
        check.whole(self, "count", 1)
        if not isinstance(self.base, ViT):
            raise check.FieldError(
                f"Prompts: base={type(self.base).__name__} must be a ViT; for other models use LoRA(base)", "base"
            )

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The frozen model with fresh tokens, and a fresh head where the base has one for other classes."""
        module = self.base.build(shape, num_classes)
        module.prompts = nn.Parameter(nn.init.trunc_normal_(torch.empty(self.count, self.base.width), std=0.3))
        return OnTrunk(self, module, trunk(self.base, shape, num_classes))
