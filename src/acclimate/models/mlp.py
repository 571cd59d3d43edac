"""A multi-layer perceptron."""

from __future__ import annotations

import math
from dataclasses import dataclass

from torch import Tensor, nn

from ..core import check
from .norms import NormKind, norm_layer


@dataclass(frozen=True)
class MLP:
    """Fully connected layers with ReLU; the papers' MLP has two hidden layers of 200."""

    hidden: tuple[int, ...] = (200, 200)
    norm: NormKind = "none"
    groups: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check.choices(self)
        check.at_least(self, "groups", 1)
        check.within(self, "dropout", 0.0, 0.999)
        check.several(self, "hidden")
        if not self.hidden or min(self.hidden) < 1:
            raise check.FieldError(
                f"MLP: hidden={self.hidden!r} must name at least one layer of at least one unit", "hidden"
            )

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for inputs of this shape."""
        return _MLP(self, math.prod(shape), num_classes)


class _MLP(nn.Module):
    def __init__(self, spec: MLP, inputs: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for width in spec.hidden:
            layers += [nn.Linear(inputs, width), *norm_layer(spec.norm, width, spec.groups, flat=True), nn.ReLU()]
            if spec.dropout:
                layers.append(nn.Dropout(spec.dropout))
            inputs = width
        self.body = nn.Sequential(*layers)
        self.head = nn.Linear(inputs, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x.flatten(1))
        return features, self.head(features)
