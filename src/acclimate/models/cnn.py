"""The two-layer convolutional network of the papers."""

from __future__ import annotations

from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core import check
from .norms import NormKind, norm_layer
from .shapes import need_images


@dataclass(frozen=True)
class CNN:
    """Convolution - (norm) - ReLU - max-pool, twice, then one hidden layer.

    FedTHE's CNN is the default with `bias=False`; FedTTA's LeNet, as released, is `hidden=512, padding=2`.
    """

    widths: tuple[int, ...] = (32, 64)
    hidden: int = 64
    kernel: int = 5
    bias: bool = True
    norm: NormKind = "none"
    groups: int = 2
    dropout: float = 0.0
    padding: int = check.later(0)
    """How many rows and columns of zeros surround the inputs of every convolution."""

    def __post_init__(self) -> None:
        check.choices(self)
        check.at_least(self, "hidden", 1)
        check.at_least(self, "kernel", 1)
        check.at_least(self, "groups", 1)
        check.whole(self, "padding", 0)
        check.within(self, "dropout", 0.0, 0.999)
        check.several(self, "widths")
        if not self.widths or min(self.widths) < 1:
            raise check.FieldError(
                f"CNN: widths={self.widths!r} must name at least one layer of at least one channel", "widths"
            )

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        need_images("CNN", shape)
        return _CNN(self, shape, num_classes)


class _CNN(nn.Module):
    def __init__(self, spec: CNN, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        channels, side = shape[0], min(shape[1:])
        for width in spec.widths:
            layers.append(nn.Conv2d(channels, width, spec.kernel, padding=spec.padding, bias=spec.bias))
            # the maximum of what ReLU gives is ReLU of the maximum, at a quarter of the work
            layers += [*norm_layer(spec.norm, width, spec.groups), nn.MaxPool2d(2), nn.ReLU()]
            channels, side = width, (side + 2 * spec.padding - spec.kernel + 1) // 2
            if side < 1:
                raise ValueError(f"CNN: images of shape {shape} are too small for {spec}; use a smaller kernel")
        layers.append(nn.Flatten())
        with torch.no_grad():
            flat = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).shape[1]
        layers += [nn.Linear(flat, spec.hidden, bias=spec.bias), nn.ReLU()]
        if spec.dropout:
            layers.append(nn.Dropout(spec.dropout))
        self.body = nn.Sequential(*layers).train()
        self.head = nn.Linear(spec.hidden, num_classes, bias=spec.bias)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)
