"""Model records: `build` makes an nn.Module that returns (features, logits) and ends in a linear `head`."""

from ..core import absent
from ..core.nn.inputs import TokenIds
from ..core.nn.wrapped import Wrap
from .cct import CCT
from .cnn import CNN
from .frozen import Frozen, Projection
from .lora import LoRA
from .mixed_architectures import Mixed
from .mlp import MLP
from .pretrained import Pretrained
from .prompts import Prompts
from .resnet import ResNet20
from .resnets import ResNet
from .stacks import VGG11, AlexNet
from .textnet import TextNet
from .vit import ViT
from .window_cnn import WindowCNN

__all__ = [
    "CCT",
    "CNN",
    "MLP",
    "VGG11",
    "AlexNet",
    "Frozen",
    "LoRA",
    "Mixed",
    "Pretrained",
    "Projection",
    "Prompts",
    "ResNet",
    "ResNet20",
    "TextNet",
    "TokenIds",
    "ViT",
    "WindowCNN",
    "Wrap",
]

absent.explain(__name__)
