"""A data set of images as one of features: encoded once by frozen encoders, kept on disk, trained on in seconds."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol, runtime_checkable

import torch
from torch import Tensor

from ..core import check
from ..ops import disk_cache
from ..ops.hashing import content_hash
from .dataset import Dataset
from .digits import Digits
from .world import Examples
from .wrapping import refuse_ignored


@runtime_checkable
class Encoder(Protocol):
    """What turns images into features, such as `models.Frozen` (data sets and models do not import each other)."""

    def parts(self) -> tuple[tuple[str, Callable[[Tensor], Tensor]], ...]:
        """Its encoders: a name that tells each from all others, and its features [B, d] of images [B, C, H, W]."""
        ...

    def fuse(self, parts: Sequence[Tensor]) -> Tensor:
        """The parts' features as one vector per image."""
        ...


@dataclass(frozen=True)
class Features(Dataset):
    """The features of another data set, cached on disk for every part of `encoder` and set of images.

    Of `data` only the examples are taken; partition, clients, splits and seed are this record's own.
    """

    data: Dataset = Digits()
    """The data set that the images come from."""
    encoder: Encoder | None = None
    """The encoder of the images, e.g. `models.Frozen(backbones=("efficientnet-lite0",))`."""
    batch: int = 128
    """How many images are encoded at once."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.at_least(self, "batch", 1)
        for name in ("angles", "new_angles", "augment"):
            if getattr(self, name) or getattr(self.data, name):
                raise ValueError(f"Features: {name} changes images, but training sees features; leave it empty")
        refuse_ignored(self, self.data)

    def load(self) -> Examples:
        if self.encoder is None:
            raise ValueError("Features: encoder=None must be an encoder, such as models.Frozen(backbones=(...))")
        images = self.data.load()
        return replace(images, x=self._features(images.x))

    def for_training(self, examples: Examples, rows: Tensor) -> Examples:
        if type(self.data).for_training is Dataset.for_training:  # images as they are: spare reading them again
            return examples
        x, own = examples.x.clone(), torch.unique(rows)
        x[own] = self._features(self.data.for_training(self.data.load(), own).x[own])
        return replace(examples, x=x)

    def _features(self, x: Tensor) -> Tensor:
        assert self.encoder is not None
        return self.encoder.fuse([self._encoded(x, name, encode) for name, encode in self.encoder.parts()])

    def official_test(self) -> Tensor | None:
        return self.data.official_test()

    def _encoded(self, x: Tensor, name: str, encode: Callable[[Tensor], Tensor]) -> Tensor:
        def make() -> Tensor:
            done, start = list[Tensor](), time.monotonic()
            for chunk in x.split(self.batch):
                done.append(encode(chunk))
                _show(len(done) * self.batch, len(x), start)
            return torch.cat(done)

        return disk_cache.remembered("features", content_hash("features/1", name, x), make, least=1)


def _show(done: int, total: int, start: float) -> None:
    """One line on a terminal that tells how far a long encoding is."""
    seconds = time.monotonic() - start
    if seconds < 2 or not sys.stderr.isatty():
        return
    end = "\n" if done >= total else ""
    left = seconds * max(total - done, 0) / done
    print(f"\rencoding images: {min(done, total)} of {total}, {left:.0f} s left ", end=end, file=sys.stderr, flush=True)
