"""What clients neither train nor send, in a few numbers per tensor: a run is not used with another frozen trunk.

A checkpoint has no frozen parameters, nor the trunks of `models.LoRA` and `models.Frozen`, so a model that is given
again, or made again of a file of weights, may bring others. Numbers are compared up to CLOSE, not by a hash: a trunk
that is drawn by a seed may differ in the last digits on another machine.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from ..core import Task
from .files import RunError, json_text, read_sealed, sealed, write

SCHEMA = "acclimate.frozen/1"
CLOSE = 1e-4
"""How far two projections may be apart, relative to the length of the tensor."""

Sketch = Mapping[str, Mapping[str, Any]]


def sketch(tensors: Mapping[str, Tensor]) -> Sketch:
    """Shape, type, length and one projection of every tensor."""
    return {name: _numbers(tensor) for name, tensor in tensors.items()}


def of_tasks(tasks: Sequence[Task]) -> Sketch:
    """The sketch of what tasks do not train; of several architectures, each by its number."""
    named = {f"{i}/" if len(tasks) > 1 else "": {**task.constants, **task.apart} for i, task in enumerate(tasks)}
    return sketch({prefix + name: tensor for prefix, own in named.items() for name, tensor in own.items()})


def keep(path: Path, now: Sketch | None) -> None:
    """Write what is frozen, unless it is written already, or nothing is."""
    if now and not path.exists():
        write(path, json_text(sealed({"schema": SCHEMA, "tensors": now})) + "\n")


def check(path: Path, now: Sketch | None) -> None:
    """Refuse a model whose frozen parameters are not those that were kept; a run of an earlier version kept none."""
    if now is None or not path.exists():
        return
    kept = read_sealed(path, {SCHEMA: True}, "restore it, or start a new run")
    if other := differing(kept["tensors"], now):
        some = ", ".join(other[:3]) + (f" and {len(other) - 3} more" if len(other) > 3 else "")
        raise RunError(
            f"{path.parent} was trained with other frozen parameters (requires_grad=False) than this model has: {some}"
            "; a run does not hold them, so give a model with the same, for example by module.load_state_dict(...)"
        )


def _numbers(tensor: Tensor) -> dict[str, Any]:
    flat = tensor.detach().cpu().flatten().double()
    along = flat @ torch.arange(flat.numel(), dtype=torch.float64).cos()
    kind = str(tensor.dtype).removeprefix("torch.")
    return {"shape": list(tensor.shape), "dtype": kind, "length": float(flat.norm()), "along": float(along)}


def differing(kept: Sketch, now: Sketch) -> list[str]:
    """The names of the tensors that differ, or are in one of the two alone."""
    return [n for n in dict.fromkeys([*kept, *now]) if n not in kept or n not in now or _apart(kept[n], now[n])]


def _apart(a: Mapping[str, Any], b: Mapping[str, Any]) -> bool:
    if (a["shape"], a["dtype"]) != (b["shape"], b["dtype"]):
        return True
    long = max(a["length"] or 0.0, b["length"] or 0.0)  # None: JSON has no word for what is not finite
    return any(abs((a[k] or 0.0) - (b[k] or 0.0)) > CLOSE * long for k in ("length", "along"))
