"""`weights=FILE`: a ResNet with its weights, that a recipe starts from instead of the backbone which it brings.

Recipes with several backbones (`Recipe.takes`) read one file for each from a folder: `weights=FOLDER`. The first must
be there; cells that need one which is not are left out.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..experiment import ConfigError
from ..models import checkpoints, encoders
from .record import Recipe, records


@dataclass(frozen=True)
class Weights:
    """A checkpoint that a user gives, or a folder of several."""

    file: str
    network: str
    """`resnet18` or `resnet50`."""
    digest: str
    """Of the file's content."""
    parts: tuple[Weights, ...] = ()
    """The files of a folder."""

    @property
    def backbone(self) -> str | tuple[str, ...]:
        """The name of the encoder, which stands for this content and no other; of a folder those of its files."""
        return tuple(part.name for part in self.parts) if self.parts else self.name

    @property
    def name(self) -> str:
        """`resnet18@FILE#DIGEST`; without the digest where there is no such file."""
        return f"{self.network}@{self.file}" + (f"#{self.digest}" if self.digest else "")


def weights_of(file: str, recipe: Recipe, scale: str) -> Weights:
    """What a file or folder holds; an error where that is no ResNet, or where the recipe has no use for it."""
    if not recipe.starts:
        raise ConfigError(f"weights={file}: {recipe.name} starts from no weights that could be replaced")
    if scale != "paper":
        raise ConfigError(
            f"weights={file} needs --scale paper: at {scale} scale a small network starts from random weights"
        )
    if not recipe.takes:
        return _checked(file)
    if not Path(file).expanduser().is_dir():
        names = ", ".join(f"{name}.safetensors" for name in recipe.takes)
        raise ConfigError(f"weights={file} must be a folder with {names}, which {recipe.name} takes")
    first, *more = [(Path(file) / f"{name}.safetensors").as_posix() for name in recipe.takes]
    there = {f: _checked(f) for f in (first, *(m for m in more if Path(m).expanduser().exists()))}
    networks, contents = dict.fromkeys(p.network for p in there.values()), (p.digest for p in there.values())
    parts = tuple(there.get(f, Weights(f, there[first].network, "")) for f in (first, *more))
    return Weights(file, "-".join(networks), "-".join(contents), parts)


def _checked(file: str) -> Weights:
    """A file that is there and holds a ResNet."""
    try:
        found = checkpoints.read(file)
        network = "resnet50" if "layer1.0.conv3.weight" in found else "resnet18"
        given = Weights(file, network, checkpoints.digest(file))
        encoders.load(given.name)
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
