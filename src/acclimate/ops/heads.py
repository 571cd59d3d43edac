"""Linear heads as trees, and the features they sit on."""

from __future__ import annotations

import torch
from torch import Tensor

from ..core import Key, Optimizer, Task, Tree, Work, train
from .real import mean_of, real_rows


def linear(head: Tree, features: Tensor) -> Tensor:
    """`{"weight": [C, d], "bias": [C]}` applied to features; the bias may be absent."""
    out = features @ head["weight"].mT
    return out + head["bias"] if "bias" in head else out


def head_of(task: Task, vars: Tree) -> Tree:
    """The model's own head as a tree of its own."""
    params = vars["params"]
    bias = {"bias": params[task.head_bias]} if task.head_bias in params else {}
    return {"weight": params[task.head_weight], **bias}


def named(task: Task, head: Tree) -> Tree:
    """A head's parameters under the names that the model has for its own."""
    names = {"weight": task.head_weight, "bias": task.head_bias}
    return {names[kind]: p for kind, p in head.items()}


def features_of(task: Task, vars: Tree, data: Tree, chunk: int = 256) -> Tensor:
    """Features of all of a client's rows (padding included) in eval mode, a chunk at a time to bound memory."""
    parts = data["rows"].split(chunk, dim=-1)
    return torch.cat([task.apply(vars, data["x"][rows]).features.detach() for rows in parts])


def on_features(data: Tree, features: Tensor) -> Tree:
    """The client's data with features in place of inputs: local training then runs on them."""
    places = torch.arange(features.shape[0], device=features.device)
    return {**data, "x": features, "y": data["y"][data["rows"]], "rows": places}


def mean_feature(features: Tensor, n: Tensor) -> Tensor:
    """The mean over a client's real rows."""
    return mean_of(features, real_rows(features.shape[0], n))


def fit_head(head: Tree, features: Tensor, data: Tree, opt: Optimizer, work: Work, key: Key) -> Tree:
    """Train a linear head with cross-entropy on fixed features."""

    def loss(vars: Tree, batch: Tree, key: Key) -> tuple[Tensor, Tree]:
        return torch.nn.functional.cross_entropy(linear(vars["params"], batch["x"]), batch["y"]), {}

    start = {"params": head, "buffers": {}}
    trained: Tree = train(loss, start, on_features(data, features), opt, work, key)["params"]
    return trained
