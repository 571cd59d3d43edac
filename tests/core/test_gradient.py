"""Gradients of a client that runs alone and of many, against those of `torch.func`."""

from __future__ import annotations

import subprocess
import sys
from contextlib import contextmanager
from types import SimpleNamespace
from typing import NamedTuple

import pytest
import torch
from torch.func import grad, grad_and_value, vmap

from acclimate.core import gradient as ours
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


class Seen(NamedTuple):
    doubled: torch.Tensor
    count: torch.Tensor


def bent(at, power, more):
    out = (at["w"].tanh() ** 2 * power).sum() + more["b"].sum() * at["v"]
    return out, Seen(2 * at["w"], torch.tensor(3))


def test_the_transform_gives_the_numbers_of_torchs_own() -> None:
    """For each client under `vmap`, with arguments that are not differentiated, and whatever comes besides."""
    g = torch.Generator().manual_seed(0)
    w, v, b = (torch.randn(s, generator=g) for s in ((3, 4), (3,), (5,)))

    def each(transform, w, v):
        with torch.no_grad():
            return transform(bent, has_aux=True)({"w": w, "v": v}, 1.5, {"b": b})

    found, seen = vmap(lambda *x: each(ours.grad, *x))(w, v)
    expected, _ = vmap(lambda *x: each(grad, *x))(w, v)
    assert torch.equal(found["w"], expected["w"]) and torch.equal(found["v"], expected["v"])
    assert torch.equal(seen.doubled, 2 * w) and isinstance(seen, Seen) and seen.count.tolist() == [3, 3, 3]
    assert not found["w"].requires_grad and not w.requires_grad
    twice = lambda transform: transform(lambda x: transform(lambda y: (y**3).sum())(x).sin().sum())  # noqa: E731
    assert torch.equal(vmap(twice(ours.grad))(w), vmap(twice(grad))(w))
    plain = lambda x: x.exp().prod()  # noqa: E731
    pairs = zip(ours.grad_and_value(plain)(b), grad_and_value(plain)(b), strict=True)
    assert all(torch.equal(*pair) for pair in pairs)


def test_a_level_ends_with_an_error_in_the_function() -> None:
    for wrong, said in ((lambda x: x, r"scalar.*shape \(2,\)"), (lambda x: 1.0, "scalar.*gave float")):
        with pytest.raises(RuntimeError, match=said):
            ours.grad(wrong)(torch.ones(2))
    assert not torch._C._are_functorch_transforms_active()
    assert not torch._C._functorch.get_inplace_requires_grad_allowed()


def test_gradients_do_not_import_torchs_compiler() -> None:
    """It takes seconds, in every process; `torch.func.grad` imports it at its first call."""
    code = """
import sys, torch
from torch.func import vmap
from acclimate.core.gradient import grad, grad_and_value, gradient
x = torch.ones(2, 3)
vmap(grad(lambda x: x.tanh().sum()))(x)
vmap(grad_and_value(lambda x: x.tanh().sum()))(x)
vmap(lambda x: gradient(lambda at: (at["x"].sum(), {}), {"x": x})[0]["x"])(x)
print([name for name in ("torch._dynamo", "sympy") if name in sys.modules])
"""
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=250)
    assert done.stdout.strip() == "[]", done.stdout + done.stderr


def test_compiled_autograd_is_off_while_a_gradient_is_computed(monkeypatch) -> None:
    """As `torch.func.grad` has it, where somebody has imported what compiles."""
    events = []

    @contextmanager
    def off():
        events.append("off")
        yield
        events.append("as before")

    monkeypatch.setitem(sys.modules, ours.COMPILER, SimpleNamespace(_disable=off))
    real = torch.autograd.grad
    monkeypatch.setattr(torch.autograd, "grad", lambda *a, **k: events.append("gradient") or real(*a, **k))
    assert ours.grad(torch.sum)(torch.ones(2)).tolist() == [1.0, 1.0]
    assert events == ["off", "gradient", "as before"]


def test_saved_tensors_are_left_alone() -> None:
    hooks = torch.autograd.graph.saved_tensors_hooks(lambda x: x, lambda x: x)
    with hooks, pytest.raises(RuntimeError, match="takes no hooks"):
        ours.grad(lambda x: (x**2).sum())(torch.ones(2))
