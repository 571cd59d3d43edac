"""What the steps of local training need besides the model's state, made for all of them at once.

A recorded step is a row of small kernels, and each costs more to start than to run. So what can be made before the
steps is, and what a step looks up lies side by side.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor

from . import rng, tree
from .loops import Time, at
from .nn import kernels, lone, many
from .task import Task
from .tree import Tree


@dataclass(frozen=True)
class Agenda:
    """Rows [steps, batch], labels [steps, batch, ...] and keys [steps] of all steps, and where some clients have fewer
    of them which are real (int64 [steps]); where all are whole numbers, side by side in one table, of which a step
    takes one row."""

    parts: tuple[Tensor, ...]
    batch: int
    uneven: bool

    @classmethod
    def of(cls, data: Tree, positions: Tensor, keys: rng.Key, real: Tensor | None = None) -> Agenda:
        """The steps that see a client's examples at these positions [steps, batch]."""
        rows = data["rows"][positions]
        labels = data["y"][rows]
        scalars = (keys,) if real is None else (keys, real.to(torch.int64))
        parts: tuple[Tensor, ...] = (rows, labels, *scalars)
        if labels.dim() == 2 and all(part.dtype == torch.int64 for part in parts):
            parts = (torch.cat((rows, labels, *(part.unsqueeze(1) for part in scalars)), 1),)
        return cls(parts, positions.shape[1], real is not None)

    def at(self, t: Time) -> tuple[Tensor, Tensor, rng.Key, Tensor | None]:
        """Rows, labels and the key of one step, and whether it is real (not zero); None where all are."""
        if len(self.parts) > 1:
            rows, labels, key, *real = (at(part, t) for part in self.parts)
            return rows, labels, key, real[0] if real else None
        line = at(self.parts[0], t)
        rows, labels = line[: self.batch], line[self.batch : -2 if self.uneven else -1]
        return (rows, labels, line[-2], line[-1]) if self.uneven else (rows, labels, line[-1], None)


SCALED = 2**24
"""Numbers in all images of a client up to which they are scaled before its steps."""


def scaled(loss: Callable[..., Any], data: Tree, positions: Tensor) -> tuple[Callable[..., Any], Tree]:
    """The loss and the client's data with images of bytes scaled and normalised once, where it is alone on x86, the
    task's own loss is all that reads them and steps see each of them; elsewhere as they are. Bits stay the same."""
    task, (rows, x) = getattr(loss, "__self__", None), (data["rows"], data["x"])
    if not isinstance(task, Task) or loss != task.loss or task.augment is not None or task.tokens is not None:
        return loss, data
    if not lone.serves(x) or x.dtype != torch.uint8 or not rows.numel() <= positions.numel():
        return loss, data
    if rows.numel() * x[:1].numel() > SCALED:
        return loss, data
    ready = object.__new__(type(task))  # a copy would build the model
    ready.__dict__.update(task.__dict__, mean=())  # floats are then the model's input as they are
    own = {"x": task.normalise(x[rows]).contiguous(memory_format=lone.ORDER), "y": data["y"][rows]}
    return ready.loss, {**data, **own, "rows": torch.arange(len(rows), device=rows.device)}


def arranged(params: Tree) -> Tree:
    """Parameters whose weights of convolutions have the channels of a tap side by side, where kernels, or a client that
    is alone on x86, read them so, and give gradients that lie so. `plain` puts them back."""
    if not torch._C._are_functorch_transforms_active():
        alone: Tree = tree.map(lone.arranged, params)
        return alone
    laid: Tree = tree.map(lambda x: _side_by_side(x) if x.dim() == 4 and kernels.takes(x) else x, params)
    return laid


def _side_by_side(x: Tensor) -> Tensor:
    return x.permute(0, 2, 3, 1).contiguous().permute(0, 3, 1, 2)


def plain(params: Tree) -> Tree:
    """The parameters in the order of their axes, as others know them."""
    alone = not torch._C._are_functorch_transforms_active()
    laid: Tree = tree.map(lambda x: x.contiguous() if x.dim() == 4 and (alone or kernels.takes(x)) else x, params)
    return laid


def lower(loss: Callable[..., Any], params: Tree) -> Tree | None:
    """Parameters in the precision of a task's passes, where its own loss is all that reads them and many clients share
    a GPU; None elsewhere. A step that keeps both need not make one from the other, forwards and backwards."""
    task = getattr(loss, "__self__", None)
    if not isinstance(task, Task) or loss != task.loss or task.dtype is None:
        return None
    leaves = tree.leaves(params)
    if not (leaves and torch._C._are_functorch_transforms_active()):
        return None
    here = all(kernels.takes(x) and x.dtype == torch.float32 for x in leaves)
    return many.cast(params, task.dtype) if here and task.dtype != torch.float32 else None
