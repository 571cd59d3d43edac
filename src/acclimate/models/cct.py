"""The compact convolutional transformer of Hassani et al., 'Escaping the Big Data Paradigm', 2021: CCT-4/3x2.

The encoder layers are pre-norm, as in the paper's text: x + attention(norm(x)), then x + mlp(norm(x)). The authors'
code, which FedTHE uses, puts the second normalisation on the residual stream itself, and trains with attention dropout
and stochastic depth of 0.1; both are off here (`dropout` acts on what the two branches add).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check
from .shapes import need_images


@dataclass(frozen=True)
class CCT:
    """Convolutional tokens, learnable positions, a transformer encoder, and a learned pooling over the tokens.

    The default is CCT-4/3x2, FedTHE's: four layers of two heads and width 128, on two 3x3 convolutions.
    """

    layers: int = 4
    heads: int = 2
    dim: int = 128
    mlp_ratio: float = 1.0
    convolutions: int = 2
    stem: int = 64
    """Channels of all convolutions but the last, which has `dim`."""
    kernel: int = 3
    dropout: float = 0.0

    def __post_init__(self) -> None:
        for field in ("layers", "heads", "dim", "convolutions", "stem", "kernel"):
            check.at_least(self, field, 1)
        check.positive(self, "mlp_ratio")
        check.within(self, "dropout", 0.0, 0.999)
        if self.dim % self.heads:
            raise check.FieldError(f"CCT: dim={self.dim} must be a multiple of heads={self.heads}", "dim", "heads")

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        need_images("CCT", shape)
        return _CCT(self, shape, num_classes)


class _Attention(nn.Module):
    """Multi-head self-attention in plain tensor code, which can be vmapped and differentiated twice."""

    def __init__(self, spec: CCT) -> None:
        super().__init__()
        self.heads, self.scale = spec.heads, (spec.dim // spec.heads) ** -0.5
        self.qkv = nn.Linear(spec.dim, 3 * spec.dim, bias=False)
        self.out = nn.Linear(spec.dim, spec.dim)

    def forward(self, x: Tensor) -> Tensor:
        q, k, v = (t.unflatten(-1, (self.heads, -1)).transpose(-3, -2) for t in self.qkv(x).chunk(3, -1))
        weights = (q @ k.mT * self.scale).softmax(-1)
        return self.out((weights @ v).transpose(-3, -2).flatten(-2))


class _Layer(nn.Module):
    def __init__(self, spec: CCT) -> None:
        super().__init__()
        width = max(int(spec.dim * spec.mlp_ratio), 1)
        self.norm1, self.attention = nn.LayerNorm(spec.dim), _Attention(spec)
        self.norm2, self.up, self.down = nn.LayerNorm(spec.dim), nn.Linear(spec.dim, width), nn.Linear(width, spec.dim)
        self.drop1, self.drop2 = (nn.Dropout(spec.dropout) if spec.dropout else nn.Identity() for _ in range(2))

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop1(self.attention(self.norm1(x)))
        return x + self.drop2(self.down(F.gelu(self.up(self.norm2(x)))))


class _CCT(nn.Module):
    def __init__(self, spec: CCT, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        widths = [shape[0], *[spec.stem] * (spec.convolutions - 1), spec.dim]
        tokenizer: list[nn.Module] = []
        for inputs, outputs in zip(widths, widths[1:], strict=False):
            convolution = nn.Conv2d(inputs, outputs, spec.kernel, padding=spec.kernel // 2, bias=False)
            tokenizer += [convolution, nn.ReLU(), nn.MaxPool2d(3, 2, 1)]
        self.tokenizer = nn.Sequential(*tokenizer, nn.Flatten(2))
        with torch.no_grad():
            tokens = self.tokenizer(torch.zeros(1, *shape)).shape[-1]
        self.positions = nn.Parameter(torch.empty(tokens, spec.dim))
        self.layers = nn.Sequential(*(_Layer(spec) for _ in range(spec.layers)))
        self.norm, self.pool = nn.LayerNorm(spec.dim), nn.Linear(spec.dim, 1)
        self.head = nn.Linear(spec.dim, num_classes)
        nn.init.trunc_normal_(self.positions, std=0.2)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight)
            elif isinstance(layer, nn.Linear):
                nn.init.trunc_normal_(layer.weight, std=0.02)
                if layer.bias is not None:
                    nn.init.zeros_(layer.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        tokens = self.norm(self.layers(self.tokenizer(x).mT + self.positions))
        share = self.pool(tokens).softmax(-2)  # how much each token counts
        features = (share * tokens).sum(-2)
        return features, self.head(features)
