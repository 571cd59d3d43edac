"""Small fully connected networks as trees: what methods learn beside the model (losses, generators, encoders)."""

from __future__ import annotations

from collections.abc import Sequence

from torch import Tensor

from ..core import Tree, rng
from .heads import linear


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
