"""A small network for texts: an embedding, blocks that look at neighbours, and the largest value of each feature.

A block is a convolution along the text, written as one product over windows: under `vmap` that is a batched product,
where a convolution would be a grouped one.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check


@dataclass(frozen=True)
class TextNet:
    """Token ids [length] to classes: `layers` residual blocks over windows of neighbours, and the maximum over places.

    Id 0 is padding, and counts nowhere. The default is for texts as bytes.
    """

    tokens: int = 257
    """How many ids the embedding has; bytes and their padding are 257."""
    dim: int = 32
    layers: int = 2
    window: int = 5
    """How many neighbouring places a block sees, itself in the middle."""
    norm: Literal["layer", "batch", "none"] = "layer"
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for field in ("tokens", "dim", "layers", "window"):
            check.whole(self, field, 1)
        if self.window % 2 == 0:
            raise check.FieldError(f"TextNet: window={self.window} must be odd: a place has a middle", "window")
        check.choices(self)
        check.within(self, "dropout", 0.0, 0.999)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for ids [length]."""
        if len(shape) != 1:
            raise ValueError(f"TextNet: needs token ids [length], as data=text gives, got inputs of shape {shape}")
        return _TextNet(self, num_classes)


def _norm(spec: TextNet) -> nn.Module:
    norms = {"layer": nn.LayerNorm, "batch": nn.BatchNorm1d}
    return norms[spec.norm](spec.dim) if spec.norm != "none" else nn.Identity()


class _Block(nn.Module):
    def __init__(self, spec: TextNet) -> None:
        super().__init__()
        self.reach, self.batch = spec.window // 2, spec.norm == "batch"
        self.norm = _norm(spec)
        self.look = nn.Linear(spec.window * spec.dim, spec.dim)
        self.drop = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()

    def forward(self, x: Tensor, real: Tensor) -> Tensor:
        seen = F.relu(self.norm(x.mT).mT if self.batch else self.norm(x)) * real
        wide = F.pad(seen, (0, 0, self.reach, self.reach))
        length = x.shape[-2]
        near = torch.cat([wide[..., i : i + length, :] for i in range(2 * self.reach + 1)], -1)
        return x + self.drop(self.look(near)) * real


class _TextNet(nn.Module):
    def __init__(self, spec: TextNet, num_classes: int) -> None:
        super().__init__()
        self.embedding = nn.Embedding(spec.tokens, spec.dim)
        self.blocks = nn.ModuleList(_Block(spec) for _ in range(spec.layers))
        self.norm = _norm(spec)
        self.head = nn.Linear(spec.dim, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if x.is_floating_point():
            raise ValueError("TextNet: needs token ids (whole numbers), and these inputs are numbers; use model=mlp")
        real = (x != 0).unsqueeze(-1).to(self.head.weight.dtype)
        try:
            at = self.embedding(x) * real
        except IndexError:
            known = self.embedding.num_embeddings
            raise ValueError(
                f"TextNet: tokens={known} is too few: the data has ids up to {int(x.max())}; set model.tokens="
                f"{int(x.max()) + 1} or more, the size of the tokenizer, or leave data.tokenizer out for bytes"
            ) from None
        for block in self.blocks:
            at = block(at, real)
        features: Tensor = self.norm(F.relu(at).amax(-2))  # padding is 0 and never the largest
        return features, self.head(features)
