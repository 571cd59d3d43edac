"""What the server of a fleet and its nodes say to each other: requests, answers, and the names of what they mean."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ...core import Shards, Tree, tree
from ...ops.hashing import content_hash

Kind = Literal["query", "train", "evaluate"]
DEPTH, NAME = 32, 1000
"""Branches above a tensor, and characters of its name: far more than models have, few enough to walk through."""


class Parcel(NamedTuple):
    """A tree that came over the network and was not looked at yet."""

    nbytes: int
    open: Callable[[], Tree]
    """Raises ValueError where it is not a tree of tensors."""


class Ask(NamedTuple):
    """A request to one node: trees, and what else it must know (records, and plain JSON)."""

    node: int
    kind: Kind
    trees: Mapping[str, Tree]
    words: Mapping[str, Any]


class Answer(NamedTuple):
    """What a node sent back: parcels by name and plain JSON, or an error."""

    node: int
    parcels: Mapping[str, Parcel]
    words: Mapping[str, Any]
    error: str | None = None
    kind: str = "error"
    """Of the error, as `Fault` counts it."""


class Link(Protocol):
    """The server's way to its nodes."""

    keep: Sequence[Tree]
    """Older versions of `mine` that the run may still come back to: its last checkpoint's, the best round's."""

    names: Mapping[str, str]
    """How nodes call a stream, by `stream_name`, where server and nodes do not hold the same data."""

    def nodes(self) -> list[int]:
        """Who is connected now."""

    def exchange(self, asks: Sequence[Ask], seconds: float, group: str) -> list[Answer]:
        """Ask nodes and wait for their answers, at most so long; those who did not answer are not in the result."""

    def wait(self, seconds: float) -> None:
        """Let some time pass."""

    def say(self, text: str) -> None:
        """A line for the log."""


LINK: ContextVar[Link | None] = ContextVar("link", default=None)
"""The link of the ServerApp that runs at the moment."""


class FleetError(RuntimeError):
    """The fleet cannot go on: too few clients, or nodes that do not fit. Says who, why, and what to do."""


def stream_name(test: Shards) -> str:
    """Names exactly the examples and their order, so that server and nodes can be sure to mean the same test."""
    used = test.rows.unique()
    return content_hash(test.x[used], test.y[used], test.rows, test.n)[:16]


def nested(flat: Mapping[str, Tensor]) -> Tree:
    """A tree from names such as `vars/params/head.weight`.

    ValueError where a name is both a tensor and a branch, or lies deeper than functions that walk a tree can follow.
    """
    out: Tree = {}
    for name, value in flat.items():
        if len(name) > NAME or name.count("/") > DEPTH:
            raise ValueError(f"tensor '{name[:60]}...' has too long a name, or lies too deep")
        at, *path = out, *name.split("/")
        for part in path[:-1]:
            at = at.setdefault(part, {})
            if not isinstance(at, dict):
                raise ValueError(f"tensor '{name}' lies below another tensor")
        if path[-1] in at:
            raise ValueError(f"tensor '{name}' is also a branch")
        at[path[-1]] = value
    return out


def with_empty_groups(got: Tree, like: Tree) -> Tree:
    """The tree, and those branches of `like` that hold no tensor, which names alone cannot carry."""
    out = dict(got)
    for name, part in like.items():
        if not isinstance(part, dict):
            continue
        if name not in out and not tree.leaves(part):
            out[name] = tree.map(lambda x: x, part)
        elif isinstance(out.get(name), Mapping):
            out[name] = with_empty_groups(out[name], part)
    return out
