"""Class mixes in whole numbers: both sums hold, and mixes stay as skewed as they were drawn."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core import rng
from acclimate.data import Dirichlet, Pool
from acclimate.data.counts import balanced, class_wise, largest_remainders, rounded
from acclimate.data.dealing import apportion, in_balance


def effective(counts):
    """The mean over clients of exp of the entropy of their class mix."""
    p = counts.double().numpy() / counts.double().numpy().sum(-1, keepdims=True)
    return float((p**-p).prod(-1).mean())


def drawn(alpha, draws, clients, classes=10, seed=0):
    return rng.dirichlet(rng.key(seed), alpha, draws * clients, classes).view(draws, clients, classes)


def evenly(total, parts):
    return torch.tensor([total // parts + (i < total % parts) for i in range(parts)])


@pytest.mark.parametrize(
    ("mix", "quota", "left", "counts"),
    [
        ((0.9, 0.04, 0.03, 0.03), 20, (99, 99, 99, 99), (18, 1, 1, 0)),
        ((0.5, 0.26, 0.24), 10, (99, 99, 99), (5, 3, 2)),
        ((0.45, 0.45, 0.1), 7, (99, 99, 99), (3, 3, 1)),  # shares 3.15, 3.15, 0.7
        ((0.8, 0.1, 0.1), 20, (10, 99, 99), (10, 5, 5)),  # what a class lacks is shared by the others
        ((1.0, 0.0, 0.0), 20, (8, 3, 9), (8, 3, 9)),
        ((1.0, 0.0, 0.0), 12, (8, 3, 9), (8, 1, 3)),  # no mix left: by what is left, 12 - 8 in shares 3 : 9
        ((0.2, 0.8), 9, (2, 3), (2, 3)),
        ((0.2, 0.8), 0, (0, 0), (0, 0)),
    ],
)
def test_largest_remainders_by_hand(mix, quota, left, counts):
    got = largest_remainders(torch.tensor(mix, dtype=torch.float64), quota, torch.tensor(left))
    assert tuple(got.tolist()) == counts


def test_the_first_revision_gave_leftovers_to_large_classes():
    mix = torch.tensor((0.9, 0.04, 0.03, 0.03), dtype=torch.float64)
    assert apportion(mix, 20, torch.tensor([99] * 4)).tolist() == [20, 0, 0, 0]


@given(st.floats(0.001, 50), st.integers(0, 300), st.lists(st.integers(0, 60), min_size=1, max_size=8))
def test_largest_remainders_are_whole_and_within_one_of_a_share(alpha, quota, left):
    mix, left = rng.dirichlet(rng.key(quota), alpha, 1, len(left))[0], torch.tensor(left)
    got = largest_remainders(mix, quota, left)
    assert int(got.sum()) == min(quota, int(left.sum()))
    assert bool((got >= 0).all()) and bool((got <= left).all())
    if bool((mix * quota + 1 <= left).all()):
        assert float((got - mix * quota).abs().max()) < 1


@settings(max_examples=15)
@given(st.sampled_from([1e-4, 0.01, 0.1, 1.0, 1e4]), st.integers(1, 40), st.data())
def test_rows_and_columns_add_up_whatever_is_drawn(alpha, clients, data):
    held = torch.tensor(data.draw(st.lists(st.integers(1, 90), min_size=1, max_size=9)))
    sizes = evenly(int(held.sum()), clients)
    mixes = drawn(alpha, 1, clients, len(held), seed=clients)[0]
    if data.draw(st.booleans()):
        mixes[::3] = 0.0
    if bool((sizes > 0).all()):
        counts = balanced(mixes, sizes, held)
        assert bool((counts >= 0).all())
        assert counts.sum(1).tolist() == sizes.tolist()
        assert counts.sum(0).tolist() == held.tolist()


def test_rounding_mends_sums_that_do_not_hold():
    shares = torch.tensor([[3.0, 1.0], [4.0, 0.0], [2.5, 1.5]])
    sizes, held = torch.tensor([4, 4, 4]), torch.tensor([4, 8])
    counts = rounded(shares, sizes, held)
    assert counts.sum(1).tolist() == [4, 4, 4]
    assert counts.sum(0).tolist() == [4, 8]


def test_rounding_leaves_whole_numbers_and_moves_others_by_less_than_one():
    whole = torch.tensor([[3.0, 1.0, 0.0], [0.0, 1.0, 3.0]])
    assert torch.equal(rounded(whole, torch.tensor([4, 4]), torch.tensor([3, 2, 3])), whole.long())
    shares = torch.tensor([[2.6, 1.4], [1.4, 2.6]])
    assert rounded(shares, torch.tensor([4, 4]), torch.tensor([4, 4])).tolist() == [[3, 1], [1, 3]]


DRAWS = [pytest.param(1, id="few"), pytest.param(10, marks=pytest.mark.slow, id="1000")]


@pytest.mark.parametrize("times", DRAWS)
@pytest.mark.parametrize(("clients", "draws", "within"), [(10, 100, 0.05), (20, 100, 0.1), (100, 100, 0.03)])
def test_mixes_of_equal_sizes_have_the_effective_classes_that_were_drawn(clients, draws, within, times):
    draws = draws * times if times > 1 else draws // (1 if clients < 100 else 5)
    mixes = drawn(0.1, draws, clients)
    counts = balanced(mixes, evenly(60_000, clients), evenly(60_000, 10))
    assert effective(counts) == pytest.approx(effective(mixes), rel=within)
    assert effective(mixes) == pytest.approx(2.5, rel=0.04)


@pytest.mark.parametrize("alpha", [0.01, 0.05, 0.5, 1.0, 10.0])
def test_other_alphas_keep_their_effective_classes_too(alpha):
    mixes = drawn(alpha, 20, 50)
    counts = balanced(mixes, evenly(30_000, 50), evenly(30_000, 10))
    assert effective(counts) == pytest.approx(effective(mixes), rel=0.03)


@pytest.mark.parametrize("draws", [pytest.param(25, id="few"), pytest.param(1000, marks=pytest.mark.slow, id="1000")])
def test_brfl_has_the_effective_classes_of_the_released_partition(draws):
    groups = [class_wise(evenly(30_000, 10), 10, 0.1, rng.fold(rng.key(0), i)) for i in range(2 * draws)]
    counts = torch.stack(groups)  # twenty clients are two groups
    assert effective(counts) == pytest.approx(2.5, rel=0.05)
    assert bool((counts.sum(1) == 3000).all())
    assert int(counts.sum(2).min()) >= 1500
    before = counts.cumsum(2) - counts
    assert int(counts[before >= 3000].sum()) == 0  # who has the mean gets no more


def pool(n=6000, classes=10, seed=0):
    y = torch.randint(0, classes, (n,), generator=torch.Generator().manual_seed(seed))
    return Pool(y, tuple("0123456789"[:classes]), torch.zeros(n, dtype=torch.int64), ("one",), None, None)


@pytest.mark.parametrize(("clients", "groups"), [(7, [7]), (20, [10, 10]), (25, [10, 10, 5])])
def test_brfl_deals_everything_in_groups_of_ten(clients, groups):
    examples = pool()
    parts = Dirichlet(0.3, sizes="brfl").split(examples, clients, rng.key(3))
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(6000))
    for group in torch.arange(clients).split(groups):
        sizes = [len(parts[c]) for c in group.tolist()]
        assert sum(sizes) == pytest.approx(6000 * len(group) / clients, abs=1)
        assert min(sizes) >= 6000 // clients // 2


def test_brfl_deals_to_a_group_of_one_that_lacks_the_last_class():
    examples = pool(n=220)
    lacking = examples._replace(y=examples.y.clamp_max(8))
    parts = Dirichlet(1.0, sizes="brfl").split(lacking, 11, rng.key(3))
    assert torch.equal(torch.cat(parts).sort().values, torch.arange(220)) and len(parts[10]) == 20


def test_brfl_that_cannot_be_says_so():
    with pytest.raises(ValueError, match=r"Dirichlet: with alpha=0.01, 10 clients of a group and 2 classes some"):
        Dirichlet(0.01, sizes="brfl").split(pool(classes=2), 10, rng.key(0))


def test_a_class_without_examples_is_no_obstacle():
    examples = pool()
    few = examples._replace(y=examples.y.clamp_min(6))
    parts = Dirichlet(0.1).split(few, 20, rng.key(0))
    assert [len(p) for p in parts] == [300] * 20
    assert len(torch.cat(parts).unique()) == 6000
    pools = [torch.zeros(0, dtype=torch.int64), torch.arange(10), torch.arange(10, 20)]
    mixes = torch.tensor([[0.5, 0.5, 0.0], [0.5, 0.0, 0.5]], dtype=torch.float64)
    first, second = in_balance(pools, mixes, [10, 10], rng.key(0))
    assert (first.tolist(), second.tolist()) == (list(range(10)), list(range(10, 20)))
