"""FedTTA's learned loss of unlabelled samples, the l2-norm of a small network's outputs on logits, and a step on it."""

from __future__ import annotations

from typing import Any, Literal

import torch
from torch import Tensor

from ..core import Out, Scalar, Task, Tree, check, rng, tree
from ..core.gradient import grad
from . import nets

TINY = 1e-12
"""Under the root, so that its derivatives of any order stay finite where every output is zero."""


def scores(net: Tree, logits: Tensor) -> Tensor:
    """How poorly the model does on each sample, as the network sees it: [B]. A sample's score is its own alone."""
    return nets.apply(net, logits)[:, 0]


def learned_loss(net: Tree, logits: Tensor, real: Tensor | None = None, batch: Tensor | None = None) -> Tensor:
    """The norm of the scores over the samples (Eq. 2), whatever their order.

    `real` (bool [B]) leaves out padding. With `batch`, it is the norm that this many samples of the same mean square
    would have: the norm grows with the root of the number of samples, and a rate that was learned on batches fits no
    other number.
    """
    squares = scores(net, logits) ** 2
    weight = torch.ones_like(squares) if real is None else real.to(squares.dtype)
    total = (squares * weight).sum()
    if batch is not None:
        total = total * batch / weight.sum().clamp_min(1.0)
    return (total + TINY).sqrt()


def adapted(
    task: Task,
    both: Tree,
    x: Tensor,
    key: rng.Key,
    lr: Scalar,
    order: Literal["first", "second"],
    batch: int | None = None,
    base_counts: bool = False,
) -> tuple[Tensor, Out]:
    """The base model's logits on a batch, and the outputs of the model that an inner step on it leads to (Eq. 5).

    `both` has the parameter groups `base` and `net`; without a net there is no step. In first order the step's gradient
    is a constant of the model, and so are the logits unless `base_counts`. `batch` is that of `learned_loss`.
    """
    base, net = both["params"]["base"], both["params"].get("net")

    def forward(params: Tree) -> Out:
        return task.apply({"params": params, "buffers": both["buffers"]}, x, "train", key)

    if net is None:
        out = forward(base)
        return out.logits, out

    def inner(params: Tree) -> tuple[Tensor, Tensor]:
        logits = forward(params).logits
        length = None if batch is None else torch.full_like(logits[0, 0], batch)
        return learned_loss(net, logits, batch=length), logits

    at = base if order == "second" else tree.map(lambda p: p.detach(), base)
    gradient, logits = grad(inner, has_aux=True)(at)
    if order == "first" and base_counts:
        logits = forward(base).logits
    return logits, forward(tree.add(base, gradient, -lr))


def by_rounds(record: Any) -> None:
    """Refuse an inner schedule that counts steps: the inner step has no clock but the round's."""
    if (schedule := record.inner_schedule).per != "round":
        where = f"{type(record).__name__}: inner_schedule={schedule!r}"
        raise check.FieldError(f"{where} must count rounds, per='round'", "inner_schedule")


def inner_rate(record: Any, round: Tensor) -> Scalar:
    """The rate of a method's inner step in a round, from 0: its `inner_lr` as its `inner_schedule` has it."""
    rate: Scalar = record.inner_lr * record.inner_schedule.factor(round)
    return rate


def inner_settings(record: Any, rounds: Tensor) -> Tree:
    """What a deployed model says of the inner step in the last of so many rounds: its rate, and its batches' size."""
    zero = torch.zeros_like(rounds)
    return {"lr": zero + inner_rate(record, last_of(rounds)), "batch": zero + record.work.batch}


def last_of(rounds: Tensor) -> Tensor:
    """The number of the last of so many rounds, from 0."""
    return (rounds - 1).clamp_min(0)
