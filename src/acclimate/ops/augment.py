"""Random views of images, as keyed tensor code that runs under `vmap`."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import check, rng


def flip(x: Tensor, key: rng.Key) -> Tensor:
    """Each image mirrored left to right, or not, with equal chance."""
    turn = rng.bernoulli(key, 0.5, x.shape[0]).view(-1, *[1] * (x.dim() - 1))
    return torch.where(turn, x.flip(-1), x)


def shift_crop(x: Tensor, key: rng.Key, pad: int) -> Tensor:
    """Each image cropped back to its size at a random place of its zero-padded self."""
    b, _, h, w = x.shape
    down, right = (rng.randint(rng.fold(key, i), 0, 2 * pad + 1, b) for i in range(2))
    padded = F.pad(x, (pad, pad, pad, pad))
    rows = down[:, None] + torch.arange(h, device=x.device)
    columns = right[:, None] + torch.arange(w, device=x.device)
    each = torch.arange(b, device=x.device)[:, None, None]
    return padded.movedim(1, -1)[each, rows[:, :, None], columns[:, None, :]].movedim(-1, 1)


@dataclass(frozen=True)
class FlipCrop:
    """The usual augmentation of small images: random flip, and random crop after padding with `pad` zeros."""

    pad: int = 4

    def __post_init__(self) -> None:
        check.at_least(self, "pad", 0)

    def views(self, x: Tensor, key: rng.Key) -> Tensor:
        """One random view of every image."""
        x = flip(x, rng.fold(key, "flip"))
        return shift_crop(x, rng.fold(key, "crop"), self.pad) if self.pad else x
