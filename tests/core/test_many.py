"""One operation for all leaves of a tree, against one for each: values, gradients of two orders, maps within maps."""

import pytest
import torch
from torch import Tensor
from torch.func import grad, vmap

from acclimate.core import SGD, Work, local, rng, tree
from acclimate.core.loops import Stepwise, driven, owned, repeat
from acclimate.core.nn import kernels, many
from acclimate.core.tree import Tree


@pytest.fixture(autouse=True)
def everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """The way of a GPU, on a CPU as well, but for Triton's kernels, which read no memory of a CPU."""
    monkeypatch.setattr(many, "_serves", lambda x, y: True)
    monkeypatch.setattr(many, "is_batched", lambda x: True)
    monkeypatch.setattr(Tensor, "is_cuda", True)
    monkeypatch.setattr(kernels, "AVAILABLE", False)


def trees() -> tuple[Tree, Tree]:
    g = torch.Generator().manual_seed(0)
    a, b = ({"w": torch.randn(2, 3, 4, 5, generator=g), "deep": {"b": torch.randn(2, 3, generator=g)}} for _ in "ab")
    return a, {"deep": b["deep"], "w": b["w"].transpose(2, 3).contiguous().transpose(2, 3)}


def test_a_sum_is_that_of_each_leaf_by_name() -> None:
    a, b = trees()
    for f in (many.add, tree.add):
        found = vmap(vmap(lambda a, b, f=f: f(a, b, -0.3)))(a, b)
        assert list(found) == ["w", "deep"]
        torch.testing.assert_close(found["w"], a["w"] - 0.3 * b["w"])
        torch.testing.assert_close(found["deep"]["b"], a["deep"]["b"] - 0.3 * b["deep"]["b"])
    shared = vmap(lambda b: many.add(tree.take(a, 0), b, 2.0))(b)
    torch.testing.assert_close(shared["w"], a["w"][:1] + 2 * b["w"])
    assert many.add({}, {}, 0.5) == {}


def test_gradients_of_two_orders_go_through() -> None:
    a, b = trees()

    def bent(f, a: Tree, b: Tree) -> Tensor:  # type: ignore[no-untyped-def]
        def inner(b: Tree) -> Tensor:
            slope = grad(lambda a: tree.dot(f(a, b, -0.3), tree.map(torch.sin, f(b, a, 2.0))))(a)
            return tree.dot(slope, slope)

        return grad(inner)(b)["w"]

    torch.testing.assert_close(
        vmap(lambda a, b: bent(many.add, a, b))(a, b), vmap(lambda a, b: bent(tree.add, a, b))(a, b)
    )


def test_what_is_not_differentiated_is_cast_apart_from_what_is() -> None:
    a, b = trees()
    wanted = []

    def loss(t: Tree, frozen: Tree) -> Tensor:
        low = many.cast({"x": frozen["w"], **t, "bias": frozen["deep"]["b"]}, torch.bfloat16)
        wanted.append([x.requires_grad for x in (low["x"], low["w"], low["deep"]["b"], low["bias"])])
        return (low["x"] * low["w"]).float().sum() + (low["bias"] * low["deep"]["b"] ** 2).float().sum()

    found = vmap(grad(loss))(a, b)
    assert wanted == [[False, True, True, False]]
    torch.testing.assert_close(found["w"], b["w"].bfloat16().float())
    rounded = a["deep"]["b"].bfloat16().float() * b["deep"]["b"].bfloat16().float()
    torch.testing.assert_close(found["deep"]["b"], 2 * rounded, rtol=2e-2, atol=0)


def test_casts_are_those_of_each_leaf_and_gradients_come_back_in_their_own_type() -> None:
    a, _ = trees()
    a = {**a, "n": torch.arange(2), "half": torch.ones(2, 3, dtype=torch.bfloat16), "d": torch.rand(2, 3).double()}
    found = vmap(lambda t: many.cast(t, torch.bfloat16))(a)
    for path, x in tree.flatten(found).items():
        true = tree.flatten(a)[path]
        assert torch.equal(x, true.to(torch.bfloat16) if true.is_floating_point() else true), path
    partly = vmap(lambda w: many.cast({"w": w, "b": a["deep"]["b"]}, torch.bfloat16), out_dims={"w": 0, "b": None})(
        a["w"]
    )
    assert torch.equal(partly["b"], a["deep"]["b"].to(torch.bfloat16))

    def total(t: Tree) -> Tensor:
        low = many.cast(t, torch.bfloat16)
        return tree.dot(low, low)

    for only in (("w", "deep"), ("w", "d")):
        slope = vmap(grad(total))(tree.pick(a, only))
        for path, x in tree.flatten(slope).items():
            true = tree.flatten(a)[path]
            assert x.dtype == true.dtype
            torch.testing.assert_close(x, 2 * true.to(torch.bfloat16).to(true.dtype))


def test_a_loop_in_its_own_places_writes_parameters_over_the_old_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.undo()
    monkeypatch.setattr(many, "_serves", lambda x, y: many.is_batched(x) and many.is_batched(y))
    g = torch.Generator().manual_seed(0)
    x, w = torch.randn(12, 3, generator=g), {"w": torch.randn(2, 3, generator=g), "b": torch.randn(2, generator=g)}
    kept = tree.map(torch.clone, w)
    added: list[bool] = []
    run = many._Add.forward
    monkeypatch.setattr(
        many._Add, "forward", staticmethod(lambda s, over, *t: (added.append(over), run(s, over, *t))[1])
    )

    def loss(vars: Tree, batch: Tree, key: Tensor) -> tuple[Tensor, Tree]:
        p = vars["params"]
        return (batch["x"] @ p["w"] + p["b"]).sin().sum(), {}

    def train(ragged: bool, momentum: float) -> Tree:
        def one(w: Tree, rows: Tensor, n: Tensor) -> Tree:
            data = {"x": x, "y": torch.zeros(12), "rows": rows, "n": n, "round": torch.zeros((), dtype=torch.int64)}
            data |= {"ragged": n} if ragged else {}
            opt, work = SGD(lr=0.1, momentum=momentum), Work(epochs=3, batch=2)
            return local.train(loss, {"params": w, "buffers": {}}, data, opt, work, rng.key(0))["params"]

        return vmap(one)(w, torch.arange(12).view(2, 6), torch.tensor([6, 4 if ragged else 6]))

    for ragged, momentum in ((False, 0.0), (False, 0.9), (True, 0.0), (True, 0.9)):
        added.clear()
        plain = train(ragged, momentum)
        assert added == [False] * (18 if momentum else 9)
        added.clear()
        with driven(Stepwise()):
            placed = train(ragged, momentum)
        assert added == ([False, True] if momentum else [True]) * 9  # a velocity is not written over a gradient
        for name in plain:
            assert torch.equal(plain[name], placed[name])
            assert torch.equal(w[name], kept[name]), "what the loop was given has changed"


def test_a_loop_within_a_body_does_not_write_over_what_it_was_given() -> None:
    asked: list[bool] = []

    def inner(t: object, s: Tree) -> tuple[Tree, Tree]:
        asked.append(owned())
        return s, {}

    def outer(t: object, s: Tree) -> tuple[Tree, Tree]:
        before = owned()
        repeat(inner, s, 2, s["a"])  # too short to be driven
        assert owned() == before
        return s, {}

    with driven(Stepwise()):
        repeat(outer, {"a": torch.zeros(1)}, 3, torch.zeros(1))
    assert asked == [False] * 6 and not owned()
