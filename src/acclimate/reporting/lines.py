"""Texts on a page: one line each, with its class in front."""

from __future__ import annotations

import torch
from torch import Tensor

from ..data import World
from ..ops.text import decode
from .style import esc


def are_ids(world: World) -> bool:
    """Whether inputs are token ids, which are read and not looked at."""
    x = world.examples.x
    return x.dtype != torch.uint8 and not x.is_floating_point() and x.dim() == 2


def lines(world: World, x: Tensor, y: Tensor) -> list[str]:
    """HTML of every text: bytes as characters, other ids as numbers."""
    texts = decode(x) if world.examples.text else [" ".join(str(i) for i in row if i) for row in x.tolist()]
    names = [world.examples.classes[c] for c in y.tolist()]
    return [
        f'<div class="line"><span>{esc(name)}</span> {esc(text)}</div>' for name, text in zip(names, texts, strict=True)
    ]
