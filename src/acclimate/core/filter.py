"""The base record of message filters: privacy and compression, generic over methods."""

from __future__ import annotations

from dataclasses import dataclass

from . import rng
from .message import Rules
from .tree import Tree


@dataclass(frozen=True)
class Filter:
    """Changes messages on their way: `client` before sending, `server` after the sum (in reverse order).

    The base record changes nothing.
    """

    def refusal(self, rules: Rules) -> str | None:
        """Why this filter cannot serve messages of these rules, in one sentence, or None where it can."""
        return None

    def client(self, up: Tree, key: rng.Key) -> Tree:
        """What is sent instead of `up`."""
        return up

    def server(self, total: Tree, key: rng.Key) -> Tree:
        """What the method's server half receives instead of `total`."""
        return total
