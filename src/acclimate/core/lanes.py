"""Several trainings side by side on one engine: each is a lane, with its own clients, server and random numbers."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from . import tree
from .private import Private, Stacked
from .tree import Tree


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
