"""Inputs of a live model: what a user gives is checked and brought into the form that the federation's data has."""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import Tensor

from ..core import Task
from ..core.nn.pixels import SLACK
from ..data.raw import Raw, RawRows, RawTexts

log = logging.getLogger("acclimate")
ALLOWED = "expected uint8 (pixels) or float (pixels in 0..1, features)"


Samples: TypeAlias = Any
"""What a user may give: a tensor or an array; of a table a data frame or a dict of columns; a list of texts."""


def read(x: Samples, raw: Raw | None, who: str, told: set[str]) -> Tensor | np.ndarray:
    """Samples as numbers: raw rows and texts by what was fitted when the model was trained.

    A column that has words which no training row had is warned of once: `told` are those of which it was said.
    """
    if isinstance(x, np.ndarray) and x.dtype.names and raw is not None:
        x = {name: x[name] for name in x.dtype.names}
    if isinstance(x, Tensor | np.ndarray) or raw is None:
        given: Tensor | np.ndarray = x  # what it is, `taken` says
        return given
    if isinstance(raw, RawTexts) and (isinstance(x, str) or not isinstance(x, Sequence)):
        raise ValueError(f"{who}: x is a {type(x).__name__}, expected a list of texts, or a tensor or array of ids")
    if not isinstance(raw, RawTexts) and not isinstance(x, Mapping) and not hasattr(x, "columns"):
        kinds = "a data frame or a dict of columns, or a tensor or array of numbers"
        raise ValueError(f"{who}: x is a {type(x).__name__}, expected {kinds}")
    if not isinstance(raw, RawRows):
        return raw.of(x, who)
    unknown = dict[str, str]()
    found = raw.of(x, who, unknown)
    for said in (said for column, said in unknown.items() if column not in told):
        log.warning("%s: %s", who, said)
    told.update(unknown)
    return found


def taken(task: Task, x: Tensor | np.ndarray, dtype: torch.dtype, who: str) -> Tensor:
    """Samples in the form that the federation's data has, or an error that says what is wrong with them."""
    x = checked(task, _as_features(x) if dtype.is_floating_point and len(task.shape) < 3 else x, who)
    if dtype == torch.uint8 and x.is_floating_point() and len(task.shape) == 3:
        low, high = float(x.min()), float(x.max())
        if low < -SLACK or high > 1.0 + SLACK:  # pixels up to 255 would all be white, and answered without a word
            raise ValueError(
                f"{who}: x has floats from {low:.4g} to {high:.4g}, and pixels as floats are from 0 to 1; "
                "divide by 255, give uint8, or clip; do not normalise, the model does"
            )
    if dtype.is_floating_point and x.dtype == torch.uint8 and len(task.shape) != 3:
        raise ValueError(f"{who}: x is of type torch.uint8, and these inputs are no pixels; give them as floats")
    return alike(x, dtype)


def _as_features(x: Tensor | np.ndarray) -> Tensor | np.ndarray:
    """Whole numbers, true and false as floats, as training took them; uint8 stands for pixels, and stays."""
    if isinstance(x, Tensor):
        whole = not (x.is_floating_point() or x.is_complex() or x.dtype == torch.uint8)
        return x.float() if whole else x
    whole = isinstance(x, np.ndarray) and x.dtype.kind in "iub" and x.dtype != np.uint8
    return x.astype(np.float32) if whole else x


def checked(task: Task, x: Tensor | np.ndarray, who: str) -> Tensor:
    """Samples as a tensor of the model's shape, or an error that says what is wrong with them."""
    if isinstance(x, np.ma.MaskedArray):
        raise ValueError(f"{who}: x is a masked array; fill what is masked first")
    if isinstance(x, np.ndarray):
        try:
            x = torch.from_numpy(np.array(x))
        except TypeError:  # text, objects, dates
            raise ValueError(f"{who}: x is of type {x.dtype}, {ALLOWED}") from None
    if not isinstance(x, Tensor):
        raise ValueError(f"{who}: x is a {type(x).__name__}, expected a tensor or an array")
    if x.layout != torch.strided or x.is_meta:
        kind = "is on the meta device" if x.is_meta else f"has layout {x.layout}"
        raise ValueError(f"{who}: x {kind}, expected a dense tensor with values")
    x = x.detach()  # a window that remembers how its samples were computed would hold on to all of it
    if x.dim() != 1 + len(task.shape) or tuple(x.shape[1:]) != task.shape:
        raise ValueError(f"{who}: x has shape {tuple(x.shape)}, expected [N, {', '.join(map(str, task.shape))}]")
    if not len(x):
        raise ValueError(f"{who}: x has no samples; it needs at least one")
    if task.vocabulary is not None:
        return _ids(task.vocabulary, x, who)
    if x.dtype != torch.uint8 and not x.is_floating_point():
        raise ValueError(f"{who}: x is of type {x.dtype}, {ALLOWED}")
    x = x.float() if x.is_floating_point() else x
    if not bool(torch.isfinite(x).all()):
        raise ValueError(f"{who}: x holds values that are not finite, or too large for 32 bits")
    return x


def _ids(count: int, x: Tensor, who: str) -> Tensor:
    if x.is_floating_point() or x.is_complex() or x.dtype in (torch.uint8, torch.bool):
        raise ValueError(f"{who}: x is of type {x.dtype}, expected token ids, whole numbers such as int64")
    x = x.to(torch.int64)  # torch compares no unsigned ones
    low, high = int(x.min()), int(x.max())
    if low < 0 or high >= count:
        raise ValueError(f"{who}: x has token ids from {low} to {high}, and the model knows 0 to {count - 1}")
    return x


def alike(x: Tensor, dtype: torch.dtype) -> Tensor:
    """Samples in the type that the federation's data has: floats in 0..1 become pixels where it has pixels."""
    if dtype == torch.uint8 and x.dtype != torch.uint8:
        return (x.clamp(0.0, 1.0) * 255.0).round().to(torch.uint8)
    if not dtype.is_floating_point:
        return x.to(dtype)
    return x.float() / 255.0 if x.dtype == torch.uint8 else x
