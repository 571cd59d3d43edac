"""The vision transformer of Dosovitskiy et al., ICLR 2021: patches of an image as tokens, and a token that answers.

Layers are named as in timm's checkpoints; models/vit_weights.py reads those of torchvision and transformers too.
ViT-S/16 at 224 pixels is `ViT(patch=16, width=384, depth=12, heads=6, size=224)`; the default is for small images.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check
from . import vit_weights
from .attention import attend
from .patches import Patches, tokens_of
from .shapes import need_images
from .trunk_parts import add_norm, apply_mlp, norm_linear


@dataclass(frozen=True)
class ViT:
    """A vision transformer with layer norm before each part, learned positions and a class token."""

    patch: int = 4
    """Side of a patch in pixels."""
    width: int = 32
    """Numbers per token."""
    depth: int = 2
    """Number of blocks."""
    heads: int = 2
    mlp_ratio: float = 4.0
    """Width of a block's hidden layer, by that of a token."""
    size: int | None = None
    """Side to which images are resized (bilinear); None leaves them as they are."""
    weights: str = ""
    """A checkpoint that training starts from (models/checkpoints.py), by timm's, torchvision's or transformers' names.
    A classifier for other classes starts afresh. `FILE#DIGEST` is refused where the file holds other weights."""

    def __post_init__(self) -> None:
        for field in ("patch", "width", "depth", "heads"):
            check.whole(self, field, 1)
        if self.size is not None:
            check.whole(self, "size", 1)
        check.positive(self, "mlp_ratio")
        if self.width % self.heads:
            raise check.FieldError(
                f"ViT: width={self.width} must be a multiple of heads={self.heads}", "width", "heads"
            )

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        need_images("ViT", shape)
        sides = shape[1:] if self.size is None else (self.size, self.size)
        if any(side % self.patch for side in sides):
            raise check.FieldError(
                f"ViT: patch={self.patch} must divide the sides of the images, which are {sides[0]} x {sides[1]}; "
                "choose another patch, or a size to which images are resized",
                "patch",
                "size",
            )
        net = _ViT(self, shape[0], (sides[0] // self.patch) * (sides[1] // self.patch), num_classes)
        if self.weights:
            vit_weights.fill(net, self)
        return net


class _Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv, self.proj = nn.Linear(width, 3 * width), nn.Linear(width, width)

    def forward(self, x: Tensor, tokens: int | None = None) -> Tensor:
        return self.mixed(self.qkv(x), tokens)

    def mixed(self, qkv: Tensor, tokens: int | None = None) -> Tensor:
        """What attention makes of queries, keys and values."""
        out: Tensor = self.proj(attend(qkv, self.heads, tokens).contiguous())
        return out


class _MLP(nn.Module):
    def __init__(self, width: int, hidden: int) -> None:
        super().__init__()
        self.fc1, self.fc2 = nn.Linear(width, hidden), nn.Linear(hidden, width)

    def forward(self, x: Tensor) -> Tensor:
        out: Tensor = self.fc2(F.gelu(self.fc1(x)))
        return out


class _Block(nn.Module):
    def __init__(self, spec: ViT) -> None:
        super().__init__()
        self.norm1, self.attn = nn.LayerNorm(spec.width, 1e-6), _Attention(spec.width, spec.heads)
        self.norm2 = nn.LayerNorm(spec.width, 1e-6)
        self.mlp = _MLP(spec.width, max(int(spec.width * spec.mlp_ratio), 1))

    def forward(self, x: Tensor, d: Tensor | None = None, tokens: int | None = None) -> tuple[Tensor, Tensor]:
        """Of tokens x + d (x where there is no d): what they are before the MLP, and what it adds. The next norm sums
        them, in the same pass. For all tokens, or for the first few, if no one asks for the others."""
        if self.attn._forward_hooks or self.attn._forward_pre_hooks:  # someone looks at its input or its output
            x, h = add_norm(self.norm1, x, d)
            mixed = self.attn(h, tokens)
        else:
            x, qkv = norm_linear(self.norm1, self.attn.qkv, x, d)
            mixed = self.attn.mixed(qkv, tokens)
        x, h = add_norm(self.norm2, x[..., :tokens, :], mixed)
        return x, apply_mlp(self.mlp, h)


class _ViT(nn.Module):
    prompts: nn.Parameter | None

    def __init__(self, spec: ViT, channels: int, patches: int, num_classes: int) -> None:
        super().__init__()
        self.size = spec.size
        self.register_parameter("prompts", None)
        self.cls_token = nn.Parameter(torch.zeros(1, 1, spec.width))
        self.pos_embed = nn.Parameter(torch.zeros(1, patches + 1, spec.width))
        self.patch_embed = Patches(channels, spec.patch, spec.width)
        self.blocks = nn.Sequential(*(_Block(spec) for _ in range(spec.depth)))
        self.norm, self.head = nn.LayerNorm(spec.width, 1e-6), nn.Linear(spec.width, num_classes)
        nn.init.trunc_normal_(self.cls_token, std=0.02)
        nn.init.trunc_normal_(self.pos_embed, std=0.3)  # 0.02 is usual, and a small network then learns slowly
        for layer in self.modules():
            if isinstance(layer, nn.Linear):
                nn.init.xavier_uniform_(layer.weight)
                nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=self.size < x.shape[-1])
        places = self.pos_embed + F.pad(self.cls_token, (0, 0, 0, self.pos_embed.shape[-2] - 1))
        alike = not {"pos_embed", "cls_token"} & {*self._parameters}
        tokens = tokens_of(self.patch_embed, x, places, alike)
        if self.prompts is not None:
            own = self.prompts.expand(*tokens.shape[:-2], -1, -1)
            tokens = torch.cat((tokens[..., :1, :], own, tokens[..., 1:, :]), -2)
        added = None
        for block in self.blocks:  # of what the last one gives, the first token alone is asked for
            tokens, added = block(tokens, added, 1 if block is self.blocks[-1] else None)
        features = add_norm(self.norm, tokens, added)[1][..., 0, :]
        return features, self.head(features)
