"""A client's validation data, distorted: what a model does on data that it is unsure of, with labels."""

from __future__ import annotations

from itertools import combinations

import torch
from torch import Tensor

from ..core import Shards, rng
from ..shifts.base import Federation, consecutive
from ..shifts.corruptions import COMMON, CORRUPTIONS, corrupt_each

SEGMENT = 32
KINDS = tuple(k for k in CORRUPTIONS if k not in COMMON)
"""The corruptions that no stream has unless told: ImageNet-C sets these four apart for validation."""
PLAN: tuple[tuple[str, ...], ...] = ((), *((k,) for k in KINDS), *combinations(KINDS, 2))
"""Which of them each segment has, one upon the other."""
SEVERITY = 5


def distorted(world: Federation, val: tuple[Tensor, ...], key: rng.Key) -> Shards:
    """Every client's validation rows, walked through in segments: clean, under each kind, under each pair of kinds."""
    length = SEGMENT * len(PLAN)
    walked = [r[torch.arange(length) % len(r)] if len(r) else r for r in val]
    rows, segment = torch.cat(walked), torch.cat([torch.arange(len(w)) // SEGMENT for w in walked])
    x = world.examples.x[rows].clone()
    if not _images(x):
        return Shards.of(x, world.examples.y[rows], consecutive(walked))
    for turn in range(2):
        for i, kind in enumerate(KINDS):
            has = torch.tensor([len(p) > turn and p[turn] == kind for p in PLAN])[segment].nonzero().flatten()
            keys = rng.fold(rng.fold(rng.fold(key, "distorted", turn, i), rows[has]), segment[has])
            if len(has):
                x[has] = corrupt_each(x[has], torch.zeros_like(has), SEVERITY, keys, names=(kind,))
    return Shards.of(x, world.examples.y[rows], consecutive(walked))


def _images(x: Tensor) -> bool:
    """Whether the corruptions can be had of it; data of other kinds is only walked through."""
    square = x.dim() == 4 and x.shape[1] in (1, 3) and x.shape[2] == x.shape[3] and 16 <= x.shape[3] <= 224
    return square and x.dtype == torch.uint8
