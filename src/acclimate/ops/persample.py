"""Test-time tuning of one sample at a time, for many samples at once."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

from torch import Tensor
from torch.func import grad, vmap

from ..core import Key, Optimizer, Tree, rng
from .augmix import augmix


def map_samples(f: Callable[[Any, Key], Any], xs: Any, keys: Tensor, chunk: int) -> Any:
    """`f(x, key)` for every row of `xs` (a tensor or a tree) and of `keys`, `chunk` rows at once to bound memory.

    `f` may tune a copy of the parameters for its sample: under `vmap` each row has its own copy, which is gone with
    the row, so resets cost nothing. Nests in an outer `vmap` over clients.
    """
    return vmap(f, chunk_size=chunk)(xs, keys)


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
