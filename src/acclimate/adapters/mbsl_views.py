"""What MBSL's teacher and student answer on random views of a client's samples."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor
from torch.func import vmap

from ..core import Augment, Predict, Tree, Work, rng, tree
from ..core.loops import Needed, Time, at, repeat
from ..ops.params import with_params

TAUGHT = 64
"""Samples that the teacher sees at once. Where the model has batch norm, they share its statistics."""


def answer(predict: Predict, model: Tree, params: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features with these parameters, and with batch statistics where the model has batch norm."""
    out = predict(with_params(model, params), x, "still")
    return out.logits, out.features


def on_views(
    predict: Predict, model: Tree, params: Tree, x: Tensor, augment: Augment, count: int, key: rng.Key
) -> tuple[Tensor, Tensor]:
    """Logits and features of `count` random views, [count, B, ...]: each view is a batch with its own statistics."""

    def on_one(view: Tensor) -> tuple[Tensor, Tensor]:
        return answer(predict, model, params, augment.views(x, rng.fold(key, view)))

    answers: tuple[Tensor, Tensor] = vmap(on_one)(torch.arange(count, device=x.device))
    return answers


def of_all(f: Callable[[Tensor, rng.Key], Tree], x: Tensor, n: Tensor, key: rng.Key) -> Tree:
    """What `f` makes of all samples, TAUGHT at a time, with a key for each time: [len(x), ...].

    Only the first n samples are real. They fill every chunk, so that batch norm sees no padding. What is said of others
    means nothing.
    """
    chunks = -(-len(x) // TAUGHT)
    rows = torch.arange(chunks * TAUGHT, device=x.device).view(chunks, TAUGHT) % n

    def some(t: Time, now: Tree) -> tuple[Tree, Tree]:
        return now, f(x[at(rows, t)], rng.fold(key, "teach", t))

    _, made = repeat(some, {}, chunks, x, Needed(len(x), lambda most: -(-most // TAUGHT)))
    whole: Tree = tree.map(lambda m: m.flatten(0, 1)[: len(x)], made)
    return whole


def one_pass(
    learn: Callable[[Tree, Tree, rng.Key], Tree], now: Tree, seen: Tree, all: Tree, own: Tree, batch: int, key: rng.Key
) -> Tree:
    """The state after `learn(state, batch, key)` for every batch of the samples `seen`, in an order drawn anew.

    `all` is the same for every batch.
    """
    work = Work(epochs=1, batch=batch)
    plan, active = work.plan(own, rng.fold(key, "order"))

    def step(t: Time, now: Tree) -> tuple[Tree, Tree]:
        new = learn(now, {**tree.take(seen, at(plan, t)), **all}, rng.fold(key, "step", t))
        return tree.where(at(active, t), new, now), {}

    return repeat(step, now, len(plan), active, Needed(len(own["rows"]), work.steps))[0]
