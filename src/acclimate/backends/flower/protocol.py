"""What the server of a fleet and its nodes send each other: requests, answers, and the version of the sender.

Nothing here knows Flower. `fleet.records` writes requests and answers as Flower's records, and `fleet.link` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextvars import ContextVar
from typing import Any, Literal, NamedTuple, Protocol

from torch import Tensor

from ...core import Fault, Shards, Tree, tree
from ...ops.hashing import content_hash
from ...version import __version__

Kind = Literal["query", "train", "evaluate"]
WIRE = 4
"""The number of the format of requests and answers. It is raised whenever this format changes."""
DEPTH, NAME = 32, 1000
"""The most branches above a tensor, and the most characters of its name: far more than models have."""
REASON = 1000
"""Characters of a reason that are kept: it goes to the log and into results.json."""


class Version(NamedTuple):
    """Which acclimate the sender of a message has. Every request and every answer says it."""

    acclimate: str = __version__
    wire: int = WIRE

    def __str__(self) -> str:
        return f"acclimate {self.acclimate} (message format {self.wire})"


def version_conflict(server: Version | None, node: Version | None) -> str | None:
    """Why server and node may not work together, in one sentence; None where they may. A sender may tell nothing."""
    if server == node:
        return None
    first, second = (v if v is not None else "an acclimate that does not tell its version" for v in (server, node))
    return (
        f"the server has {first}, but the node has {second}; "
        "install the same version of acclimate on the server and at all nodes, and start them again"
    )


class Parcel(NamedTuple):
    """A tree that came over the network and that nobody has read yet."""

    nbytes: int
    open: Callable[[], Tree]
    """Reads the tree. Raises ValueError where it is not a tree of tensors."""


class Request(NamedTuple):
    """A request to one node: trees, and fields, which are records or plain JSON."""

    node: int
    kind: Kind
    trees: Mapping[str, Tree]
    fields: Mapping[str, Any]


class NodeAnswer(NamedTuple):
    """The answer of a node: parcels by name and fields of plain JSON, or an error."""

    node: int
    parcels: Mapping[str, Parcel]
    fields: Mapping[str, Any]
    error: str | None = None
    kind: str = "error"
    """The kind of the error; see `Fault.kind`."""


class Link(Protocol):
    """The server's way to its nodes."""

    keep: Sequence[Tree]
    """Older versions of `mine` that the run may still come back to: its last checkpoint's, the best round's."""

    stream_names: Mapping[str, str]
    """The nodes' name of a stream, by `stream_name`, where server and nodes do not hold the same data."""

    refused: list[Fault]
    """What nodes did outside of rounds that makes them unfit: the next round tells."""

    barred: dict[int, str]
    """Clients that take no part in the run at all, and why."""

    def owned(self, node: int, clients: int) -> Sequence[int] | None:
        """The clients that belong to the key which this node has proved; None where no keys are bound to clients."""

    def bar(self, client: int, reason: str) -> None:
        """Leave a client out of the run."""

    def nodes(self) -> list[int]:
        """The nodes that are connected now."""

    def exchange(self, requests: Sequence[Request], seconds: float, group: str) -> list[NodeAnswer]:
        """Send requests and wait for answers, at most so long. Nodes that did not answer are not in the result."""

    def wait(self, seconds: float) -> None:
        """Let some time pass."""

    def log(self, text: str) -> None:
        """Write a line to the log."""


LINK: ContextVar[Link | None] = ContextVar("link", default=None)
"""The link of the ServerApp that runs at the moment."""


class FleetError(RuntimeError):
    """The fleet cannot go on: too few clients, or nodes that do not fit. The message says who, why, and what to do."""


def brief(text: str) -> str:
    """A reason as one line, cut where it is longer than anybody reads. Nodes write reasons, and terminals obey what is
    not printable in them."""
    text = "".join(c if c.isprintable() else " " for c in text[: REASON + 1])
    return text if len(text) <= REASON else f"{text[:REASON]} ..."


def stream_name(test: Shards) -> str:
    """A name of exactly these examples in this order, so that server and nodes can be sure to mean the same test."""
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


def with_empty_groups(found: Tree, like: Tree) -> Tree:
    """The tree, and those branches of `like` that hold no tensor, which names of tensors cannot express."""
    out = dict(found)
    for name, part in like.items():
        if not isinstance(part, dict):
            continue
        if name not in out and not tree.leaves(part):
            out[name] = tree.map(lambda x: x, part)
        elif isinstance(out.get(name), Mapping):
            out[name] = with_empty_groups(out[name], part)
    return out


def branches(value: Any) -> Any:
    """The branches of a tree, with null for every tensor: names of tensors cannot express empty branches."""
    return {k: branches(v) for k, v in value.items()} if isinstance(value, Mapping) else None


def rebuilt(shape: Any, flat: Mapping[str, Tensor], prefix: str = "") -> Any:
    """A tree from its `branches` and its tensors by name."""
    if isinstance(shape, Mapping):
        return {k: rebuilt(v, flat, f"{prefix}{k}/") for k, v in shape.items()}
    name = prefix.removesuffix("/")
    if name not in flat:
        raise ValueError(f"tensor '{name}' is missing")
    return flat[name]
