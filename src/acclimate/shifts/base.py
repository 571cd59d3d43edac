"""The base record of test streams: what a deployed model meets."""

from __future__ import annotations

import functools
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import torch
from torch import Tensor

from ..core import check, rng, stream
from ..core.shards import Shards
from ..ops.places import data_root
from .corruptions import frost_textures


class Federation(Protocol):
    """What a shift needs to know of a world (shifts and data sets do not import each other)."""

    @property
    def train(self) -> tuple[Tensor, ...]:
        """Training rows per client."""
        ...

    @property
    def test(self) -> tuple[Tensor, ...]:
        """Test rows per client."""
        ...

    @property
    def new(self) -> tuple[Tensor, ...]:
        """Rows per client that joins after training."""
        ...

    @property
    def held(self) -> Tensor:
        """Rows of domains that no client trains on."""
        ...

    @property
    def examples(self) -> Any:
        """Its labelled examples: `x`, `y`, `classes`, `domain`, `domains`."""
        ...


@dataclass(frozen=True)
class Stream:
    """Every client's test stream, in order, and notes for the data card."""

    shards: Shards
    card: dict[str, Any] = field(default_factory=dict)
    new: bool = False
    """Whether its clients are newcomers, who were not there for training."""


@dataclass(frozen=True)
class Shift:
    """How the test stream differs from what was trained on, and how it is served."""

    batch: int = 32
    """Samples at a time; 1 serves sample by sample."""
    reset: stream.Reset = "stream"
    """When the adapter starts afresh."""

    def __post_init__(self) -> None:
        check.at_least(self, "batch", 1)
        self.protocol  # noqa: B018 - refuses what the stream loop cannot serve

    @property
    def protocol(self) -> stream.Protocol:
        """How the stream loop serves it."""
        return stream.Protocol(self.batch, self.reset)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        """The streams of all clients, fixed by the key; every stream of an experiment gets the same one."""
        raise TypeError(f"{type(self).__name__} must define build(world, key)")


@functools.lru_cache(maxsize=4)
def _frost(root: Path | None) -> tuple[Any, str]:
    textures, source = frost_textures(root)
    return textures, source.partition(":")[0]  # "files" or "synthesised"; a reason would name the user's folder


def frost() -> tuple[Any, str]:
    """The frost textures of the data root (ACCLIMATE_DATA), else synthesised ones; and which of the two."""
    return _frost(data_root())


def shuffled(rows: Tensor, key: rng.Key) -> Tensor:
    """Rows in a keyed random order."""
    return rows[rng.permutation(key, len(rows))]


def choice(keys: Tensor, options: int) -> Tensor:
    """One of `options` per key."""
    return torch.vmap(lambda k: rng.randint(k, 0, options))(keys) if len(keys) else keys


def ordered(world: Federation, key: rng.Key) -> list[Tensor]:
    """Every client's own test rows, in the order of its original stream."""
    return [shuffled(r, rng.fold(key, "original", c)) for c, r in enumerate(world.test)]


def others(world: Federation, key: rng.Key) -> list[Tensor]:
    """For every client as many test rows of other clients as it has of its own."""
    out = []
    for c, own in enumerate(world.test):
        rest = torch.cat([r for o, r in enumerate(world.test) if o != c] or [own[:0]])
        out.append(shuffled(rest, rng.fold(key, "out-of-client", c))[: len(own)])
    return out


def consecutive(parts: list[Tensor]) -> list[Tensor]:
    """Positions of the parts in their concatenation."""
    ends = torch.tensor([0] + [len(p) for p in parts]).cumsum(0).tolist()
    return [torch.arange(a, b) for a, b in zip(ends, ends[1:], strict=False)]
