"""The gradient of a client that runs alone, against `torch.func.grad`."""

from __future__ import annotations

import torch
from torch.func import grad, vmap

from acclimate.core.gradient import gradient
from acclimate.core.tree import Tree

AT = {"a": torch.tensor([1.0, 2.0]), "b": {"c": torch.tensor(3.0)}}


def loss(at: Tree) -> tuple[torch.Tensor, Tree]:
    return (at["a"] ** 3).sum() * at["b"]["c"], {"seen": at["a"] + 1}


def test_values_are_those_of_the_transform() -> None:
    with torch.no_grad():
        found, besides = gradient(loss, AT)
    expected, _ = grad(loss, has_aux=True)(AT)
    assert torch.equal(found["a"], expected["a"]) and torch.equal(found["b"]["c"], expected["b"]["c"])
    assert torch.equal(besides["seen"], torch.tensor([2.0, 3.0])) and not besides["seen"].requires_grad
    assert not AT["a"].requires_grad


def test_what_a_loss_does_not_depend_on_has_gradient_zero() -> None:
    found, _ = gradient(lambda at: (at["a"].sum(), {}), AT)
    assert torch.equal(found["a"], torch.ones(2)) and found["b"]["c"] == 0
    nothing, _ = gradient(lambda at: (torch.tensor(1.0), {}), AT)
    assert torch.equal(nothing["a"], torch.zeros(2))
    assert gradient(lambda at: (torch.tensor(1.0), {}), {}) == ({}, {})


def test_gradients_nest() -> None:
    """d/dx of sum((d/dx x^3)^2) = d/dx 9 x^4 = 36 x^3."""

    def squared(at: Tree) -> tuple[torch.Tensor, Tree]:
        inner, _ = gradient(lambda p: ((p["x"] ** 3).sum(), {}), at)
        return (inner["x"] ** 2).sum(), {}

    x = torch.tensor([1.0, 2.0])
    assert torch.allclose(gradient(squared, {"x": x})[0]["x"], 36 * x**3)
    assert torch.allclose(vmap(lambda x: gradient(squared, {"x": x})[0]["x"])(x), 36 * x**3)
