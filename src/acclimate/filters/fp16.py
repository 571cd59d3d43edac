"""Half precision: two bytes a number."""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Tree, rng
from .codec import Codec


@dataclass(frozen=True)
class FP16(Codec):
    """Sends float16, about three decimal digits. Above 65,504 it is infinite, and the round stops and says so."""

    parts: ClassVar[tuple[str, ...]] = ("fp16.values",)

    def encode(self, x: Tensor, key: rng.Key) -> Tree | Tensor:
        return {"fp16.values": x.to(torch.float16)} if x.element_size() > 2 else x

    def decode(self, pieces: Tree) -> Tensor:
        values: Tensor = pieces["fp16.values"]
        return values.to(torch.float32)
