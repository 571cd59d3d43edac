"""Tuning on unlabelled data: down the entropy of a batch, on views of one sample, and on a whole stream."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from typing import Any, Literal

import torch
from torch import Tensor
from torch.func import vmap

from ..core import Key, Loss, Optimizer, Predict, Task, Tree, Work, apart, rng, train, tree
from ..core.gradient import grad, gradient
from ..core.loops import chunked
from ..core.nn import lone
from .augmix import augmix
from .losses import entropy
from .params import with_params

Views = Callable[[Tensor, Key], Tensor]
"""`draw(x, key)`: the views of one sample, step by step, [steps, views, ...]."""
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


def map_samples(
    f: Callable[[Tree, Key], Any],
    xs: Tree,
    keys: Tensor,
    chunk: int,
    draw: Views | None = None,
    model: Tree | None = None,
) -> Any:
    """`f(row, key)` for every row of the tree `xs` and of `keys`, `chunk` rows at once to bound memory.

    `f` may tune a copy of the parameters for its sample, which is `row["x"]`: under `vmap` each row has its own copy,
    which is gone with the row, so resets cost nothing. Nests in an outer `vmap` over clients. What `draw(x, key)` gives
    is `row["seen"]`, and is drawn for all rows of a chunk together. A `model` is `row["model"]` of all rows: then `f`
    reads no tensor but its arguments and gives one, and a CPU takes row by row where that is quicker (`core.apart`).
    A row that is alone pays for no `vmap`.
    """

    def several(rows: Tree) -> Any:
        if draw is not None:
            rows = {**rows, "x": {**rows["x"], "seen": vmap(draw)(rows["x"]["x"], rows["k"])}}
        if model is None:
            return _mapped(lambda row: f(row["x"], row["k"]), rows)

        def one(model: Tree, row: Tree) -> Any:
            return f({**row["x"], "model": model}, row["k"])

        if draw is not None and apart.pays(model, rows, math.prod(rows["x"]["seen"].shape[2:])):
            return apart.one_by_one(one, model, rows)
        return _mapped(partial(one, model), rows)

    return chunked(several, {"x": xs, "k": keys}, chunk)


def _mapped(f: Callable[[Tree], Any], rows: Tree) -> Any:
    """`f` of every row, at once."""
    return vmap(f)(rows) if len(rows["k"]) > 1 else f(tree.map(lambda v: v[0], rows))[None]


def marginal_entropy(logits: Tensor) -> Tensor:
    """Entropy (nats) of the mean prediction over the views [views, classes] (MEMO, Eq. 2), in log space."""
    log_mean = logits.log_softmax(-1).logsumexp(0) - math.log(logits.shape[0])
    return -(log_mean.exp() * log_mean).sum()


def augmix_views(steps: int, views: int) -> Views:
    """Draws AugMix views of a sample, anew for each step: [steps, views, ...]."""

    def draw(x: Tensor, key: Key) -> Tensor:
        if not steps:
            return x.new_zeros(0, views, *x.shape)
        times = rng.fold(key, torch.arange(steps, device=x.device))
        seen: Tensor = vmap(lambda k: augmix(x, k, views=views))(times)
        return seen

    return draw


def tuned_on_views(logits: Callable[[Tree, Tensor], Tensor], start: Tree, seen: Tensor, opt: Optimizer) -> Tree:
    """What is tuned, after one step down the marginal entropy of each of `seen` [steps, views, ...] (MEMO, Alg. 1).

    `logits(tuned, batch)` are the predictions that it gives.
    """

    def loss(views: Tensor, tuned: Tree) -> tuple[Tensor, Tree]:
        return marginal_entropy(logits(tuned, views)), {}

    tuned: Tree = tree.map(lone.arranged, start)
    state = opt.init(tuned)
    for views in seen:
        grads, _ = gradient(partial(loss, views), tuned)
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
