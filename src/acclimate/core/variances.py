"""Running variances of the models that a server holds: none may be below zero, because its root would be no number.

A mean of clients' variances cannot be. What arrives may be: noise on a small variance, or a client that lies about its
own. One such number makes every answer of every client NaN, so it is counted as zero.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor

from . import tree
from .tree import Tree

MODELS = ("vars", "models", "live", "buffers")
"""The entries of a server's state that hold models, or their buffers. Others may have entries of the same names as a
model and mean something else: a rate by which each is adapted may well be below zero."""
VARIANCE = "running_var"


def not_below_zero(server: Tree) -> Tree:
    """The server's state with zero in the place of every running variance that is below it."""
    held = tree.pick(server, MODELS)
    if not (found := list(_variances(held, ""))):
        return server
    fixed = dict(zip(map(id, found), torch._foreach_clamp_min(found, 0.0), strict=True))
    return {**server, **tree.map(lambda x: fixed.get(id(x), x), held)}


def _variances(part: Mapping[str, Any], above: str) -> Iterator[Tensor]:
    for name, value in part.items():
        if isinstance(value, Mapping):
            yield from _variances(value, name)
        elif above == "buffers" and name.endswith(VARIANCE):
            yield value
