import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch.func import vmap

from acclimate.core import rng
from acclimate.core.nn import kernels

SEEDS = st.integers(-(2**63), 2**63 - 1)


@given(SEEDS, st.integers(-(2**40), 2**40))
def test_python_and_tensor_folds_agree(seed, number):
    k = rng.key(seed)
    assert torch.equal(rng.fold(k, number), rng.fold(k, torch.tensor(number)))


@given(SEEDS)
def test_draws_are_equal_under_vmap_and_a_prefix_of_longer_draws(seed):
    keys = rng.fold(rng.key(seed), torch.arange(4))
    for draw in (rng.uniform, rng.normal):
        together = vmap(lambda k, draw=draw: draw(k, 3, 5))(keys)
        assert torch.equal(together, torch.stack([draw(k, 3, 5) for k in keys]))
    assert torch.equal(rng.uniform(keys[0], 10)[:4], rng.uniform(keys[0], 4))


@given(SEEDS)
def test_draws_of_many_keys_together_are_those_of_each(seed):
    shapes, keys = [(3, 5), (), (7,), (2, 0), (4, 1, 2)], rng.rows(rng.key(seed), 5)
    drawn = rng.uniforms(list(keys), shapes)
    assert [d.shape for d in drawn] == [torch.Size(shape) for shape in shapes]
    assert all(torch.equal(d, rng.uniform(k, *shape)) for d, k, shape in zip(drawn, keys, shapes, strict=True))
    clients = rng.fold(keys, "other")[:, None] + torch.arange(3)
    mapped = vmap(lambda *each: rng.uniforms(each, shapes))(*clients)
    for i, k in enumerate(clients):
        assert torch.equal(mapped[i], torch.stack([rng.uniform(own, *shapes[i]) for own in k]))
    assert rng.uniforms([], []) == []


@given(SEEDS, st.integers(1, 40), st.integers(0, 30))
def test_order_does_not_depend_on_padding(seed, n, padding):
    k = rng.key(seed)
    plain, padded = rng.order(k, n, n), rng.order(k, n + padding, torch.tensor(n))
    assert torch.equal(plain, padded[:n])
    assert sorted(plain.tolist()) == list(range(n))


def test_uniform_is_uniform():
    u = rng.uniform(rng.key(7), 200_000)
    assert float(u.min()) >= 0.0
    assert float(u.max()) < 1.0
    counts = torch.histc(u, 100, 0, 1)
    chi2 = float(((counts - 2000) ** 2 / 2000).sum())
    assert 40 < chi2 < 170  # 99 degrees of freedom: far in neither tail


def test_normal_has_the_moments_of_a_normal():
    z = rng.normal(rng.key(3), 400_000).double()
    for power, expected, tolerance in ((1, 0, 0.01), (2, 1, 0.01), (3, 0, 0.03), (4, 3, 0.06)):
        assert float((z**power).mean()) == pytest.approx(expected, abs=tolerance)


def test_keys_of_neighbours_and_purposes_are_independent():
    draws = torch.stack([rng.uniform(rng.fold(rng.key(0), "train", r), 20_000) for r in range(6)])
    draws = torch.cat([draws, torch.stack([rng.uniform(rng.key(s), 20_000) for s in range(6)])])
    correlation = torch.corrcoef(draws) - torch.eye(12)
    assert float(correlation.abs().max()) < 5 / math.sqrt(20_000)


def test_permutation_visits_all_orders_evenly():
    counts = {}
    for s in range(3000):
        p = tuple(rng.permutation(rng.key(s), 3).tolist())
        counts[p] = counts.get(p, 0) + 1
    assert len(counts) == 6
    assert max(abs(c - 500) for c in counts.values()) < 110


def test_randint_and_bernoulli():
    draws = rng.randint(rng.key(0), 2, 7, 5000)
    assert set(draws.tolist()) == {2, 3, 4, 5, 6}
    assert float(rng.bernoulli(rng.key(1), 0.3, 50_000).float().mean()) == pytest.approx(0.3, abs=0.01)


@given(SEEDS, st.integers(0, 20), st.integers(1, 20))
def test_rows_are_the_same_however_a_sequence_is_cut(seed, first, count):
    k = rng.key(seed)
    assert torch.equal(rng.rows(rng.advance(k, first), count), rng.rows(k, first + count)[first:])
    assert len(rng.rows(k, count).unique()) == count


def test_fold_tells_order_and_names_apart():
    k = rng.key(0)
    folded = [rng.fold(k, *d) for d in ((1, 2), (2, 1), ("a",), ("b",), ("a", 1), (1,), ())]
    assert len({int(f) for f in folded}) == len(folded)


def test_a_seed_may_be_a_tensor() -> None:
    for seed in (0, 1, 7, 2**31):
        assert torch.equal(rng.key(seed), rng.key(torch.tensor(seed)))


@pytest.mark.parametrize(
    "data", [(), ("train",), ("train", 3), ("train", torch.tensor(3), 5), (-7, "a", torch.tensor(2))]
)
def test_a_key_that_is_folded_on_the_host_is_the_one_of_the_device(data) -> None:
    for seed in (0, 5, 2**63 + 1):
        assert int(rng.key_for(seed, "cpu", *data)) == int(rng.fold(rng.key(seed), *data))
    assert int(rng.key_for(torch.tensor(5), "cpu", *data)) == int(rng.fold(rng.key(5), *data))


@pytest.mark.skipif(
    not (kernels.AVAILABLE and (torch.cuda.is_available() or kernels.INTERPRETED)),
    reason="needs Triton, and a CUDA device or TRITON_INTERPRET=1",
)
@pytest.mark.parametrize("folds", [(0,), (1,), (2**63 + 5, 16), (3, 2**64 - 1, 0, 7), (1, 2, 3, 4, 5, 2**63, 7, 8, 9)])
def test_the_kernel_folds_numbers_as_plain_code_does(folds):
    """Up to four in one pass, whichever they are, and numbers that lie in any order."""
    here = "cuda" if torch.cuda.is_available() else "cpu"
    x = (torch.arange(6).view(2, 3) * 2**61 - 3).T
    expected = x
    for each in folds:
        expected = rng._mix(expected ^ rng._signed(each))
    assert torch.equal(kernels.mix(x.to(here), rng._MIX1, rng._MIX2, folds).cpu(), expected)
    assert kernels.mix(x[:0].to(here), rng._MIX1, rng._MIX2, folds).shape == (0, 2)
