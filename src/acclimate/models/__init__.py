"""Model records: `build` makes an nn.Module that returns (features, logits) and ends in a linear `head`."""

from .cct import CCT
from .cnn import CNN
from .frozen import Frozen, Projection
from .mlp import MLP
from .resnet import ResNet20

__all__ = [
    "CCT",
    "CNN",
    "MLP",
    "Frozen",
    "Projection",
    "ResNet20",
]
