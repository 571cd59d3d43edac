"""Partitions by domain, superclass and person, and Dirichlet with natural sizes."""

from dataclasses import fields, replace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from acclimate.core import rng
from acclimate.data import ByDomain, BySuperclass, Digits, Dirichlet, NaturalUsers, Pool
from acclimate.data.dealing import REVISIONS, sharers


def pool(n=600, classes=6, domains=3, users=12, seed=0):
    g = torch.Generator().manual_seed(seed)
    return Pool(
        torch.randint(0, classes, (n,), generator=g),
        tuple("abcdef"[:classes]),
        torch.randint(0, domains, (n,), generator=g),
        tuple("XYZ"[:domains]),
        torch.randint(0, users, (n,), generator=g),
        (0, 0, 1, 1, 2, 2)[:classes],
    )


@pytest.mark.parametrize(
    ("examples", "train", "clients"),
    [(150, 0.6, 2), (160, 0.6, 3), (533, 0.6, 9), (534, 0.6, 10), (10**6, 0.6, 10), (534, 0.3, 5), (4, 0.6, 2)],
)
def test_examples_that_name_no_clients_are_dealt_to_as_many_as_can_fill_a_batch(examples, train, clients):
    assert sharers(examples, train) == clients
    assert replace(Digits(), split=(train, 0.1, 0.9 - train)).sharers(examples) == clients
    assert replace(Digits(), split=(train, 0.1, 0.9 - train), fraction=0.5).sharers(2 * examples) == clients


def disjoint(parts):
    rows = torch.cat(parts)
    return len(rows.unique()) == len(rows)


@settings(max_examples=25)
@given(st.floats(0.01, 20), st.integers(1, 15), st.integers(0, 500))
def test_natural_sizes_differ_but_never_fall_below_the_floor(alpha, clients, seed):
    parts = Dirichlet(alpha, sizes="natural", floor=12).split(pool(seed=seed), clients, rng.key(seed))
    assert disjoint(parts)
    assert sum(map(len, parts)) == 600
    assert min(map(len, parts)) >= 12


def test_a_floor_that_cannot_be_met_says_so():
    with pytest.raises(ValueError, match=r"floor=50 for 20 clients needs 1000 examples, there are 600"):
        Dirichlet(0.1, sizes="natural", floor=50).split(pool(), 20, rng.key(0))


def test_a_thousand_clients_at_a_tiny_alpha_get_their_examples():
    many = pool(n=20_000)
    for sizes in ("equal", "natural"):
        parts = Dirichlet(0.01, sizes=sizes, floor=5).split(many, 1000, rng.key(0))
        assert disjoint(parts)
        assert sum(map(len, parts)) == 20_000
    assert [len(p) for p in Dirichlet(0.01).split(many, 1000, rng.key(1))] == [20] * 1000


def test_by_domain_gives_every_client_one_domain_at_a_constant_total():
    p = pool()
    for clients in (3, 6, 12):
        parts = ByDomain().split(p, clients, rng.key(0))
        assert disjoint(parts)
        assert sum(map(len, parts)) == 600
        assert [int(p.domain[r].unique()) for r in parts] == [c % 3 for c in range(clients)]
    with pytest.raises(ValueError, match=r"clients=4 must be a multiple of the 3 domains \(X, Y, Z\)"):
        ByDomain().split(p, 4, rng.key(0))


@pytest.mark.parametrize("partition", [ByDomain(), ByDomain(alpha=0.1), ByDomain(alpha=0.1, revision=1)])
def test_a_domain_with_fewer_examples_than_clients_is_refused(partition):
    few = torch.tensor([0] * 40 + [1] * 3)
    p = Pool(torch.arange(43) % 2, ("a", "b"), few, ("X", "Y"), None, (0, 1))
    assert [len(r) for r in ByDomain().split(p, 6, rng.key(0))] == [14, 1, 13, 1, 13, 1]
    with pytest.raises(ValueError, match="ByDomain: the domain 'Y' has 3 examples for 4 clients; use fewer clients"):
        partition.split(p, 8, rng.key(0))


def test_a_superclass_with_fewer_examples_than_clients_is_refused():
    p = Pool(torch.tensor([0] * 40 + [1] * 3), ("a", "b"), torch.zeros(43, dtype=torch.int64), ("X",), None, (0, 1))
    assert [len(r) for r in BySuperclass().split(p, 6, rng.key(0))] == [14, 13, 13, 1, 1, 1]
    with pytest.raises(ValueError, match="BySuperclass: superclass 1 has 3 examples for 4 clients; use fewer clients"):
        BySuperclass().split(p, 8, rng.key(0))


def test_by_domain_with_alpha_shifts_labels_too():
    p = pool(n=6000)
    even = ByDomain().split(p, 6, rng.key(0))
    skewed = ByDomain(alpha=0.1, keep=0.2).split(p, 6, rng.key(0))

    def top(parts):
        return max(float((torch.bincount(p.y[r], minlength=6) / len(r)).max()) for r in parts)

    assert top(even) < 0.25
    assert top(skewed) > 0.5
    assert [len(r) for r in skewed] == [int(len(r) * 0.2) for r in even]
    assert disjoint(skewed)


def test_by_superclass_keeps_superclasses_together():
    p = pool()
    parts = BySuperclass().split(p, 6, rng.key(0))
    for c, r in enumerate(parts):
        assert set((p.y[r] // 2).tolist()) == {c // 2}
    assert disjoint(parts)
    assert sum(map(len, parts)) == 600
    with pytest.raises(ValueError, match="clients=4 must be a multiple of the 3 superclasses"):
        BySuperclass().split(p, 4, rng.key(0))
    with pytest.raises(ValueError, match="has no superclasses"):
        BySuperclass().split(p._replace(superclass=None), 6, rng.key(0))


def test_natural_users_are_clients():
    p = pool()
    parts = NaturalUsers(floor=20).split(p, 5, rng.key(0))
    who = [p.users[r].unique() for r in parts]
    assert all(len(w) == 1 for w in who)
    assert len({int(w) for w in who}) == 5
    assert all(len(r) == int((p.users == w).sum()) for r, w in zip(parts, who, strict=True))
    with pytest.raises(ValueError, match="clients=13 must be at most 12"):
        NaturalUsers(floor=1).split(p, 13, rng.key(0))
    with pytest.raises(ValueError, match="does not say who made an example"):
        NaturalUsers().split(p._replace(users=None), 3, rng.key(0))


@pytest.mark.parametrize("partition", [Dirichlet, ByDomain])
def test_a_partition_names_the_version_of_its_dealing_rule(partition):
    (revision,) = (f for f in fields(partition) if f.name == "revision")
    assert revision.kw_only and revision.default == max(REVISIONS) and partition(revision=2) == partition()
    assert get_args(get_type_hints(partition)["revision"]) == tuple(REVISIONS)
    with pytest.raises(ValueError, match=rf"^{partition.__name__}: revision=7 must be one of 1, 2$"):
        partition(revision=7)


def test_the_first_revision_deals_the_rows_that_it_always_dealt():
    parts = Dirichlet(0.1, revision=1).split(Digits().load(), 10, rng.key(0))
    marks = [int((p * torch.arange(1, len(p) + 1)).sum()) for p in parts]
    assert marks[:5] == [13300980, 14872077, 14341519, 14840980, 14408081]
    assert marks[5:] == [14787527, 13688538, 14068701, 15590497, 15743345]


@pytest.mark.parametrize("revision", REVISIONS)
@pytest.mark.parametrize("partition", [Dirichlet(0.3), ByDomain(alpha=0.3)])
def test_rows_are_dealt_by_the_rule_that_the_partition_names(partition, revision, monkeypatch):
    def nothing(*_):
        raise LookupError("another revision")

    monkeypatch.setitem(REVISIONS, revision, REVISIONS[revision]._replace(equal=nothing, apportion=nothing))
    with pytest.raises(LookupError, match="another revision"):
        replace(partition, revision=revision).split(pool(), 6, rng.key(0))
