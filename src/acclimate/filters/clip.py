"""Bounds what one client can contribute."""

from __future__ import annotations

from dataclasses import dataclass

from ..core import Filter, Rules, Sender, Tree, check, rng
from .message_parts import chosen, clipped, unknown


@dataclass(frozen=True)
class Clip(Filter):
    """Scales a message down to a Euclidean norm; checked again on arrival, so a client cannot evade it."""

    norm: float = 1.0
    groups: tuple[str, ...] = ()
    """The groups that are clipped; all, where none is named. Integers are left alone."""
    each: bool = False
    """Whether every group has this norm for itself, instead of all together."""

    def __post_init__(self) -> None:
        check.positive(self, "norm")

    def refusal(self, rules: Rules) -> str | None:
        return unknown(self.groups, rules)

    def client(self, up: Tree, key: rng.Key, sender: Sender) -> Tree:
        return self.arrive(up)

    def arrive(self, up: Tree) -> Tree:
        part = chosen(up, self.groups)
        if self.each:
            return up | {g: clipped(t, self.norm) for g, t in part.items()}
        return {**up, **clipped(part, self.norm)}
