"""Linear heads and small fully connected networks as trees, and the features that heads sit on.

Methods learn such networks beside the model: losses, generators, encoders. A layer is `{"weight": [out, in], "bias":
[out]}`; a network names its layers "0", "1", ...
"""

from __future__ import annotations

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor

from ..core import Optimizer, Task, Tree, Work, rng, train, tree
from .masks import mean_of, real_rows


def init(key: rng.Key, widths: Sequence[int]) -> Tree:
    """Layers from `widths[0]` inputs to `widths[-1]` outputs, drawn as torch draws linear layers."""
    return {str(i): layer(rng.fold(key, i), a, b) for i, (a, b) in enumerate(zip(widths, widths[1:], strict=False))}


def layer(key: rng.Key, inputs: int, outputs: int) -> Tree:
    """One linear layer, uniform within 1 / sqrt(inputs)."""
    draws = {"weight": rng.uniform(rng.fold(key, "weight"), outputs, inputs)}
    draws["bias"] = rng.uniform(rng.fold(key, "bias"), outputs)
    return {name: (2.0 * u - 1.0) * inputs**-0.5 for name, u in draws.items()}


def apply(net: Tree, x: Tensor) -> Tensor:
    """The network's outputs, with ReLU between its layers."""
    for i in range(len(net)):
        x = linear(net[str(i)], x.relu() if i else x)
    return x


def linear(head: Tree, features: Tensor) -> Tensor:
    """`{"weight": [C, d], "bias": [C]}` applied to features; the bias may be absent."""
    out = features @ head["weight"].mT
    return out + head["bias"] if "bias" in head else out


def drawn_apart(task: Task, key: rng.Key, count: int) -> list[Tree]:
    """So many initial models from different draws, the first from the key itself."""
    return [task.init(rng.fold(key, "model", m) if m else key) for m in range(count)]


def head_of(task: Task, vars: Tree) -> Tree:
    """The model's own head as a tree of its own."""
    params = vars["params"]
    bias = {"bias": params[task.head_bias]} if task.head_bias in params else {}
    return {"weight": params[task.head_weight], **bias}


SUMMED = "summed"
"""In a deployed model: its `head` answers in sum with the model's own head, and not by itself (FedRoD)."""


def answering_head(task: Task, model: Tree) -> Tree:
    """The linear head of a deployed model's answers: its own, or the sum where a personal one adds to it."""
    own = head_of(task, model["vars"])
    return tree.add(own, model["head"]) if SUMMED in model else own


def personal_head(task: Task, model: Tree) -> Tree:
    """The head of a client's own answers, which is `head` or, where that adds to the model's, the sum."""
    head: Tree = answering_head(task, model) if SUMMED in model else model["head"]
    return head


def named(task: Task, head: Tree) -> Tree:
    """A head's parameters under the names that the model has for its own."""
    names = {"weight": task.head_weight, "bias": task.head_bias}
    return {names[kind]: p for kind, p in head.items()}


def with_head(task: Task, vars: Tree, head: Tree) -> Tree:
    """The model's variables with this head in the place of its own."""
    return {**vars, "params": {**vars["params"], **named(task, head)}}


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


def fit_head(head: Tree, features: Tensor, data: Tree, opt: Optimizer, work: Work, key: rng.Key) -> Tree:
    """Train a linear head with cross-entropy on fixed features."""

    def loss(vars: Tree, batch: Tree, key: rng.Key) -> tuple[Tensor, Tree]:
        return F.cross_entropy(linear(vars["params"], batch["x"]), batch["y"]), {}

    start = {"params": head, "buffers": {}}
    trained: Tree = train(loss, start, on_features(data, features), opt, work, key)["params"]
    return trained
