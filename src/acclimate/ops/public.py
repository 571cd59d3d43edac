"""What clients do with a public set: distil from logits on it, answer all of it, adapt to all of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Literal

import torch
from torch import Tensor
from torch.func import grad_and_value

from ..core import Tree, local, tree
from .learned import TINY, scores

Logits = Callable[[Tree, Tensor], Tensor]
"""`logits(params, x)` of a model whose other variables are given."""


def lesson(x: Tensor, logits: Tensor, round: Tensor) -> Tree:
    """A public set with a teacher's logits in the place of labels, as client data (see `core.local`)."""
    rows, n = torch.arange(len(x), device=x.device), torch.full((), len(x), device=x.device)
    return {"x": x, "y": logits, "rows": rows, "n": n, "round": round}


def divergence(student: Tensor, teacher: Tensor, weigh: Literal["student", "teacher"]) -> Tensor:
    """KL between the softmax of two logits, mean over the batch: `weigh` says whose probabilities come first."""
    first, second = student.log_softmax(-1), teacher.log_softmax(-1)
    if weigh == "teacher":
        first, second = second, first
    return (first.exp() * (first - second)).sum(-1).mean()


def answers(logits: Logits, params: Tree, x: Tensor, batch: int) -> Tensor:
    """Logits on the whole set, in full batches so that batch statistics never come of a few leftover samples."""
    return torch.cat([logits(params, x[at]) for at in _batches(x, batch)])[: len(x)]


def whole_step(
    logits: Logits, net: Tree, params: Tree, x: Tensor, batch: int, lr: float, length: int, clip: float | None = None
) -> Tree:
    """One step on the learned loss of the whole set, whose norm counts as that of `length` samples.

    Batch after batch, so that memory is bounded: the gradient of the norm is that of the sum of squares, which adds up,
    over twice the norm.
    """
    squares, total = tree.zeros(params), torch.zeros_like(tree.leaves(params)[0].flatten()[0])
    for t, at in enumerate(_batches(x, batch)):
        once = torch.arange(t * batch, (t + 1) * batch, device=x.device) < len(x)

        def loss(p: Tree, at: Tensor = at, once: Tensor = once) -> Tensor:
            judged = scores(net, logits(p, x[at]))
            return (judged**2 * once.to(judged.dtype)).sum()

        gradient, part = grad_and_value(loss)(params)
        squares, total = tree.add(squares, gradient), total + part
    share = length / len(x)
    norm = (total * share + TINY).sqrt()
    gradient = tree.scale(squares, share / (2.0 * norm))
    stepped: Tree = tree.add(params, gradient if clip is None else local.clip(gradient, clip), -lr)
    return stepped


def _batches(x: Tensor, batch: int) -> Tensor:
    """Positions [batches, batch] that cover the set in order; the last batch wraps around."""
    count = -(-len(x) // batch) * batch
    return torch.arange(count, device=x.device).view(-1, batch) % len(x)
