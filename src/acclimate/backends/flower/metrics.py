"""The metrics of a test as they arrive from the nodes of a fleet: which may count, and why others may not."""

from __future__ import annotations

import math

import torch

from ...core import Fault, Tree, tree
from ...core.stream import score
from .checks import examine
from .messages import opened
from .nodes import Parcel

SHARES = ("accuracy", "confidence", "ece")
"""Metrics that lie between 0 and 1; the others are at least 0."""
ROUNDING = 1e-4
"""A mean of ones in 32 bits may be a little above 1."""


def metrics_of(parcel: Parcel | None, client: int, round: int) -> Tree | Fault:
    """What a client's test gave, or why it may not count. The values themselves must be believed."""
    if parcel is None:
        return Fault(round, client, "groups", "the answer holds no metrics of this client")
    like = score(torch.zeros(1, 2), torch.zeros(1, dtype=torch.int64), torch.ones(()))
    found = opened(parcel, like, client, round)
    if isinstance(found, Fault):
        return found
    return examine(found, like, client=client, round=round) or _out_of_range(found, client, round) or found


def _out_of_range(found: Tree, client: int, round: int) -> Fault | None:
    for name, value in tree.flatten(found).items():
        most = 1.0 if name in SHARES else math.inf
        if not 0 <= float(value) <= most + ROUNDING:
            return Fault(round, client, "error", f"{name}={float(value):g} must be between 0 and {most:g}")
    return None
