"""Which domain a client belongs to, and the colours that domains have in all pictures."""

from __future__ import annotations

from collections.abc import Iterable

import torch
from torch import Tensor

from ...data import World
from ..style import LIGHT
from .canvas import Colour


def colour(domain: int) -> Colour:
    """The colour of a domain: the report's colours, then the same ones lighter, then from the start again."""
    turn, place = divmod(domain, len(LIGHT))
    red, green, blue = (int(LIGHT[place][i : i + 2], 16) for i in (1, 3, 5))
    return lighter((red, green, blue)) if turn % 2 else (red, green, blue)


def lighter(colour: Colour) -> Colour:
    """A colour half way to white."""
    red, green, blue = (255 - (255 - c) // 2 for c in colour)
    return red, green, blue


def majority(world: World, rows: Iterable[Tensor]) -> list[int]:
    """The domain that most of each client's examples come from; the first one for a client without examples."""
    count = len(world.examples.domains)
    return [int(torch.bincount(world.examples.domain[r], minlength=count).argmax()) for r in rows]


def mixed(world: World) -> bool:
    """Whether some client holds examples of several domains."""
    return any(len(world.examples.domain[r].unique()) > 1 for r in (*world.train, *world.new))
