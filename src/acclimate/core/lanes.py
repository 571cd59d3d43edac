"""Several trainings side by side on one engine: each is a lane, with its own clients, server and random numbers."""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, fields, is_dataclass
from typing import Any, TypeAlias

import torch
from torch import Tensor

from . import tree
from .private import Private, Stacked
from .tree import Tree

Place: TypeAlias = tuple[str, ...]
"""Where a setting stands in a record: the names of the fields on the way to it."""


def varied(records: Sequence[Any]) -> dict[Place, list[float]] | None:
    """The numbers in which records differ, each with its value in every record; None where they differ in more.

    Only numbers other than zero: where one of them is zero, records compute something else and not with something else.
    """
    first = records[0]
    if all(type(r) is type(first) and r == first for r in records):
        return {}
    if all(type(r) is float and r != 0.0 for r in records):
        return {(): list(records)}
    if not is_dataclass(first) or any(type(r) is not type(first) for r in records):
        return None
    found: dict[Place, list[float]] = {}
    for f in fields(first):
        inside = varied([getattr(r, f.name) for r in records])
        if inside is None:
            return None
        found |= {(f.name, *place): values for place, values in inside.items()}
    return found


def with_settings(record: Any, settings: Mapping[Place, Any]) -> Any:
    """The record with these values in these places, unchecked: they may be numbers on the device."""
    changed = copy.copy(record)
    for name in {place[0] for place in settings}:
        inside = {place[1:]: value for place, value in settings.items() if place[0] == name}
        value = inside[()] if () in inside else with_settings(getattr(record, name), inside)
        object.__setattr__(changed, name, value)
    return changed


@dataclass(frozen=True)
class Lanes:
    """How what every lane has of its own becomes one value for the engine, lane after lane, and comes apart again.

    All lanes have the same number of clients. One lane is the normal case: then every value stays what it is.
    """

    count: int = 1

    def downs(self, downs: Sequence[Tree]) -> Tree:
        """What the servers send, one tree per lane, as one tree that is stacked over lanes."""
        together: Tree = downs[0] if self.count == 1 else tree.stack(list(downs))
        return together

    def each_down(self, down: Tree) -> list[Tree]:
        """The inverse of `downs`."""
        return [down] if self.count == 1 else [tree.take(down, i) for i in range(self.count)]

    def cohort(self, cohorts: Sequence[Tensor], clients: int) -> Tensor:
        """Every lane's cohort, numbered through all lanes of so many clients."""
        return cohorts[0] if self.count == 1 else torch.cat([c + i * clients for i, c in enumerate(cohorts)])

    def mine(self, mines: Sequence[Private]) -> Private:
        """The private state of the clients of all lanes."""
        return mines[0] if self.count == 1 else Stacked(tree.map(lambda *xs: torch.cat(xs), *mines))

    def each_mine(self, mine: Private) -> list[Private]:
        """The inverse of `mine`."""
        return [mine] if self.count == 1 else [Stacked(own) for own in self.each(mine.saved())]

    def each(self, stacked: Tree) -> list[Tree]:
        """What is stacked over the clients of all lanes, lane by lane."""
        if self.count == 1:
            return [stacked]
        clients = next((len(x) for x in tree.leaves(stacked)), 0) // self.count
        return [tree.map(lambda x, i=i: x[i * clients : (i + 1) * clients], stacked) for i in range(self.count)]
