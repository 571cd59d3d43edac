"""Clients in workers that exchange while they adapt: the engine keeps their states between two stretches."""

from __future__ import annotations

from typing import TYPE_CHECKING

from torch import Tensor

from ...core import Exchanging, Private, Protocol, Reply, Shards, Stacked, Tree

if TYPE_CHECKING:
    from .engine import WorkersEngine


class Stretches:
    """Serves streams in the workers of an engine, a stretch at a time. It owns the clients' states meanwhile."""

    def __init__(self, engine: WorkersEngine, test: Shards, how: tuple[Exchanging, Protocol, bool]) -> None:
        """`how` as `exchange.serving` has it: the adapter, the protocol, and whether clients are alone."""
        self.engine, self.test, self.how, self.device = engine, test, how, engine.device
        self.mine: Private = Stacked({})

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """One stretch of the cohort's clients."""
        common = (down, round, self.how)
        reply, self.mine = self.engine.round_of("stretch", common, self.mine, self.test.n, cohort, self._data)
        return reply

    def _data(self) -> tuple[object, ...]:
        return (self.engine.test_handle(self.test),)
