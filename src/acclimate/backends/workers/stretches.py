"""Clients in workers that exchange while they adapt: the engine keeps their states between two stretches."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

import torch
from torch import Tensor

from ...core import Exchanging, Private, Reply, Shards, Stacked, Tree
from ...core.stream import Protocol as StreamProtocol


class Workers(Protocol):
    """What is asked of the engine that has the workers."""

    device: torch.device

    def round_of(
        self,
        name: str,
        common: tuple[Any, ...],
        mine: Private,
        sizes: Tensor,
        cohort: Tensor,
        data: Callable[[], tuple[Any, ...]],
    ) -> tuple[Reply, Private]:
        """A round of the cohort: the reply, and all private states after it."""
        ...

    def test_handle(self, test: Shards) -> Any:
        """A handle of test data."""
        ...


class Stretches:
    """Serves streams in the workers of an engine, a stretch at a time. It owns the clients' states meanwhile."""

    def __init__(self, engine: Workers, test: Shards, how: tuple[Exchanging, StreamProtocol, bool]) -> None:
        """`how` as `exchange.serving` has it: the adapter, the protocol, and whether clients are alone."""
        self.engine, self.test, self.how, self.device = engine, test, how, engine.device
        self.mine: Private = Stacked({})

    def train(self, down: Tree, cohort: Tensor, round: int) -> Reply:
        """One stretch of the cohort's clients."""
        common = (down, round, self.how)
        reply, self.mine = self.engine.round_of("stretch", common, self.mine, self.test.n, cohort, self._data)
        return reply

    def _data(self) -> tuple[Any, ...]:
        return (self.engine.test_handle(self.test),)
