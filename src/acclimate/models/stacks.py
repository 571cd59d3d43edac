"""Plain stacks of convolutions: AlexNet- and VGG11-shaped networks, sized for the images at hand."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor, nn

from ..core import check
from .norms import NormKind, norm_layer
from .shapes import need_images


@dataclass(frozen=True)
class AlexNet:
    """Five convolutions and two hidden layers, shaped as Krizhevsky et al., NeurIPS 2012; for images from 63 pixels on.

    `norm="batch"` is the variant that federated learning over domains often takes. The paper's hidden layers have 4096
    units.
    """

    hidden: int = 1024
    norm: NormKind = "none"
    dropout: float = 0.5

    def __post_init__(self) -> None:
        _check(self)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        first, second = (64, 11, 4, 2), (192, 5, 1, 2)
        rest = ((384, 3, 1, 1), (256, 3, 1, 1), (256, 3, 1, 1))
        return _Stack(self, shape, num_classes, ((first,), (second,), rest), (3, 2))


@dataclass(frozen=True)
class VGG11:
    """Eight 3 x 3 convolutions and two hidden layers, shaped as Simonyan & Zisserman, ICLR 2015; from 32 pixels on.

    The paper's configuration A has no normalisation and hidden layers of 4096 units.
    """

    hidden: int = 512
    norm: NormKind = "batch"
    dropout: float = 0.5

    def __post_init__(self) -> None:
        _check(self)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        widths = ((64,), (128,), (256, 256), (512, 512), (512, 512))
        stages = tuple(tuple((w, 3, 1, 1) for w in stage) for stage in widths)
        return _Stack(self, shape, num_classes, stages, (2, 2))


def _check(spec: AlexNet | VGG11) -> None:
    check.at_least(spec, "hidden", 1)
    check.choices(spec)
    check.within(spec, "dropout", 0.0, 0.999)


class _Stack(nn.Module):
    """Stages of convolutions (width, kernel, stride, padding), each pooled, then two hidden layers and the head."""

    def __init__(
        self,
        spec: AlexNet | VGG11,
        shape: tuple[int, ...],
        num_classes: int,
        stages: Sequence[Sequence[tuple[int, int, int, int]]],
        pool: tuple[int, int],
    ) -> None:
        super().__init__()
        who = type(spec).__name__
        need_images(who, shape)
        layers: list[nn.Module] = []
        channels = shape[0]
        for stage in stages:
            for width, kernel, stride, padding in stage:
                layers.append(nn.Conv2d(channels, width, kernel, stride, padding))
                layers += [*norm_layer(spec.norm, width, 2), nn.ReLU()]
                channels = width
            layers.append(nn.MaxPool2d(*pool))
        try:
            with torch.no_grad():
                flat = nn.Sequential(*layers).eval()(torch.zeros(1, *shape)).flatten(1).shape[1]
        except RuntimeError as e:
            raise ValueError(f"{who}: images of shape {shape} are too small for it") from e
        layers.append(nn.Flatten())
        for inputs in (flat, spec.hidden):
            layers += [nn.Dropout(spec.dropout), nn.Linear(inputs, spec.hidden), nn.ReLU()]
        self.body = nn.Sequential(*layers).train()
        self.head = nn.Linear(spec.hidden, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.body(x)
        return features, self.head(features)
