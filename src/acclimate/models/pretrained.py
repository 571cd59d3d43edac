"""A model that starts from a pre-trained encoder (models/encoders.py lists them) and trains all of it."""

from __future__ import annotations

import copy
from dataclasses import dataclass, replace
from functools import lru_cache
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check
from ..core.nn.depthwise import PureDepthwise2d
from ..core.nn.layers import any_order
from .encoders import Backbone, column, load


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained encoder and a fresh linear head, all of it trained.

    EfficientNet's blocks are never skipped at random: that draws from torch's global generator and not from a key.
    """

    backbone: str | nn.Module = "efficientnet-lite0"
    """A name of models/encoders.py, or a module from pixels in 0..1 to features [B, d]."""
    size: int | None = None
    """Side to which images are resized (bilinear) before they are encoded; None leaves them as they are."""
    momentum: float = 0.1
    """How far batch norm's running statistics follow a batch. EfficientNet brings 0.01, for epochs of a million images;
    a client has a few steps."""
    mean: tuple[float, ...] = ()
    """The data set's own mean, which is put back before the encoder's is taken out; empty takes the task's."""
    std: tuple[float, ...] = ()
    """The data set's own deviation, likewise."""

    def __post_init__(self) -> None:
        if self.size is not None:
            check.at_least(self, "size", 1)
        check.within(self, "momentum", 0.0, 1.0)
        if len(self.mean) != len(self.std):
            raise check.FieldError(
                f"Pretrained: mean={self.mean} and std={self.std} need one entry per channel each", "mean", "std"
            )

    def for_inputs(self, mean: tuple[float, ...], std: tuple[float, ...]) -> Pretrained:
        """The same for inputs that are normalised so, unless it says otherwise."""
        return self if self.mean else replace(self, mean=mean, std=std)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The encoder with the weights that it comes with, and a fresh head, for images of this shape."""
        encoder = _loaded(self.backbone) if isinstance(self.backbone, str) else Backbone(self.backbone)
        return _Tuned(self, encoder, shape, num_classes)


@lru_cache(maxsize=8)
def _loaded(name: str) -> Backbone:
    """Read once: a task builds its model several times."""
    return load(name)


class _Tuned(nn.Module):
    """A trainable copy of an encoder behind the normalisation that it expects, and a linear head."""

    def __init__(self, spec: Pretrained, encoder: Backbone, shape: tuple[int, ...], num_classes: int) -> None:
        super().__init__()
        self.encoder = trainable(copy.deepcopy(encoder.module), spec.momentum)
        self.size, self.channels = spec.size, max(len(encoder.mean), shape[0])
        self.scale = rescaling((spec.mean, spec.std), (encoder.mean, encoder.std), self.channels)
        with torch.no_grad():
            features = self.eval().features(torch.zeros(2, *shape))
        if features.dim() != 2:
            raise ValueError(f"Pretrained: its backbone must give features [batch, width], not {tuple(features.shape)}")
        self.train().requires_grad_(True)
        self.head = nn.Linear(features.shape[-1], num_classes)

    def features(self, x: Tensor) -> Tensor:
        """Features [B, d] of images as the data set normalises them; grey images are shown as RGB."""
        if x.shape[1] != self.channels:
            x = x.expand(-1, self.channels, -1, -1)
        if self.size is not None and x.shape[-2:] != (self.size, self.size):
            x = F.interpolate(x, (self.size, self.size), mode="bilinear", antialias=self.size < x.shape[-1])
        if self.scale is not None:
            factor, summand = (column(values, x) for values in self.scale)
            x = x * factor + summand
        features: Tensor = self.encoder(x)
        return features

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return features, self.head(features)


Moments = tuple[tuple[float, ...], tuple[float, ...]]
"""Mean and deviation per channel; empty for pixels in 0..1."""


def rescaling(given: Moments, wanted: Moments, channels: int) -> Moments | None:
    """Factors and summands per channel that turn inputs normalised in one way into the other; None: nothing to do."""
    if given == wanted:
        return None
    pixels = (0.0,) * channels, (1.0,) * channels
    (mean, std), (to_mean, to_std) = ((m if m[0] else pixels) for m in (given, wanted))
    both = list(zip(_wide(mean, channels), _wide(std, channels), to_mean, to_std, strict=True))
    return tuple(s / to_s for _, s, _, to_s in both), tuple((m - to_m) / to_s for m, _, to_m, to_s in both)


def _wide(values: tuple[float, ...], channels: int) -> tuple[float, ...]:
    """A grey image's one value for every channel that it is shown in."""
    return values * channels if len(values) == 1 else values


def trainable(module: nn.Module, momentum: float) -> nn.Module:
    """The encoder, changed in place to layers that the core can vectorise over clients, and that draw nothing."""
    networks = []
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = momentum
        elif isinstance(layer, nn.Conv2d) and hasattr(layer, "static_padding"):
            module.set_submodule(name, _usual(layer))
        elif hasattr(layer, "_global_params"):  # EfficientNet
            layer._global_params = layer._global_params._replace(drop_connect_rate=0.0)
            layer._dropout = nn.Identity()  # stands before its own classifier, and would ask for keys
            networks.append(layer)
    for network in networks:  # of which nothing minds the order in memory
        any_order(network, by_kernel=True)
        for block in (network, *network._blocks):
            _activate(block)
    return module


class _Active(nn.BatchNorm2d):
    """Batch norm with the activation after it, so that both can be one pass: `purify` knows these by their names."""

    act: nn.Module
    drop: nn.Module

    def forward(self, input: Tensor) -> Tensor:
        y: Tensor = self.act(super().forward(input))
        return y


def _activate(block: Any) -> None:
    """Put ReLU6 into the norms of an EfficientNet's block, or of its ends, that it always follows."""
    if type(block._swish) is not nn.ReLU6 or getattr(block, "has_se", False):
        return
    for name in ("_bn0", "_bn1"):
        if type(layer := getattr(block, name, None)) is nn.BatchNorm2d:
            layer.__class__, layer.act, layer.drop = _Active, nn.ReLU6(), nn.Identity()
    block._swish = nn.Identity()


def _usual(layer: Any) -> nn.Module:
    """torch's own convolution instead of EfficientNet's, which carries its padding as a module."""
    left, right, top, bottom = getattr(layer.static_padding, "padding", (0, 0, 0, 0))
    even = left == right and top == bottom
    usual = nn.Conv2d(
        layer.in_channels,
        layer.out_channels,
        layer.kernel_size,
        tuple(layer.stride),
        (top, left) if even else 0,
        groups=layer.groups,
        bias=layer.bias is not None,
    )
    usual.weight, usual.bias = layer.weight, layer.bias
    return usual if even else _Padded(usual, (left, right, top, bottom))


class _Padded(nn.Module):
    """A convolution of the image with zeros around it, more of them on one side than on the other."""

    def __init__(self, conv: nn.Conv2d, sides: tuple[int, int, int, int]) -> None:
        super().__init__()
        self.conv, self.sides = conv, sides

    def forward(self, x: Tensor) -> Tensor:
        if isinstance(self.conv, PureDepthwise2d):
            return self.conv.padded(x, self.sides)
        y: Tensor = self.conv(F.pad(x, self.sides))
        return y
