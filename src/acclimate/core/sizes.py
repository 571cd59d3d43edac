"""Whether a model fits into this machine's memory: asked before its layers are made, of records with large fields."""

from __future__ import annotations

import dataclasses
import os
from typing import Any

import torch

LARGE = 4096
"""A record whose whole numbers are all smaller than this needs no look."""


def check_size(model: Any, shape: tuple[int, ...], num_classes: int) -> None:
    """An error where the parameters of a model record would not fit into the machine's memory."""
    fields = {f.name: getattr(model, f.name) for f in dataclasses.fields(model)}
    large = {name: value for name, value in fields.items() if _largest(value) > LARGE}
    if not large:
        return
    words = ", ".join(f"{name}={value!r}" for name, value in large.items())
    try:
        with torch.device("meta"):
            wanted = sum(p.numel() * p.element_size() for p in model.build(shape, num_classes).parameters())
    except (RuntimeError, TypeError, OverflowError, MemoryError) as e:
        raise ValueError(f"{type(model).__name__}: {words} is too large: {str(e).splitlines()[0]}") from e
    if wanted > (there := memory()):
        raise ValueError(
            f"{type(model).__name__}: {words} makes a model "
            f"of {wanted / 1e9:,.0f} GB, more than this machine has, {there / 1e9:,.0f}"
        )


def memory() -> int:
    """The machine's memory in bytes; where it cannot be known, 64 GB."""
    try:
        return int(os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES"))
    except (ValueError, OSError, AttributeError):
        return 64 * 10**9


def _largest(value: Any) -> int:
    if isinstance(value, tuple | list):
        return max(map(_largest, value), default=0)
    return value if isinstance(value, int) else 0
