"""The embedded world: 1,797 real handwritten digits and domains that the project draws itself. No download."""

from __future__ import annotations

import functools
from dataclasses import dataclass

import torch
from torch import Tensor

from ..core import check, rng
from . import drawing
from .dataset import Dataset
from .partition import Dirichlet, Partition
from .world import Examples

_DRAW_SEED = 1797  # the drawings belong to the data set, not to an experiment's seed


@dataclass(frozen=True)
class Digits(Dataset):
    """scikit-learn's handwritten digits (UCI, 8 x 8) as RGB images, in one or more domains.

    Every real digit appears in exactly one of the chosen domains, so a sample is never both trained on and tested on in
    another dress. `font` is drawn from strokes and adds 180 digits per class of its own.
    """

    partition: Partition = Dirichlet(alpha=0.05)
    """So few classes per client that a fine-tuned model is much worse on other clients' digits: docs/guides/data.md."""
    domains: tuple[str, ...] = ("plain",)
    side: int = 16
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)

    def __post_init__(self) -> None:
        super().__post_init__()
        allowed = (*drawing.STYLES, "font")
        for d in self.domains:
            if d not in allowed:
                raise check.FieldError(
                    f"Digits: domains={self.domains!r} has {d!r}; allowed are {', '.join(allowed)}", "domains"
                )
        if not self.domains or len(set(self.domains)) != len(self.domains):
            raise check.FieldError(
                f"Digits: domains={self.domains!r} must name at least one domain, each once", "domains"
            )
        check.whole(self, "side", 16, 64)

    def load(self) -> Examples:
        key = rng.key(_DRAW_SEED)
        glyphs, labels = _glyphs(self.side)
        real = [d for d in self.domains if d != "font"]
        parts = []
        for i, rows in enumerate(rng.permutation(rng.fold(key, "deal"), len(labels)).tensor_split(max(len(real), 1))):
            if real:
                rows = rows.sort().values
                keys = rng.fold(rng.fold(key, real[i]), rows)
                parts.append((real[i], drawing.STYLES[real[i]](glyphs[rows], keys), labels[rows]))
        if "font" in self.domains:
            digits = torch.arange(1800) % 10
            keys = rng.fold(rng.fold(key, "font"), torch.arange(1800))
            drawn = drawing.font(digits, keys, self.side)
            parts.append(("font", drawing.STYLES["plain"](drawn, keys), digits))
        parts.sort(key=lambda part: self.domains.index(part[0]))
        domain = torch.cat([torch.full((len(y),), i) for i, (_, _, y) in enumerate(parts)])
        x, y = torch.cat([x for _, x, _ in parts]), torch.cat([y for _, _, y in parts])
        return Examples(x, y, tuple("0123456789"), domain, tuple(name for name, _, _ in parts))


@functools.lru_cache(maxsize=1)
def _glyphs(side: int) -> tuple[Tensor, Tensor]:
    """The real digits of this size and their labels. They are read once: a node builds its world for every message."""
    images, labels = drawing.digits8()
    return drawing.enlarge(images, side), labels
