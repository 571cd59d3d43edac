"""Tuning on unlabelled data: down the entropy of a batch, on views of one sample, and on a whole stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import grad, vmap

from ..core import Key, Loss, Optimizer, Predict, Task, Tree, Work, rng, train, tree
from ..core.loops import chunked
from .augmix import augmix
from .losses import entropy
from .params import with_params

Update = Callable[[Tree, Tree, Tree], tuple[Tree, Tree]]
"""`update(gradients, optimiser state, parameters)` gives new parameters and a new state, as `Optimizer.update` does."""


def tuned_of(task: Task, model: Tree, params: Literal["norm", "all"]) -> Tree:
    """The parameters that are tuned: those of the normalisation layers, or all."""
    every: Tree = model["vars"]["params"]
    return tree.pick(every, task.norm) if params == "norm" else every


def descend(predict: Predict, model: Tree, state: Tree, x: Tensor, update: Update, steps: int) -> tuple[Tensor, Tree]:
    """Steps down the mean entropy of one batch's predictions: its logits before the last of them, and the new state.

    `state` has the tuned parameters as `params`, which take the place of the model's own, and the optimiser's as `opt`.
    """

    def loss(tuned: Tree) -> tuple[Tensor, Tensor]:
        logits = predict(with_params(model, tuned), x, "still").logits
        return entropy(logits).mean(), logits

    tuned, opt = state["params"], state["opt"]
    for _ in range(steps):
        grads, logits = grad(loss, has_aux=True)(tuned)
        tuned, opt = update(grads, opt, tuned)
    return logits, {"params": tuned, "opt": opt}


def map_samples(f: Callable[[Any, Key], Any], xs: Any, keys: Tensor, chunk: int) -> Any:
    """`f(x, key)` for every row of `xs` (a tensor or a tree) and of `keys`, `chunk` rows at once to bound memory.

    `f` may tune a copy of the parameters for its sample: under `vmap` each row has its own copy, which is gone with
    the row, so resets cost nothing. Nests in an outer `vmap` over clients.
    """
    vectorised = vmap(f)
    return chunked(lambda rows: vectorised(rows["x"], rows["k"]), {"x": xs, "k": keys}, chunk)


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy (nats) of the mean prediction over the views [views, classes] (MEMO, Eq. 2), in log space."""
    log_mean = logits.log_softmax(-1).logsumexp(0) - math.log(logits.shape[0])
    return -(log_mean.exp() * log_mean).sum()


def tuned_on_views(
    logits: Callable[[Tree, Tensor], Tensor], start: Tree, x: Tensor, key: Key, opt: Optimizer, steps: int, views: int
) -> Tree:
    """What is tuned, after steps down the marginal entropy of one sample x (MEMO, Algorithm 1).

    `logits(tuned, batch)` are the predictions that it gives. AugMix views are drawn anew in each step.
    """
    tuned, state = start, opt.init(start)
    for t in range(steps):
        seen = augmix(x, rng.fold(key, t), views=views)
        grads = grad(lambda p, seen=seen: marginal_entropy(logits(p, seen)))(tuned)
        tuned, state = opt.update(grads, state, tuned)
    return tuned


def tune(
    loss: Loss,
    vars: Tree,
    x: Tensor,
    real: Tensor,
    marks: Tensor,
    opt: Optimizer,
    work: Work,
    key: rng.Key,
    only: frozenset[str] | None = None,
) -> Tree:
    """Minimise `loss` over the `real` rows of a stream; a batch has `marks` where labelled data has labels."""
    data = {
        "x": x,
        "y": marks,
        "rows": torch.arange(x.shape[0], device=x.device),
        "n": real.sum().clamp_min(1),
        "round": torch.zeros((), dtype=torch.int64, device=x.device),
        "ragged": real,
    }
    return train(loss, vars, data, opt, work, key, only)


def answers(predict: Predict, model: Tree, x: Tensor, chunk: int = 256) -> tuple[Tensor, Tensor]:
    """Features and logits of a whole stream, a chunk at a time to bound memory."""
    outs = [predict(model, part) for part in x.split(chunk)]
    return torch.cat([o.features for o in outs]), torch.cat([o.logits for o in outs])
