"""ResNet-18 and ResNet-50 (He et al., CVPR 2016, Table 1), with the layer names of the usual published checkpoints."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from torch import Tensor, nn

from ..core import check
from ..core.nn.layers import any_order, norm_relu
from . import checkpoints
from .shapes import need_images


@dataclass(frozen=True)
class ResNet:
    """A residual network with batch norm in four stages, for images of any size and number of channels.

    Names are `conv1`, `bn1`, `layer1.0.conv1`, ..., `fc`. ResNet-50 strides in the 3 x 3 convolution, as published
    checkpoints do.
    """

    depth: Literal[18, 50] = 18
    stem: Literal["imagenet", "small"] = "imagenet"
    """How images come in: 7 x 7 with stride 2 and pooling, or for small images 3 x 3 at full size."""
    weights: str = ""
    """A checkpoint that training starts from (models/checkpoints.py). A classifier for other classes starts afresh."""

    def __post_init__(self) -> None:
        check.choices(self)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        need_images("ResNet", shape)
        net = _ResNet(self, shape[0], num_classes)
        if self.weights:
            checkpoints.fill(net, checkpoints.read(self.weights), self.weights, net.head_name)
        return net


class BasicBlock(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut, its layers named as in the usual checkpoints."""

    growth = 1

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample = _shortcut(inputs, width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        return norm_relu(self.bn2, self.conv2(out), self.downsample(x))


class _Bottleneck(nn.Module):
    """A 3 x 3 convolution between two 1 x 1 ones, the last four times as wide, beside a shortcut."""

    growth = 4

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, stride, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.conv3 = nn.Conv2d(width, 4 * width, 1, bias=False)
        self.bn3 = nn.BatchNorm2d(4 * width)
        self.downsample = _shortcut(inputs, 4 * width, stride)

    def forward(self, x: Tensor) -> Tensor:
        out = norm_relu(self.bn1, self.conv1(x))
        out = norm_relu(self.bn2, self.conv2(out))
        return norm_relu(self.bn3, self.conv3(out), self.downsample(x))


def _shortcut(inputs: int, outputs: int, stride: int) -> nn.Module:
    if stride == 1 and inputs == outputs:
        return nn.Identity()
    return nn.Sequential(nn.Conv2d(inputs, outputs, 1, stride, bias=False), nn.BatchNorm2d(outputs))


class _ResNet(nn.Module):
    head_name = "fc"

    def __init__(self, spec: ResNet, channels: int, num_classes: int) -> None:
        super().__init__()
        block: type[BasicBlock] | type[_Bottleneck] = BasicBlock if spec.depth == 18 else _Bottleneck
        large = spec.stem == "imagenet"
        self.conv1 = (
            nn.Conv2d(channels, 64, 7, 2, 3, bias=False) if large else nn.Conv2d(channels, 64, 3, 1, 1, bias=False)
        )
        self.bn1 = nn.BatchNorm2d(64)
        self.maxpool = nn.MaxPool2d(3, 2, 1) if large else nn.Identity()
        inputs = 64
        for i, repeats in enumerate((2, 2, 2, 2) if spec.depth == 18 else (3, 4, 6, 3)):
            width, blocks = 64 * 2**i, []
            for j in range(repeats):
                blocks.append(block(inputs, width, 2 if i > 0 and j == 0 else 1))
                inputs = width * block.growth
            self.add_module(f"layer{i + 1}", nn.Sequential(*blocks))
        self.fc = nn.Linear(inputs, num_classes)
        any_order(self)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d):
                nn.init.kaiming_normal_(layer.weight, mode="fan_out", nonlinearity="relu")

    def features(self, x: Tensor) -> Tensor:
        x = self.maxpool(norm_relu(self.bn1, self.conv1(x)))
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        return x.mean((2, 3))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.features(x)
        return features, self.fc(features)


class ResNet50Encoder(_ResNet):
    """ResNet-50 without its classifier: 2048 features."""

    def __init__(self) -> None:
        super().__init__(ResNet(depth=50), 3, 1)
        del self.fc

    def forward(self, x: Tensor) -> Tensor:  # type: ignore[override]
        return self.features(x)
