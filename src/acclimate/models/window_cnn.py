"""A convolutional network for windows of readings: sensors and time series."""

from __future__ import annotations

from dataclasses import dataclass

from torch import Tensor, nn

from ..core import check
from .norms import NormKind, norm_layer


@dataclass(frozen=True)
class WindowCNN:
    """Windows [sensors, time] to classes: convolutions along time, between which it is halved, and the mean over it.

    A pattern counts alike wherever in the window it lies, and any length of at least 2 ** (layers - 1) readings serves.
    """

    widths: tuple[int, ...] = (32, 64, 64)
    kernel: int = 5
    """How many neighbouring readings a layer sees, its own in the middle."""
    norm: NormKind = "none"
    groups: int = 2
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check.choices(self)
        check.whole(self, "kernel", 1)
        check.at_least(self, "groups", 1)
        check.within(self, "dropout", 0.0, 0.999)
        if self.kernel % 2 == 0:
            raise check.FieldError(f"WindowCNN: kernel={self.kernel} must be odd: a reading is in the middle", "kernel")
        check.several(self, "widths")
        if not self.widths or min(self.widths) < 1:
            raise check.FieldError(
                f"WindowCNN: widths={self.widths!r} must name at least one layer of at least one channel", "widths"
            )

    def build(self, shape: tuple[int, ...], num_classes: int) -> nn.Module:
        """A fresh network for windows [sensors, time]."""
        if len(shape) != 2:
            raise ValueError(f"WindowCNN: needs windows [sensors, time], as data=windows gives, got inputs of {shape}")
        if shape[1] < 2 ** (len(self.widths) - 1):
            raise ValueError(
                f"WindowCNN: windows of {shape[1]} readings are too short to be halved between {len(self.widths)} "
                "layers; name fewer in model.widths, raise data.window, or take model=mlp-bn"
            )
        return _WindowCNN(self, shape[0], num_classes)


class _Halved(nn.Module):
    """The larger of every two neighbours in time; an odd last one is left out."""

    def forward(self, x: Tensor) -> Tensor:
        return x[..., : x.shape[-1] // 2 * 2].unflatten(-1, (-1, 2)).amax(-1)


class _WindowCNN(nn.Module):
    """The window is an image of one row, so that clients share the convolutions of images (`core/nn/conv.py`)."""

    def __init__(self, spec: WindowCNN, channels: int, num_classes: int) -> None:
        super().__init__()
        layers: list[nn.Module] = []
        for i, width in enumerate(spec.widths):
            layers += [_Halved()] if i else []
            layers.append(nn.Conv2d(channels, width, (1, spec.kernel), padding=(0, spec.kernel // 2)))
            layers += [*norm_layer(spec.norm, width, spec.groups), nn.ReLU()]
            channels = width
        self.body = nn.Sequential(*layers)
        self.drop = nn.Dropout(spec.dropout) if spec.dropout else nn.Identity()
        self.head = nn.Linear(channels, num_classes)

    def forward(self, x: Tensor) -> tuple[Tensor, Tensor]:
        features = self.drop(self.body(x.unsqueeze(-2)).mean((-2, -1)))
        return features, self.head(features)
