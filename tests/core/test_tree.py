import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from acclimate.core import tree
from support import equal

NUMBERS = st.floats(-1e3, 1e3, width=32)
LEAVES = st.lists(NUMBERS, min_size=1, max_size=4).map(lambda v: torch.tensor(v))
NAMES = st.text("abcxyz._", min_size=1, max_size=4)
TREES = st.recursive(LEAVES, lambda t: st.dictionaries(NAMES, t, max_size=3), max_leaves=6).filter(
    lambda t: isinstance(t, dict)
)


@given(TREES)
def test_flatten_and_back(t):
    flat = tree.flatten(t)
    assert all(isinstance(v, torch.Tensor) for v in flat.values())
    assert equal(tree.unflatten(flat, t), t)


@given(TREES)
def test_arithmetic(t):
    assert equal(tree.sub(tree.add(t, t), t), t)
    assert equal(tree.add(t, t, -1.0), tree.zeros(t))
    assert tree.nbytes(t) == 4 * tree.numel(t)
    assert float(tree.norm(t)) == pytest.approx(
        float(sum((x.double() ** 2).sum() for x in tree.leaves(t)) ** 0.5), rel=1e-4
    )


@given(TREES)
def test_stack_take_put(t):
    double = tree.scale(t, 2.0)
    stacked = tree.stack([t, double, t])
    assert equal(tree.take(stacked, 1), double)
    swapped = tree.put(stacked, torch.tensor([0, 1]), tree.stack([double, t]))
    assert equal(tree.take(swapped, 0), double)
    assert equal(tree.take(swapped, 1), t)
    assert equal(tree.take(stacked, 0), t)  # the original is untouched


def test_products_go_by_name_and_not_by_order():
    a, b = {"x": torch.tensor([1.0]), "y": torch.tensor([2.0])}, {"y": torch.tensor([3.0]), "x": torch.tensor([4.0])}
    assert float(tree.dot(a, b)) == 10.0


def test_where_keeps_one_side_even_if_the_other_is_nan():
    a, b = {"x": torch.tensor([1.0])}, {"x": torch.tensor([float("nan")])}
    assert equal(tree.where(torch.tensor(True), a, b), a)


def test_finite_and_check():
    assert bool(tree.finite({"a": torch.ones(2), "b": {"c": torch.tensor(3)}}))
    assert not bool(tree.finite({"a": torch.ones(2), "b": {"c": torch.tensor(float("inf"))}}))
    for bad in (float("nan"), -float("inf")):
        assert not bool(tree.finite({"a": torch.tensor([1.0, bad, 2.0])}))
    assert bool(tree.finite({"a": torch.zeros(0, 3), "b": torch.tensor([3.4e38, -3.4e38])}))
    assert bool(tree.finite({}))
    with pytest.raises(TypeError, match=r"place\['a'\]\['b'\] must be a tensor"):
        tree.check({"a": {"b": 3}}, "place")
    with pytest.raises(TypeError, match="without '/'"):
        tree.check({"a/b": torch.ones(1)}, "place")


def test_unflatten_names_what_is_wrong():
    like = {"a": {"b": torch.zeros(2)}}
    with pytest.raises(ValueError, match="'a/b' is missing"):
        tree.unflatten({}, like)
    with pytest.raises(ValueError, match=r"'a/b' is torch.float32 \(3,\), expected torch.float32 \(2,\)"):
        tree.unflatten({"a/b": torch.zeros(3)}, like)


def test_finite_looks_at_leaves_of_several_types():
    """As one value they are wide enough for the largest finite numbers of each."""
    kinds = (torch.float16, torch.bfloat16, torch.float32, torch.float64)
    most = {str(k): torch.full((2,), torch.finfo(k).max, dtype=k) for k in kinds} | {"n": torch.ones(1).long()}
    assert bool(tree.finite(most))
    for name in most:
        if name != "n":
            for bad in (float("nan"), float("-inf")):
                assert not bool(tree.finite({**most, name: most[name].index_fill(0, torch.tensor([1]), bad)}))


def test_at_once_gives_lists_in_the_order_of_the_first():
    a = {"x": torch.tensor([1.0]), "y": {"z": torch.tensor([2.0])}}
    b = {"y": {"z": torch.tensor([20.0])}, "x": torch.tensor([10.0])}
    found = tree.at_once(lambda u, v: [p - q for p, q in zip(u, v, strict=True)], a, b)
    assert {k: float(v) for k, v in tree.flatten(found).items()} == {"x": -9.0, "y/z": -18.0}
    assert tree.at_once(torch._foreach_add, {}, {}) == {}
