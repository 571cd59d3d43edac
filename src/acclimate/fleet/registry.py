"""Which key owns which clients of a fleet, and how many examples each may say it has.

A folder holds `members.json`, which is written where the keys are made: the members in order, the fingerprint of each
one's public key, and the range of its number of examples. Beside it, `NAME.json` is what Flower answered when the key
of that member was registered: the number of a node, which Flower from then on gives to nobody without that key. So a
message's sender is known by its key, whatever the message says.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path

from ..store import RunError, read_json, write

SCHEMA = "acclimate.members/1"
MEMBERS = "members.json"
EXAMPLES = (1, 1_000_000)
"""The range of a member's number of examples, where none is given."""


@dataclass(frozen=True)
class KeyOwner:
    """A key of the fleet, and what its owner may say of itself."""

    name: str
    key: str
    """The fingerprint of the public key."""
    examples: tuple[int, int] = EXAMPLES
    removed: bool = False
    """Whether it has left the fleet. Its clients keep their numbers and take part in nothing."""

    def __post_init__(self) -> None:
        low, high = self.examples
        if not 0 <= low <= high:
            raise ValueError(f"examples of '{self.name}': {low}-{high} must be a range of whole numbers, LOW-HIGH")


@dataclass(frozen=True)
class Registry:
    """The members of a fleet in order, and the node that each one's key has."""

    members: tuple[KeyOwner, ...]
    nodes: Mapping[int, int]
    """The place of the member to whose key Flower gave the number of a node."""
    sites: bool = False
    """Whether every member is one client, with data of its own. Else members share the clients among them."""

    def owned(self, node: int, clients: int) -> list[int]:
        """The clients that belong to the key of a node: none, where the key is not registered here."""
        place = self.nodes.get(node)
        if place is None:
            return []
        return [c for c in ([place] if self.sites else range(place, clients, len(self.members))) if c < clients]

    def removed(self, clients: int) -> list[int]:
        """The clients of members that have left the fleet."""
        return [c for c in range(clients) if self.members[c % len(self.members)].removed]

    def examples(self, client: int) -> tuple[int, int]:
        """The range of a client's number of examples."""
        return self.members[client % len(self.members)].examples


def fingerprint(public: Path) -> str:
    """The fingerprint of a public key's file."""
    return hashlib.sha256(public.read_bytes().strip()).hexdigest()


def write_members(folder: Path, members: Sequence[KeyOwner]) -> None:
    """Write the members of a fleet; which nodes they are comes with their registration."""
    body = {"schema": SCHEMA, "members": [asdict(m) for m in members]}
    write(folder / MEMBERS, json.dumps(body, indent=2) + "\n")


def members_of(folder: Path) -> tuple[KeyOwner, ...]:
    """The members in a folder, in order, with those that have left."""
    body = read_json(folder / MEMBERS)
    if body.get("schema") != SCHEMA:
        raise RunError(f"{folder / MEMBERS}: schema={body.get('schema')!r} must be '{SCHEMA}'")
    found = body["members"]
    return tuple(KeyOwner(m["name"], m["key"], tuple(m["examples"]), m.get("removed") is True) for m in found)


def load(folder: Path, sites: bool) -> Registry:
    """The registry in a folder. An error where a member's key is another than it was, or is not registered."""
    members = members_of(folder)
    nodes = {node_of(folder / f"{m.name}.json"): place for place, m in enumerate(members) if not m.removed}
    for member in members:
        public = folder / f"{member.name}.pub"
        if public.exists() and fingerprint(public) != member.key:
            raise RunError(f"{public} is another key than {MEMBERS} names; set the fleet up anew")
    return Registry(members, nodes, sites)


def node_of(path: Path) -> int:
    """The number of the node in what `flwr supernode register --format json` printed."""
    if not path.exists():
        raise RunError(f"{path} is missing: the key of '{path.stem}' is not registered; run register.sh on the server")
    return parsed(path.read_text(), str(path))


def parsed(text: str, where: str) -> int:
    """The number of a node in Flower's answer; what Flower says around the JSON is left out."""
    try:
        return int(json.loads(text[text.index("{") : text.rindex("}") + 1])["node-id"])
    except (ValueError, KeyError, TypeError) as e:
        raise RunError(f"{where} does not say which node it is: {text.strip()[:200]!r}") from e
