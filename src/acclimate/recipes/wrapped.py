"""Corrupted images as released code hands them on: a defect, kept here so that a paper's numbers can be compared.

FedTHE's code corrupts images that are bytes. FedPCL's loader scales digits to -1..1 first. Behind that loader, the
corruptions read 255 times a value as a byte, in which negative values wrap around, and they give images in 0..1, which
nothing scales again. FedICON's first author wrote the loader, and FedICON corrupts as FedTHE does. No other stream of
acclimate does either: everywhere else images are corrupted as they are, and scaled as those of training.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import Any

import torch
from torch import Tensor

from ..core import rng
from ..experiment.names import allow
from ..shifts import Corrupted
from ..shifts.base import Stream


def wrapped(x: Tensor) -> Tensor:
    """uint8 images as torchvision's `ToPILImage` reads them where they are scaled to -1..1: bytes wrap around."""
    return (2 * x.to(torch.int16) + 1).remainder(256).to(x.dtype)


def unscaled(x: Tensor) -> Tensor:
    """The uint8 images that are in 0..1, as these are without scaling, when a model has scaled them to -1..1."""
    return ((x.to(torch.int16) + 256) // 2).to(x.dtype)


def with_images(world: Any, x: Tensor) -> Any:
    """The federation with these images."""
    return replace(world, examples=replace(world.examples, x=x))


@dataclass(frozen=True)
class NotScaled(Corrupted):
    """The client's own test images, corrupted, and in 0..1 where those of training are in -1..1."""

    def build(self, world: Any, key: rng.Key) -> Stream:
        made = super().build(world, key)
        return replace(made, shards=replace(made.shards, x=unscaled(made.shards.x)))


@dataclass(frozen=True)
class WrappedBytes(NotScaled):
    """The same, where the corruptions get images in -1..1, whose bytes wrap around."""

    def build(self, world: Any, key: rng.Key) -> Stream:
        return super().build(with_images(world, wrapped(world.examples.x)), key)


allow(NotScaled, WrappedBytes)
