"""A client's description from its unlabelled samples, and a model's parameters from a description (ODPFL-HN)."""

from __future__ import annotations

import math

from torch import Tensor
from torch.func import vmap

from ..core import Task, Tree, rng, tree
from ..core.gradient import grad
from . import nets
from .masks import mean_of
from .nets import linear


def inputs(task: Task) -> int:
    """How many numbers a sample has."""
    return math.prod(task.shape)


def describe(encoder: Tree, task: Task, x: Tensor, real: Tensor | None = None) -> Tensor:
    """The mean of the encoder's outputs over the real samples, whatever their order."""
    each = nets.apply(encoder, task.normalise(x).flatten(1))
    return each.mean(0) if real is None else mean_of(each, real)


def init(key: rng.Key, params: Tree, size: int, hidden: int) -> Tree:
    """A layer on the description, and for every parameter a linear one whose bias is the model's initial value.

    The weights are drawn small, so that every client's first model is near that one.
    """
    heads: Tree = {}
    for i, (name, p) in enumerate(params.items()):
        drawn = nets.layer(rng.fold(key, "head", i), hidden, p.numel())["weight"]
        heads[name] = {"weight": 0.1 * p.std(correction=0) * drawn.reshape(*p.shape, hidden), "bias": p.clone()}
    return {"trunk": nets.layer(rng.fold(key, "trunk"), size, hidden), "heads": heads}


def generate(hyper: Tree, description: Tensor) -> Tree:
    """The parameters of a model."""
    wide = linear(hyper["trunk"], description).relu()
    return {name: head["weight"] @ wide + head["bias"] for name, head in hyper["heads"].items()}


def pull(hyper: Tree, descriptions: Tensor, missed: Tree) -> Tree:
    """The hypernetwork's gradient of <theta_i, missed_i>, averaged over the clients along the leading axis.

    All clients at once, because a client's own gradient is as large as the hypernetwork.
    """

    def gap(hyper: Tree) -> Tensor:
        return tree.dot(vmap(generate, in_dims=(None, 0))(hyper, descriptions), missed) / len(descriptions)

    gradient: Tree = grad(gap)(hyper)
    return gradient


def model(makers: Tree, task: Task, x: Tensor, real: Tensor | None = None) -> Tree:
    """The parameters that encoder and hypernetwork make of these samples."""
    return generate(makers["hyper"], describe(makers["encoder"], task, x, real))
