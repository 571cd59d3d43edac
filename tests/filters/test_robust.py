"""Robust reducers against hand-worked numbers, and against a client that lies."""

from dataclasses import dataclass

import pytest
import torch
from filtered import trained

from acclimate.core import Arrived, Gather, Mean, Sum, rng, tree
from acclimate.filters import Krum, Median, TrimmedMean
from acclimate.filters.krum import scores
from acclimate.filters.median import median
from acclimate.filters.trimmed import trimmed_mean
from acclimate.methods import SCAFFOLD, FedAvg
from support import gap

VALUES = torch.tensor([[1.0, 10.0], [2.0, -5.0], [3.0, 0.0], [4.0, 7.0], [1e9, -1e9]])
ALL = torch.ones(5, dtype=torch.bool)


def reduced(record, total, rules, count=5):
    assert all(isinstance(r, Gather) for r in record.uplink(rules).values())
    return record.server(total, rng.key(0), Arrived(rules, count, count))


def test_median_of_odd_and_even_numbers():
    assert median(VALUES, ALL).tolist() == [3.0, 0.0]
    assert median(VALUES[:4], ALL[:4]).tolist() == [2.5, 3.5]
    torch.testing.assert_close(median(VALUES, ALL), VALUES.median(0).values)


def test_trimmed_mean_cuts_both_ends():
    assert trimmed_mean(VALUES, ALL, 0.2).tolist() == pytest.approx([3.0, 2 / 3])
    assert trimmed_mean(VALUES, ALL, 0.4).tolist() == [3.0, 0.0]
    torch.testing.assert_close(trimmed_mean(VALUES[:4], ALL[:4], 0.0), VALUES[:4].mean(0))


def test_krum_takes_the_lowest_sum_of_its_nearest_distances():
    points = {"d": torch.tensor([[0.0], [1.0], [3.0], [3.5], [4.5], [100.0]])}
    # six clients, one liar: the three nearest others count
    by_hand = [1 + 9 + 12.25, 1 + 4 + 6.25, 0.25 + 2.25 + 4, 0.25 + 1 + 6.25, 1 + 2.25 + 12.25]
    assert scores(points, 1)[:5].tolist() == pytest.approx(by_hand)
    plane = {"d": torch.tensor([[0.0, 1.0], [2.0, 1.0], [2.0, 4.0], [5.0, 0.0], [0.0, 0.0]]), "n": torch.arange(5)}
    # five clients, one liar: the two nearest others count, and counts do not vote
    assert scores(plane, 1).tolist() == pytest.approx([4 + 1, 4 + 5, 9 + 13, 10 + 25, 1 + 5])
    rules = {"d": Mean()}
    assert reduced(Krum(), points, rules, 6)["d"].tolist() == [3.0]
    assert reduced(Krum(select=2), points, rules, 6)["d"].tolist() == [3.25]
    with pytest.raises(ValueError, match="a round of 4 clients with liars=1 .* more than 2 \\* liars \\+ 2 = 4"):
        reduced(Krum(), tree.take(points, slice(4)), rules, 4)
    with pytest.raises(ValueError, match="select=4: .* = 3;"):
        reduced(Krum(select=4), points, rules, 6)


def test_a_sum_of_counts_is_rounded_and_not_cut():
    counts = torch.tensor([12, 34, 29, 43, 45, 57, 15, 8, 27, 57, 18, 43, 22, 45, 30])
    total = {"n": counts, "delta": torch.ones(15, 2)}
    got = reduced(TrimmedMean(0.2), total, {"n": Sum(), "delta": Mean()}, 15)
    assert sum(counts.sort().values[3:12].tolist()) * 15 / 9 == 485 and int(got["n"]) == 485  # 484.99997 in float32


@pytest.mark.parametrize("record", [Median(), TrimmedMean(), Krum()])
def test_a_group_without_tensors_stays_so(record):
    """ODPFL sends the statistics of a model as a group of its own, and many models have none."""
    total = {"buffers": {}, "delta": {"w": VALUES[:, :1]}}
    got = reduced(record, total, {"buffers": Mean(), "delta": Mean()})
    assert got["buffers"] == {} and float(got["delta"]["w"]) in (2.0, 3.0)


@pytest.mark.parametrize("record", [Median(), TrimmedMean(), Krum()])
def test_a_sum_is_the_value_times_the_clients_and_counts_stay_integers(record):
    total = {"delta": {"w": torch.full((5, 3), 2.0)}, "n": torch.full((5,), 7)}
    got = reduced(record, total, {"delta": Mean("n"), "n": Sum()})
    assert got["delta"]["w"].tolist() == [2.0] * 3 and got["n"].tolist() == 35 and got["n"].dtype == torch.int64


@pytest.mark.parametrize("record", [Median(), TrimmedMean(0.3)])
def test_rows_that_a_client_has_not_do_not_vote(record):
    prototypes = torch.tensor([[[1.0], [5.0]], [[3.0], [0.0]], [[2.0], [0.0]], [[0.0], [0.0]]])
    counts = torch.tensor([[4, 2], [1, 0], [9, 0], [0, 0]])
    got = reduced(record, {"p": prototypes, "k": counts}, {"p": Mean("k"), "k": Sum()}, 4)
    assert got["p"].flatten().tolist() == [2.0, 5.0]
    nobody = reduced(record, {"p": prototypes, "k": 0 * counts}, {"p": Mean("k"), "k": Sum()}, 4)
    assert nobody["p"].flatten().tolist() == [0.0, 0.0]


def test_krum_goes_on_with_fewer_answers_than_it_needs():
    """Where liars are suspended, or clients lost: the median of 2 liars + 2 answers or fewer, and fewer to average."""
    points, rules = torch.tensor([[0.0], [1.0], [3.0], [3.5], [4.5], [100.0]]), {"d": Mean()}

    def of(record, answered):
        total = {"d": points[list(answered)]}
        return record.server(total, rng.key(0), Arrived(rules, len(answered), 6))["d"].tolist()

    assert of(Krum(), (0, 1, 2, 5)) == [2.0], "the middle two of 0, 1, 3 and 100"
    assert of(Krum(), (1, 2, 5)) == [3.0] and of(Krum(), (5,)) == [100.0]
    # of five, one liar: two others count, and two may be averaged: those of 3 (0.25 + 2.25) and 3.5 (0.25 + 1)
    assert of(Krum(select=3), (1, 2, 3, 4, 5)) == [3.25] and of(Krum(select=3), range(6)) == [2.5]
    with pytest.raises(ValueError, match="a round of 4 clients with liars=1"):
        reduced(Krum(), {"d": points[:4]}, rules, 4)


def test_krum_with_two_liars_needs_more_than_six_answers():
    points = torch.tensor([[0.0], [1.0], [3.0], [3.5], [4.5], [100.0], [120.0]])

    def of(count):
        return Krum(liars=2).server({"d": points[:count]}, rng.key(0), Arrived({"d": Mean()}, count, 7))["d"].tolist()

    assert of(5) == [3.0] and of(6) == [3.25], "the median"
    assert of(7) == [3.0], "three others count, and those of 3 are nearest: 0.25 + 2.25 + 4"


def test_krum_averages_over_those_that_have_a_value():
    points = torch.tensor([[0.0], [1.0], [3.0], [3.5], [4.5], [100.0]])
    counts = torch.tensor([5, 6, 0, 7, 8, 9])
    got = reduced(Krum(select=2), {"d": points, "k": counts}, {"d": Mean("k"), "k": Sum()}, 6)
    assert got["d"].tolist() == [3.5]  # the best one, 3.0, has no value
    assert got["k"].item() == 21  # (0 + 7) / 2 of each of six


def test_gathered_groups_of_the_method_pass_unchanged():
    total = {"delta": torch.ones(5, 2), "each": torch.arange(5)}
    got = Median().server(total, rng.key(0), Arrived({"delta": Mean(), "each": Gather()}, 5, 5))
    assert got["each"] is total["each"]


@dataclass(frozen=True)
class Poisoned(FedAvg):
    """FedAvg with one client that sends a huge update and says that it has a million examples."""

    def client(self, task, down, mine, data, key):
        up, mine = super().client(task, down, mine, data, key)
        bad = data["id"] == 2
        delta = tree.map(lambda x: torch.where(bad, torch.full_like(x, 1e6), x), up["delta"])
        return {"delta": delta, "n": torch.where(bad, torch.full_like(up["n"], 10**6), up["n"])}, mine


@pytest.fixture(scope="module")
def unfiltered():
    """Training among honest clients, and with one that lies."""
    return trained(FedAvg(), (), rounds=3, cohort=6), trained(Poisoned(), (), rounds=1, cohort=6)


@pytest.mark.parametrize("record", [Median(), TrimmedMean(0.2), Krum(), Krum(select=3)], ids=repr)
def test_a_lying_client_breaks_fedavg_but_not_the_reducers(record, unfiltered):
    honest, broken = unfiltered
    saved = trained(Poisoned(), (record,), rounds=3, cohort=6)
    assert gap(honest.server["vars"], broken.server["vars"]) > 1e5
    assert gap(honest.server["vars"], saved.server["vars"]) < 2.0
    assert saved.history[-1]["val_accuracy"] > honest.history[-1]["val_accuracy"] - 0.2


def test_a_trimmed_mean_that_cuts_nothing_is_the_uniform_mean():
    plain = trained(FedAvg(weights="uniform"), ())
    assert gap(plain.server, trained(FedAvg(weights="uniform"), (TrimmedMean(0.0),)).server) < 1e-6
    assert gap(trained(SCAFFOLD(), ()).server, trained(SCAFFOLD(), (TrimmedMean(0.0),)).server) < 1e-6


def test_a_share_is_cut_to_the_last_client_however_many_there_are():
    values = torch.arange(150.0)[:, None] ** 2
    kept = values.sort(0).values[63:-63]  # 0.42 of 150, which single precision makes 62.99...
    assert trimmed_mean(values, torch.ones(150, dtype=torch.bool), 0.42).tolist() == pytest.approx(
        kept.mean(0).tolist()
    )


def test_krum_measures_scalars_of_each_client_too():
    """AFL sends a share: one number per client. By hand: client 3 is far in it alone."""
    groups = {"delta": {"w": torch.zeros(5, 2)}, "share": torch.tensor([1.0, 1.0, 1.0, 9.0, 1.0])}
    assert scores(groups, 1).tolist() == [0.0, 0.0, 0.0, 128.0, 0.0]
