"""The stream loop: a deployed model meets its client's unlabelled test stream, batch by batch.

Order, batch size and reset policy are data of the stream, not of the adapter. Batches are always full: the last one
wraps around to the stream's start, and what it repeats is not counted. Batches beyond a client's own number compute
and leave the adapter's state untouched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F
from torch import Tensor

from . import check, rng, tree
from .adapter import Adapter, Predict
from .task import Task
from .tree import Tree


@dataclass(frozen=True)
class Protocol:
    """How a stream is served: `batch` examples at a time; the adapter starts afresh per stream or per batch."""

    batch: int = 32
    reset: Literal["stream", "batch"] = "stream"

    def __post_init__(self) -> None:
        check.at_least(self, "batch", 1)
        check.one_of(self, "reset", ("stream", "batch"))


def run(
    task: Task, predict: Predict, adapter: Adapter, model: Tree, data: Tree, protocol: Protocol, key: rng.Key
) -> Tensor:
    """Logits [size, classes] for a client's stream, in stream order; rows beyond its `n` mean nothing."""
    size, n = data["rows"].shape[-1], data["n"].clamp_min(1)
    steps = -(-size // protocol.batch)
    at = torch.arange(steps * protocol.batch, device=n.device).view(steps, protocol.batch)
    x_rows = data["rows"][at % n]
    state, out = adapter.init(task, model), []
    if adapter.transductive:
        everything = data["x"][data["rows"][torch.arange(size, device=n.device) % n]]
        state = adapter.prepare(task, predict, model, state, everything, rng.fold(key, "prepare"))
    for t in range(steps):
        logits, new = adapter.step(task, predict, model, state, data["x"][x_rows[t]], rng.fold(key, "batch", t))
        out.append(logits)
        if protocol.reset == "stream":
            state = tree.where(t * protocol.batch < n, new, state) if "ragged" in data else new
    return torch.cat(out)[:size]


def score(logits: Tensor, y: Tensor, n: Tensor) -> Tree:
    """Accuracy, mean cross-entropy, mean confidence and calibration error over the first `n` rows."""
    real = (torch.arange(logits.shape[0], device=logits.device) < n).to(torch.float32)
    count = real.sum().clamp_min(1.0)
    hit = (logits.argmax(-1) == y).to(torch.float32)
    confidence = logits.softmax(-1).amax(-1)
    return {
        "accuracy": (hit * real).sum() / count,
        "loss": (F.cross_entropy(logits, y, reduction="none") * real).sum() / count,
        "confidence": (confidence * real).sum() / count,
        "ece": calibration_error(hit, confidence, real),
        "n": n.to(torch.float32),
    }


def calibration_error(hit: Tensor, confidence: Tensor, weight: Tensor, bins: int = 15) -> Tensor:
    """Expected calibration error: the mean gap between confidence and accuracy over equal-width bins."""
    bin_of = (confidence * bins).to(torch.int64).clamp(0, bins - 1)
    member = F.one_hot(bin_of, bins).to(torch.float32) * weight[:, None]
    gap = (member * (hit - confidence)[:, None]).sum(0).abs()
    return gap.sum() / weight.sum().clamp_min(1.0)
