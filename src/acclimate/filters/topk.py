"""Only the largest entries, with their places. Aji & Heafield, EMNLP 2017.

The paper keeps what was not sent and adds it to the next message (error feedback). Filters hold no state between
rounds, so it is dropped here; with small shares expect slower training than the paper's.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

import torch
from torch import Tensor

from ..core import Tree, check, rng
from .codec import Codec


@dataclass(frozen=True)
class TopK(Codec):
    """Sends the largest entries of each tensor by absolute value, eight bytes each; the rest counts as zero."""

    parts: ClassVar[tuple[str, ...]] = ("topk.index", "topk.value", "topk.shape")

    share: float = 0.1
    """The share of each tensor's entries that is sent, rounded up. Tensors that would not shrink are sent whole."""

    def __post_init__(self) -> None:
        if not 0 < self.share <= 1:
            raise check.FieldError(f"TopK: share={self.share!r} must be above 0 and at most 1", "share")

    def encode(self, x: Tensor, key: rng.Key) -> Tree | Tensor:
        count = math.ceil(self.share * x.numel() - 1e-9)
        if count * (4 + x.element_size()) >= x.numel() * x.element_size():
            return x
        flat = x.flatten()
        index = flat.abs().topk(count).indices
        # an empty tensor says the shape and takes no bytes
        return {"topk.index": index.to(torch.int32), "topk.value": flat[index], "topk.shape": x.new_zeros(0, *x.shape)}

    def decode(self, pieces: Tree) -> Tensor:
        index, value, shape = (pieces[p] for p in self.parts)
        size = shape.shape[1:]
        flat = torch.zeros(math.prod(size), dtype=value.dtype, device=value.device)
        whole: Tensor = flat.scatter(0, index.to(torch.int64), value).reshape(size)
        return whole
