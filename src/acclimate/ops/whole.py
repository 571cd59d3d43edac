"""A whole unlabelled stream as client data, so that transductive adapters tune on it as a client trains."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Loss, Optimizer, Predict, Tree, Work, rng, train


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
