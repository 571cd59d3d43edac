"""The base record of test streams: what a deployed model meets."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ..core import check, rng, stream
from ..core.shards import Shards


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
    def examples(self) -> Any:
        """Its labelled examples: `x`, `y`, `classes`, `domain`, `domains`."""
        ...


class Stream(NamedTuple):
    """Every client's test stream, in order, and notes for the data card."""

    shards: Shards
    card: dict[str, Any]


@dataclass(frozen=True)
class Shift:
    """How the test stream differs from what was trained on, and how it is served."""

    batch: int = 32
    reset: Literal["stream", "batch"] = "stream"
    """When the adapter starts afresh."""

    def __post_init__(self) -> None:
        check.at_least(self, "batch", 1)
        check.one_of(self, "reset", ("stream", "batch"))

    @property
    def protocol(self) -> stream.Protocol:
        """How the stream loop serves it."""
        return stream.Protocol(self.batch, self.reset)

    def build(self, world: Federation, key: rng.Key) -> Stream:
        """The streams of all clients, fixed by the key; every stream of an experiment gets the same one."""
        raise TypeError(f"{type(self).__name__} must define build(world, key)")


def shuffled(rows: Tensor, key: rng.Key) -> Tensor:
    """Rows in a keyed random order."""
    return rows[rng.permutation(key, len(rows))]
