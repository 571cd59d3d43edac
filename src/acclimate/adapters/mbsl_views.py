"""What MBSL's teacher and student answer on random views of a client's samples."""

from __future__ import annotations

from collections.abc import Iterator

import torch
from torch import Tensor
from torch.func import vmap

from ..core import Augment, Predict, Tree, rng
from ..ops.params import with_params

TAUGHT = 64
"""Samples that the teacher sees at once. Where the model has batch norm, they share its statistics."""


def answer(predict: Predict, model: Tree, params: Tree, x: Tensor) -> tuple[Tensor, Tensor]:
    """Logits and features with these parameters, and with batch statistics where the model has batch norm."""
    out = predict(with_params(model, params), x, "adapt")
    return out.logits, out.features


def on_views(
    predict: Predict, model: Tree, params: Tree, x: Tensor, augment: Augment, count: int, key: rng.Key
) -> tuple[Tensor, Tensor]:
    """Logits and features of `count` random views, [count, B, ...]: each view is a batch with its own statistics."""

    def on_one(view: Tensor) -> tuple[Tensor, Tensor]:
        return answer(predict, model, params, augment.views(x, rng.fold(key, view)))

    answers: tuple[Tensor, Tensor] = vmap(on_one)(torch.arange(count, device=x.device))
    return answers


def on_views_of_all(
    predict: Predict, model: Tree, params: Tree, x: Tensor, n: Tensor, augment: Augment, count: int, key: rng.Key
) -> Iterator[Tensor]:
    """Logits [count, TAUGHT, C] of `count` random views of all samples, chunk by chunk.

    Only the first n samples are real. They fill every chunk, so that batch norm sees no padding.
    """
    chunks = -(-len(x) // TAUGHT)
    rows = torch.arange(chunks * TAUGHT, device=x.device).view(chunks, TAUGHT) % n
    for t in range(chunks):
        yield on_views(predict, model, params, x[rows[t]], augment, count, rng.fold(key, "teach", t))[0]
