"""Losses and uncertainty measures of logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import rng
from ..core.local import Loss
from ..core.task import Task
from ..core.tree import Tree


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy (nats) of the softmax, per row."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def class_counts(data: Tree, num_classes: int) -> Tensor:
    """How many examples of each class a client holds: float [classes]."""
    y = data["y"][data["rows"]]
    real = torch.arange(y.shape[-1], device=y.device) < data["n"]
    return (F.one_hot(y, num_classes) * real[:, None]).sum(0).to(torch.float32)


def balanced_softmax(logits: Tensor, y: Tensor, counts: Tensor) -> Tensor:
    """Cross-entropy whose softmax is weighted by the class counts (Ren et al., NeurIPS 2020, Eq. 3): the logits then
    learn a balanced classifier. Counts are smoothed by one, so that absent classes do not divide by zero."""
    return F.cross_entropy(logits + (counts + 1.0).log(), y)


def local_loss(task: Task, data: Tree, balanced: bool) -> Loss:
    """The task's own loss, or balanced softmax under the client's class counts."""
    if not balanced:
        return task.loss
    counts = class_counts(data, task.num_classes)

    def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        out = task.apply(vars, batch["x"], "train", key)
        return balanced_softmax(out.logits, batch["y"], counts), out.buffers

    return loss
