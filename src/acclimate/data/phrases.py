"""The embedded text world: short requests to an assistant, from a grammar of the project's own. No download."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass
from random import Random

import numpy as np
import torch
from torch import Tensor

from ..core import check
from ..ops import text as text_ids
from . import grammar
from .dataset import Dataset, Inputs
from .group_partitions import ByDomain
from .partition import Partition
from .text import noted
from .world import Examples, World


@dataclass(frozen=True)
class Phrases(Dataset):
    """Synthetic requests ("wake me at 6 am") of eight classes in six styles of writing, as bytes.

    A grammar that was made up for this project draws them, so they are the same on every machine and say nothing of how
    people write. A style is a domain: every client writes in one, and has a class mix of its own.
    """

    partition: Partition = ByDomain(alpha=0.5, keep=0.8)
    clients: int = 6
    styles: tuple[str, ...] = tuple(grammar.STYLES)
    each: int = 200
    """Requests of each style, as many of every class."""
    length: int = 64
    """How many bytes of a request are kept."""
    wrong: float = 0.05
    """The share of requests whose class is another one, drawn at random: people make mistakes, too."""

    def __post_init__(self) -> None:
        super().__post_init__()
        unknown = [s for s in self.styles if s not in grammar.STYLES]
        if unknown or not self.styles or len(set(self.styles)) < len(self.styles):
            raise check.FieldError(
                f"Phrases: styles={unknown or self.styles} must be some of {', '.join(grammar.STYLES)}, none twice",
                "styles",
            )
        check.whole(self, "each", len(grammar.CLASSES))
        check.whole(self, "length", 1, 1024)
        check.within(self, "wrong", 0.0, 0.5)

    def load(self) -> Examples:
        texts, y, domain = [], [], []
        names = tuple(grammar.CLASSES)
        for d, style in enumerate(self.styles):
            # The drawings belong to the data set, not to an experiment's seed.
            draw = Random(int.from_bytes(hashlib.sha256(style.encode()).digest()[:4], "big"))
            for i in range(self.each):
                texts.append(grammar.sentence(names[i % len(names)], style, draw))
                other, mistaken = int(draw.random() * (len(names) - 1)) + 1, draw.random() < self.wrong
                y.append((i + other * mistaken) % len(names))
                domain.append(d)
        x = torch.from_numpy(text_ids.encode(texts, self.length))
        return Examples(x, torch.tensor(y), names, torch.from_numpy(np.array(domain)), self.styles, text=True)

    def inputs(self) -> Inputs:
        return "texts"

    def fitted(self, world: World) -> World:
        return noted(world)

    def texts(self, x: Tensor) -> list[str]:
        """The texts of ids [N, length]."""
        return text_ids.decode(x)
