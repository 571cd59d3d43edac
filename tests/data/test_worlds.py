"""Partitions and splits: everything is used at most once, sizes are met, and a seed fixes it all."""

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core import rng
from acclimate.data import (
    CIFAR10C,
    IID,
    MNIST,
    Dataset,
    Digits,
    Dirichlet,
    Examples,
    NaturalUsers,
    Pathological,
    World,
    drawing,
)

PARTITIONS = st.one_of(
    st.just(IID()),
    st.floats(0.01, 10).map(lambda a: Dirichlet(alpha=a)),
    st.builds(Pathological, st.integers(1, 6), st.sampled_from(["random", "in-order"])),
)


def examples(n, classes=6, seed=0):
    g = torch.Generator().manual_seed(seed)
    y = torch.randint(0, classes, (n,), generator=g)
    return Examples(
        torch.zeros(n, 3, 4, 4, dtype=torch.uint8),
        y,
        tuple("abcdef"[:classes]),
        torch.zeros(n, dtype=torch.int64),
        ("one",),
    )


@given(PARTITIONS, st.integers(1, 12), st.integers(60, 200), st.integers(0, 1000))
def test_partitions_are_disjoint_and_repeatable(partition, clients, n, seed):
    e = examples(n, seed=seed)
    parts = partition.split(e, clients, rng.key(seed))
    assert len(parts) == clients
    rows = torch.cat(parts)
    assert len(rows.unique()) == len(rows)
    again = partition.split(e, clients, rng.key(seed))
    assert all(torch.equal(a, b) for a, b in zip(parts, again, strict=True))
    if not isinstance(partition, Pathological):
        assert len(rows) == n
        assert max(map(len, parts)) - min(map(len, parts)) <= 1
    else:
        for p in parts:
            assert len(e.y[p].unique()) <= partition.classes_per_client


def held_by(partition, clients=50):
    e = examples(6000)
    return [tuple(e.y[p].unique().tolist()) for p in partition.split(e, clients, rng.key(0))]


def test_shards_of_any_two_classes_meet_in_a_client():
    pairs = held_by(Pathological(), clients=200)
    assert {len(p) for p in pairs} == {1, 2}  # McMahan et al.: at most two
    assert len({p for p in pairs if len(p) == 2}) == 15  # all that six classes have
    counts = [sum(c in p for p in pairs) for c in range(6)]
    assert min(counts) >= 50  # 66 or 67 shards of each class, some of them two at one client


def test_shards_in_order_leave_few_sets_of_classes():
    assert set(held_by(Pathological(shards="in-order"))) == {(0, 1), (2, 3), (4, 5)}
    assert set(held_by(Pathological(3, shards="in-order"))) == {(0, 1, 2), (3, 4, 5)}


def test_dirichlet_is_skewed_for_small_alpha_and_even_for_large():
    e = examples(6000)
    top = {}
    for alpha in (0.01, 0.1, 1.0, 100.0):
        parts = Dirichlet(alpha).split(e, 20, rng.key(0))
        shares = torch.stack([torch.bincount(e.y[p], minlength=6) / len(p) for p in parts])
        top[alpha] = float(shares.amax(1).mean())
    assert top[0.01] > 0.75  # not 1: equal sizes leave clients whose class is taken with others
    assert top[0.01] > top[0.1] > top[1.0] > top[100.0]
    assert top[100.0] < 0.25


def test_dirichlet_draws_have_the_right_mean_and_variance():
    for alpha in (0.05, 0.5, 3.0):
        p = rng.dirichlet(rng.key(1), alpha, 20_000, 4)
        assert float((p.sum(-1) - 1).abs().max()) < 1e-9
        assert p.mean(0).tolist() == pytest.approx([0.25] * 4, abs=0.01)
        variance = 0.25 * 0.75 / (4 * alpha + 1)
        assert float(p.var(0).mean()) == pytest.approx(variance, rel=0.05)


@settings(max_examples=10)
@given(st.integers(0, 5), st.integers(2, 20), st.sampled_from(["plain", "font", "clutter"]))
def test_worlds_never_leak(seed, clients, domain):
    world = Digits(clients=clients, partition=Dirichlet(0.1), domains=(domain,)).world(seed)
    used = torch.cat([*world.train, *world.val, *world.test])
    assert len(used.unique()) == len(used) == len(world.examples.y)
    assert world.card() == Digits(clients=clients, partition=Dirichlet(0.1), domains=(domain,)).world(seed).card()


def test_digits_domains_share_no_real_digit():
    world = Digits(domains=("plain", "inverted", "font")).world(0)
    e = world.examples
    counts = torch.bincount(e.domain).tolist()
    assert e.domains == ("plain", "inverted", "font")
    assert counts == [899, 898, 1800]
    plain, inverted = e.x[e.domain == 0], e.x[e.domain == 1]
    together = torch.cat([plain, 255 - inverted]).flatten(1).to(torch.int32)
    alike = {tuple(row.tolist()) for row in together}
    assert len(alike) > 1790  # a handful of real digits are identical in the original data


def test_digits_are_read_once_and_every_world_has_its_own(monkeypatch):
    first = Digits(side=17).load()
    known = first.x.clone(), first.y.clone()
    monkeypatch.setattr(drawing, "digits8", None)
    for own in (first.x, first.y):
        own.zero_()
    again = Digits(side=17).load()
    assert first.x.shape[-2:] == (17, 17) and torch.equal(again.x, known[0]) and torch.equal(again.y, known[1])


def test_card_and_hashes_are_fixed_for_good():
    """A change of these numbers changes every published result: never by accident."""
    card = Digits().world(0).card()
    assert card["examples"] == 1797
    assert card["splits"]["train"]["sizes"] == [108] * 7 + [107] * 3
    assert sum(map(sum, card["histograms"]["test"])) == sum(card["splits"]["test"]["sizes"])
    other = Digits().world(1).card()
    assert card["hash"] == other["hash"]
    assert card["splits"]["train"]["hash"] != other["splits"]["train"]["hash"]
    assert Digits(seed=0).world(1).card()["splits"] == card["splits"]


class Own(Dataset):
    """A user's data set, not registered anywhere."""

    def load(self):
        return examples(90)


def test_a_users_own_data_set_only_loads():
    world = Own(clients=3, partition=IID(), split=(0.5, 0.0, 0.5)).world(0)
    assert [len(r) for r in world.train] == [15] * 3
    assert [len(r) for r in world.val] == [0] * 3


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Dirichlet(alpha=0.0), "Dirichlet: alpha=0.0 must be a finite number above 0"),
        (lambda: Pathological(classes_per_client=0), "classes_per_client=0"),
        (
            lambda: Pathological(7).split(examples(60), 3, rng.key(0)),
            "classes_per_client=7 must be at most the number of classes, 6",
        ),
        (lambda: IID().split(examples(60), 61, rng.key(0)), "clients=61 must be at most the number of examples, 60"),
        (
            lambda: Digits(clients=1795, new_clients=5).world(),
            "Digits: clients=1795 and new_clients=5 are together more than the 1,797 examples; use fewer clients",
        ),
        (lambda: Digits(clients=0), "Digits: clients=0 must be a whole number of at least 1"),
        (lambda: Digits(split=(0.5, 0.5, 0.5)), "must be three shares"),
        (lambda: Digits(domains=("plan",)), "has 'plan'; allowed are plain"),
        (lambda: Digits(side=4), "side=4 must be a whole number between 16 and 64"),
        (lambda: Digits(mean=(0.5,), std=()), "need one entry per channel"),
        (
            lambda: Examples.of(torch.zeros(2, 3), torch.tensor([0, 9]), ("a",)),
            "labels run from 0 to 9, allowed are 0 to 0",
        ),
        (
            lambda: Examples.of(torch.tensor([[1.0], [torch.nan]]), torch.zeros(2).long(), ("a",)),
            r"x\[1\] holds values that are not finite",
        ),
        (
            lambda: Examples.of(torch.zeros(3, 3), torch.zeros(2).long(), ("a",)),
            "x has 3 rows, y 2",
        ),
        (
            lambda: World(examples(4), (torch.tensor([0, 1]),), (torch.tensor([1]),), (torch.tensor([2]),)),
            "splits overlap",
        ),
    ],
)
def test_bad_worlds_are_refused_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        make()


@pytest.mark.parametrize("value", [2.5, 2.0, True, "2"])
@pytest.mark.parametrize(
    ("record", "field"),
    [
        (Digits, "clients"),
        (Digits, "new_clients"),
        (Digits, "seed"),
        (Digits, "side"),
        (MNIST, "size"),
        (MNIST, "channels"),
        (CIFAR10C, "severity"),
        (NaturalUsers, "floor"),
    ],
)
def test_fields_that_count_take_whole_numbers_only(record, field, value):
    with pytest.raises(ValueError, match=f"^{record.__name__}: {field}={value!r} must be "):
        record(**{field: value})
    if field == "channels":
        with pytest.raises(ValueError, match=r"channels=3\.0 must be a whole number"):
            record(channels=3.0)


@pytest.mark.parametrize(
    ("values", "says"),
    [
        ((0.5, 0.5), r"^Digits: mean=\(0\.5, 0\.5\) must have 1 or 3 entries: its inputs have 3 channels"),
        ((0.5,) * 4, "must have 1 or 3 entries"),
    ],
)
def test_as_many_means_as_channels_are_needed(values, says):
    with pytest.raises(ValueError, match=says):
        Digits(mean=values, std=values).world()


def test_one_mean_is_that_of_all_channels():
    assert Digits(mean=(0.5,), std=(0.25,)).world().std == (0.25,) * 3


def labelled(**changed):
    """Four examples of two classes and two domains, some of their arrays replaced."""
    told = {"x": torch.zeros(4, 3), "y": torch.tensor([0, 1, 0, 1]), "domain": torch.tensor([0, 0, 1, 1])}
    return Examples(**{**told, **changed}, classes=("a", "b"), domains=("here", "there"))


@pytest.mark.parametrize("dtype", [torch.float64, torch.float16, torch.bfloat16])
def test_features_become_float32(dtype):
    x = torch.tensor([[0.5], [1.0], [2.0], [4.0]])
    made = labelled(x=x.to(dtype)).x
    assert made.dtype == torch.float32 and torch.equal(made, x)


@pytest.mark.parametrize("dtype", [torch.uint8, torch.int8, torch.int16, torch.int32, torch.int64])
def test_labels_and_domains_may_be_any_whole_numbers(dtype):
    plain = labelled()
    made = labelled(y=plain.y.to(dtype), domain=plain.domain.to(dtype), users=plain.y.to(dtype))
    assert made.y.dtype == (torch.int32 if dtype == torch.int32 else torch.int64)  # int32 keeps its world's hash
    assert torch.equal(made.y.long(), plain.y)
    assert made.domain[made.domain.long()].shape == (4,)
    world = World(made, (torch.arange(4),), (), ())
    assert world.shards(world.train).y.dtype == torch.int64


@pytest.mark.parametrize(
    ("changed", "says"),
    [
        ({"x": torch.zeros(4, 3, dtype=torch.int8)}, r"x is torch\.int8, allowed are torch\.uint8 .* floating point"),
        ({"x": torch.zeros(4, 3, dtype=torch.bool)}, r"x is torch\.bool, allowed are"),
        ({"x": torch.full((4, 1), 1e300, dtype=torch.float64)}, r"x\[0\] holds values that are not finite"),
        ({"x": torch.zeros(4, 3).numpy()}, "x is a ndarray, but must be a tensor"),
        ({"y": torch.zeros(4)}, r"y is torch\.float32, but must hold whole numbers"),
        ({"y": torch.zeros(4, dtype=torch.bool)}, r"y is torch\.bool, but must hold whole numbers"),
        ({"y": torch.zeros(4, 1, dtype=torch.int64)}, r"y has shape \(4, 1\), but must hold one number per example"),
        ({"y": torch.tensor(1)}, r"y has shape \(\), but must hold one number"),
        ({"domain": torch.tensor([0, 1, 2, 0])}, "domain numbers run from 0 to 2, allowed are 0 to 1"),
        ({"domain": torch.tensor([0, 1, -1, 0])}, "domain numbers run from -1 to 1, allowed are 0 to 1"),
        ({"domain": torch.zeros(4)}, r"domain is torch\.float32, but must hold whole numbers"),
        ({"users": torch.tensor([0, 1, -1, 0])}, "users has -1, but users are numbered from 0"),
    ],
)
def test_examples_of_other_types_and_numbers_are_refused_in_a_sentence(changed, says):
    with pytest.raises(ValueError, match=f"^examples: {says}"):
        labelled(**changed)
