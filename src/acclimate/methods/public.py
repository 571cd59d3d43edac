"""What HeteroFedTTA's clients do with the public set: distil from logits on it, adapt to all of it, answer all of it.

The paper does not say on what a model is adapted whose logits are sent: here and in the released code, that is one step
on the whole public set. Every inner step takes the norm that a batch of `work.batch` samples would have, as at test
time. KL weighs the log-ratio by the teacher's probabilities, as FedMD and the released code do; "student" takes the
order in which Eq. 14 prints its arguments for that of the divergence.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Literal

import torch
from torch import Tensor

from ..core import Loss, Optimizer, Scalar, Task, Tree, Work, local, rng, tree
from ..core.gradient import grad_and_value
from ..ops.learned import TINY, scores
from ..ops.params import train_jointly

Logits = Callable[[Tree, Tensor], Tensor]
"""`logits(params, x)` of a model whose other variables are given."""


def distilled(
    loss: Loss,
    mine: Tree,
    x: Tensor,
    down: Tree,
    names: Iterable[str],
    round: Tensor,
    opts: Mapping[str, Optimizer],
    work: Work,
    key: rng.Key,
) -> Tree:
    """A client's nets after training on a public set that has the ensemble's logits in the place of labels.

    `down` has the `logits`, of which those of these names are used in this order. Where none is `known` yet, nothing
    changes.
    """
    if not len(x) or not work.epochs:
        return mine
    rows, n = torch.arange(len(x), device=x.device), torch.full((), len(x), device=x.device)
    teachers = torch.stack([down["logits"][name] for name in names], 1)
    data = {"x": x, "y": teachers, "rows": rows, "n": n, "round": round}
    new = train_jointly(loss, mine, data, opts, replace(work, batch=min(work.batch, len(x))), key, "base")
    digested: Tree = tree.where(down["known"] > 0, new, mine)
    return digested


def divergence(student: Tensor, teacher: Tensor, weigh: Literal["student", "teacher"]) -> Tensor:
    """KL between the softmax of two logits, mean over the batch: `weigh` says whose probabilities come first."""
    first, second = student.log_softmax(-1), teacher.log_softmax(-1)
    if weigh == "teacher":
        first, second = second, first
    return (first.exp() * (first - second)).sum(-1).mean()


def public_logits(task: Task, mine: Tree, batch: int, base: bool, lr: Scalar, work: Work) -> Tree:
    """The message: logits on the public set, of the adapted model and with `base` also of the base model.

    The step that adapts the model has the rate `lr`, and the length and the clipping that it has in training (`work`).
    """
    params, net = mine["vars"]["params"], mine.get("net")
    x = task.public_on(tree.leaves(params)[0].device)
    if not len(x):
        none = torch.zeros(0, task.num_classes, device=x.device)
        return {"personalised": none, **({"base": none} if base else {})}
    batch = min(batch, len(x))

    def logits(params: Tree, some: Tensor) -> Tensor:
        return task.apply({**mine["vars"], "params": params}, some, "adapt").logits

    up = {"base": answers(logits, params, x, batch)} if base else {}
    if net is not None:
        params = whole_step(logits, net, params, x, batch, lr, work.batch, work.clip)
    return {"personalised": answers(logits, params, x, batch), **up}


def answers(logits: Logits, params: Tree, x: Tensor, batch: int) -> Tensor:
    """Logits on the whole set, in full batches so that batch statistics never come of a few leftover samples."""
    return torch.cat([logits(params, x[at]) for at in _batches(x, batch)])[: len(x)]


def whole_step(
    logits: Logits, net: Tree, params: Tree, x: Tensor, batch: int, lr: Scalar, length: int, clip: float | None = None
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
