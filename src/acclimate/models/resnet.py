"""The residual networks for small images of He et al., CVPR 2016, Sec. 4.2: three stages of n basic blocks."""

from __future__ import annotations

from dataclasses import dataclass

import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check
from ..core.nn.layers import any_order, norm_relu
from . import checkpoints
from .norms import NormKind, norm_layer
from .shapes import need_images


@dataclass(frozen=True)
class ResNet20:
    """ResNet-20 with parameter-free shortcuts; `norm="group"` with 2 groups is FedTHE's ResNet20-GN.

    Parameter names are those of the widely used CIFAR-10 checkpoints, which `weights` reads (`norm="batch"`, width 1).
    """

    norm: NormKind = "group"
    groups: int = 2
    width: float = 1.0
    """The factor of the stages' 16, 32 and 64 channels."""
    weights: str = ""
    """A checkpoint that training starts from (models/checkpoints.py). A classifier for other classes starts afresh."""

    def __post_init__(self) -> None:
        check.choices(self)
        check.positive(self, "width")
        check.at_least(self, "groups", 1)

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for images [channels, height, width]."""
        need_images("ResNet20", shape)
        net = _ResNet(self, shape[0], num_classes)
        if self.weights:
            checkpoints.fill(net, checkpoints.read(self.weights), self.weights, net.head_name)
        return net


def _norm(spec: ResNet20, width: int) -> nn.Module:
    layers = norm_layer(spec.norm, width, spec.groups)
    return layers[0] if layers else nn.Identity()


class _Block(nn.Module):
    def __init__(self, spec: ResNet20, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = _norm(spec, width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = _norm(spec, width)
        self.stride, self.extra = stride, width - inputs

    def forward(self, x: Tensor) -> Tensor:
        out = self.conv2(norm_relu(self.bn1, self.conv1(x)))
        if self.stride > 1 or self.extra:  # option A: subsample, and pad the new channels with zeros on both sides
            x = F.pad(
                x[:, :, :: self.stride, :: self.stride], (0, 0, 0, 0, self.extra // 2, self.extra - self.extra // 2)
            )
        return norm_relu(self.bn2, out, x)


class _ResNet(nn.Module):
    head_name = "linear"

    def __init__(self, spec: ResNet20, channels: int, num_classes: int) -> None:
        super().__init__()
        widths = [max(int(w * spec.width), 1) for w in (16, 32, 64)]
        self.conv1 = nn.Conv2d(channels, widths[0], 3, 1, 1, bias=False)
        self.bn1 = _norm(spec, widths[0])
        self.layer1 = self._stage(spec, widths[0], widths[0], 1)
        self.layer2 = self._stage(spec, widths[0], widths[1], 2)
        self.layer3 = self._stage(spec, widths[1], widths[2], 2)
        self.linear = nn.Linear(widths[2], num_classes)
        any_order(self)
        for layer in self.modules():
            if isinstance(layer, nn.Conv2d | nn.Linear):
                nn.init.kaiming_normal_(layer.weight)

    @staticmethod
    def _stage(spec: ResNet20, inputs: int, width: int, stride: int) -> nn.Sequential:
        blocks = [_Block(spec, inputs, width, stride)]
        return nn.Sequential(*blocks, *(_Block(spec, width, width, 1) for _ in range(2)))

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        out = norm_relu(self.bn1, self.conv1(x))
        features = self.layer3(self.layer2(self.layer1(out))).mean((2, 3))
        return features, self.linear(features)
