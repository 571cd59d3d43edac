"""The base record of test streams: what a deployed model meets."""

from __future__ import annotations

import functools
import os
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, Protocol

import torch
from torch import Tensor

from ..core import Shards, check, rng, stream
from ..ops.hashing import content_hash
from ..ops.places import data_root
from .corruptions import REVISIONS, Textures, frost_textures


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
    copied: Tensor | None = None
    """Of which example each row of `shards.x` is a copy, where rows are copies."""
    foreign: tuple[Any, ...] = ()
    """The data sets that rows are of, where they are not of the clients' own."""
    sets: Tensor | None = None
    """Of which set each row of `shards.x` is: of the clients' own (0), or of the first of `foreign` (1) and so on. None
    where all rows are of one."""

    @property
    def examples(self) -> Tensor | None:
        """A number for the example of which each row is a copy; `copied` counts in every set from 0 on."""
        if self.copied is None or self.sets is None:
            return self.copied
        return self.copied * (len(self.foreign) + 1) + self.sets


@dataclass(frozen=True)
class Shift:
    """How the test stream differs from what was trained on, and how it is served."""

    batch: int = 32
    """How many samples are served at a time; 1 serves sample by sample."""
    reset: stream.Reset = "stream"
    """When the adapter starts afresh."""

    def __post_init__(self) -> None:
        check.whole(self, "batch", 1)
        self.protocol  # noqa: B018 - refuses what the stream loop cannot serve

    @property
    def protocol(self) -> stream.Protocol:
        """How the stream loop serves it."""
        return stream.Protocol(self.batch, self.reset)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        """The streams of all clients, fixed by the key; every stream of an experiment gets the same one."""
        raise TypeError(f"{type(self).__name__} must define build(world, key)")


@dataclass(frozen=True)
class Corrupting(Shift):
    """The base of streams that corrupt images."""

    revision: Literal[1, 2] = field(default=2, kw_only=True)
    """The revision of the corruptions; a run names the one it was corrupted with. Revision 1 rounds motion blur."""

    def __post_init__(self) -> None:
        super().__post_init__()
        check.one_of(self, "revision", tuple(REVISIONS))


@dataclass(frozen=True)
class Frost:
    """The pictures of ice that the corruption "frost" lays over images."""

    textures: Textures
    source: str
    """Where they come from: "files" or "synthesised"."""
    content: str = ""
    """A hash of the pictures in files. Synthesised ones are always the same and need none."""

    def mark(self, kinds: Iterable[str]) -> str:
        """What the name of a cache entry says of the pictures, for images under these corruptions."""
        return f"{self.source} {self.content}" if self.content and "frost" in kinds else self.source


Stamp = tuple[tuple[str, int, int, int], ...]
"""What tells a changed folder without reading it: name, size and times of its files."""


FROST, SYNTHESISED = "ACCLIMATE_FROST", "synthesised"
"""The environment variable that asks for synthesised pictures of ice, whatever files the data root has."""


def frost() -> Frost:
    """The frost textures of the data root (ACCLIMATE_DATA), else synthesised ones. Changed files are read again."""
    wanted = os.environ.get(FROST, "")
    if wanted not in ("", SYNTHESISED):
        raise ValueError(
            f"{FROST}={wanted!r} must be {SYNTHESISED}, or empty: the data root's files where there are any"
        )
    root = None if wanted else data_root()
    return _frost(root, _stamp(root / "frost") if root else ())


@functools.lru_cache(maxsize=4)
def _frost(root: Path | None, stamp: Stamp) -> Frost:
    textures, reason = frost_textures(root)
    source = reason.partition(":")[0]  # the rest would name the user's folder
    return Frost(textures, source, content_hash(*textures) if source == "files" else "")


def _stamp(folder: Path) -> Stamp:
    found = [(p.name, p.stat()) for p in sorted(folder.glob("*")) if p.is_file()]
    return tuple((name, s.st_size, s.st_mtime_ns, s.st_ctime_ns) for name, s in found)


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
