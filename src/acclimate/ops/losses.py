"""Losses and uncertainty measures of logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Loss, Task, Tree, rng, tree
from .real import mean_of, real_rows


def entropy(logits: Tensor) -> Tensor:
    """Shannon entropy (nats) of the softmax, per row."""
    return -(logits.softmax(-1) * logits.log_softmax(-1)).sum(-1)


def class_counts(data: Tree, num_classes: int) -> Tensor:
    """How many examples of each class a client holds: float [classes]."""
    y = data["y"][data["rows"]]
    real = real_rows(y.shape[-1], data["n"])
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


def proximal(loss: Loss, anchor: Tree, weight: float) -> Loss:
    """The loss plus weight/2 times the squared distance of the parameters from those of `anchor`."""

    def tied(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        value, buffers = loss(vars, batch, key)
        away = tree.sub(vars["params"], anchor["params"])
        return value + weight / 2 * tree.dot(away, away), buffers

    return tied


def local_risk(task: Task, vars: Tree, data: Tree, chunk: int = 256) -> Tensor:
    """The mean cross-entropy over all of a client's examples, in eval mode, a chunk at a time to bound memory."""
    parts = data["rows"].split(chunk, dim=-1)
    logits = torch.cat([task.apply(vars, data["x"][rows]).logits for rows in parts])
    each = F.cross_entropy(logits, data["y"][data["rows"]], reduction="none")
    return mean_of(each, real_rows(each.shape[0], data["n"]))
