"""Losses of logits and of local training, uncertainty measures, and the class counts that they need."""

from __future__ import annotations

from dataclasses import replace

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Loss, Task, Tree, Work, rng, tree
from ..core.gradient import grad
from ..core.local import batch_of
from ..core.loops import Time, at, repeat
from .masks import mean_of, real_rows


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


def sample_losses(task: Task, vars: Tree, data: Tree, chunk: int = 256) -> Tensor:
    """Cross-entropy of each of a client's rows (padding included), in eval mode, a chunk at a time to bound memory."""
    parts = data["rows"].split(chunk, dim=-1)
    logits = torch.cat([task.apply(vars, data["x"][rows]).logits for rows in parts])
    return F.cross_entropy(logits, data["y"][data["rows"]], reduction="none")


def local_risk(task: Task, vars: Tree, data: Tree, chunk: int = 256) -> Tensor:
    """The mean cross-entropy over all of a client's examples, in eval mode."""
    each = sample_losses(task, vars, data, chunk)
    return mean_of(each, real_rows(each.shape[0], data["n"]))


def fisher_trace(task: Task, vars: Tree, data: Tree, work: Work, key: rng.Key) -> Tensor:
    """The mean over the batches of one epoch of the squared norm of the gradient."""
    positions, active = replace(work, epochs=1, iterations=None).plan(data, rng.fold(key, "plan"))

    def step(t: Time, now: Tree) -> tuple[Tree, Tree]:
        batch, own = batch_of(data, at(positions, t)), rng.fold(key, t)
        slope = grad(lambda params: task.loss({**vars, "params": params}, batch, own)[0])(vars["params"])
        return {"total": now["total"] + at(active, t) * tree.dot(slope, slope)}, {}

    start = {"total": torch.zeros((), device=data["n"].device)}
    end, _ = repeat(step, start, positions.shape[0], active)
    return end["total"] / active.sum().clamp_min(1)


def sharp(loss: Loss, rho: float) -> Loss:
    """The loss at `rho` uphill from the parameters, the way there being a constant: its gradient is the one there.

    Buffers are those of the parameters themselves. The same batch and key serve both passes.
    """

    def worst(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        here = tree.map(lambda p: p.detach(), vars["params"])
        slope, buffers = grad(lambda p: loss({**vars, "params": p}, batch, key), has_aux=True)(here)
        up = tree.scale(slope, rho / (tree.norm(slope) + 1e-12))
        value, _ = loss({**vars, "params": tree.add(vars["params"], up)}, batch, key)
        return value, buffers

    return worst
