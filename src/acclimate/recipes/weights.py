"""`weights=FILE`: a ResNet with its weights, that a recipe starts from instead of the backbone which it brings."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ..experiment import ConfigError
from ..models import checkpoints, encoders
from .record import Recipe, records


@dataclass(frozen=True)
class Weights:
    """A checkpoint that a user gives."""

    file: str
    network: str
    """`resnet18` or `resnet50`."""
    digest: str
    """Of the file's content."""

    @property
    def backbone(self) -> str:
        """The name of the encoder, which stands for this content and no other."""
        return f"{self.network}@{self.file}#{self.digest}"


def weights_of(file: str, recipe: Recipe, scale: str) -> Weights:
    """What a file holds; an error where that is no ResNet-18 or -50, or where the recipe has no use for it."""
    if not recipe.starts:
        raise ConfigError(f"weights={file}: {recipe.name} starts from no weights that could be replaced")
    if scale != "paper":
        raise ConfigError(
            f"weights={file} needs --scale paper: at {scale} scale a small network starts from random weights"
        )
    try:
        found = checkpoints.read(file)
        network = "resnet50" if "layer1.0.conv3.weight" in found else "resnet18"
        given = Weights(file, network, checkpoints.digest(file))
        encoders.load(given.backbone)
    except (OSError, ValueError) as e:
        raise ConfigError(f"weights={file} must be {checkpoints.ALLOWED}, of a ResNet-18 or ResNet-50: {e}") from e
    return given


def digests(value: Any) -> dict[str, str]:
    """The checkpoints that the records inside a value read, and what names the content of each."""
    files: list[str] = []
    for record in records(value):
        named = (*getattr(record, "backbones", ()), getattr(record, "backbone", None))
        files += [b.partition("@")[2].rpartition("#")[0] or b.partition("@")[2] for b in named if _from_file(b)]
        files += [f for f in (getattr(record, "weights", ""),) if isinstance(f, str) and f and hasattr(record, "build")]
    return {file: checkpoints.digest(file) for file in dict.fromkeys(files)}


def _from_file(backbone: Any) -> bool:
    return isinstance(backbone, str) and "@" in backbone
