"""Many rows ranked: the verdict is that of comparing every pair by itself."""

import itertools

import numpy as np
import pytest

from acclimate.eval import paired
from acclimate.eval.ranking import RankedPlace, RankedRow, Ranking, rank


def made_up(rows=6, streams=3, seeds=3, clients=8, seed=0):
    """Rows of growing means, near enough that some cannot be told apart."""
    rng = np.random.default_rng(seed)
    hard = rng.uniform(0.3, 0.8, (streams, seeds, clients))
    out = []
    for r in range(rows):
        own = (hard + 0.012 * r + rng.normal(0, 0.03, hard.shape)).round(3)
        out.append(
            RankedRow(f"row {r}", {f"s{i}": {n: own[i, n].tolist() for n in range(seeds)} for i in range(streams)})
        )
    return out


def by_hand(first, second, streams=None):
    """The paired interval of two rows' means over streams, from every client's mean difference, as compare has it."""
    streams = streams or list(first.cells)
    own = [
        np.mean([np.subtract(first.cells[s][n], second.cells[s][n]) for s in streams], axis=0)
        for n in first.cells[streams[0]]
    ]
    return paired.interval([d.tolist() for d in own])


@pytest.mark.parametrize("seed", range(3))
def test_places_and_ties_are_those_of_every_pair_by_itself(seed):
    rows = made_up(seed=seed)
    found = rank(rows)
    named = {e.title: e for e in rows}
    means = {e.title: np.mean([np.mean(v) for own in e.cells.values() for v in own.values()]) for e in rows}
    assert [p.title for p in found.places] == sorted(means, key=lambda t: -means[t])
    order = [named[p.title] for p in found.places]
    for place, entry in zip(found.places[1:], order[1:], strict=True):
        low, high = by_hand(order[0], entry)
        assert (place.low, place.high) == (pytest.approx(low), pytest.approx(high))
        assert place.level == (low <= 0)
    apart = {(a, b) for a, b in itertools.combinations(range(6), 2) if paired.told_apart(*by_hand(order[a], order[b]))}
    runs = [(a, b) for a, b in itertools.combinations(range(6), 2)
            if not any(pair in apart for pair in itertools.combinations(range(a, b + 1), 2))]  # fmt: skip
    longest = [r for r in runs if not any(o != r and o[0] <= r[0] and r[1] <= o[1] for o in runs)]
    assert list(found.groups) == longest
    assert 0 < len(apart) < 15  # the test would show nothing otherwise


def test_a_stream_by_itself_is_ranked_as_compare_does():
    rows = made_up()
    for stream, places in rank(rows).by_stream.items():
        first = next(e for e in rows if e.title == places[0].title)
        for place in places[1:]:
            other = next(e for e in rows if e.title == place.title)
            d = paired.difference(stream, "last", first.cells[stream], other.cells[stream])
            assert (place.low, place.high) == (pytest.approx(d.low), pytest.approx(d.high))
            assert place.level == (not d.differs)


def test_equal_rows_are_level_and_share_a_rank():
    cells = {"a": {0: [0.5, 0.7, 0.5]}}
    found = rank([RankedRow("x", cells), RankedRow("y", cells), RankedRow("z", {"a": {0: [0.1, 0.2, 0.0]}})])
    assert [p.average_rank for p in found.places] == [1.5, 1.5, 3.0]
    assert found.groups == ((0, 1),) and found.places[1].level and not found.places[2].level
    assert "Within chance of it: y." in found.words()[0]


def test_rows_of_one_client_and_one_seed_cannot_be_told_apart():
    """As on a stream of one newcomer: its places are those of its means, and every row is level with the first."""
    three = (("x", 0.9), ("y", 0.2), ("z", 0.1))
    rows = [RankedRow(n, {"new": {0: [v]}, "own": {0: [v, v, v, v - v * v / 9]}}) for n, v in three]
    found = rank(rows)
    assert [(p.title, p.level, p.low, p.high) for p in found.by_stream["new"]] == [
        ("x", True, -1.0, 1.0), ("y", True, -1.0, 1.0), ("z", True, -1.0, 1.0)]  # fmt: skip
    assert not found.places[1].level and not any(p.level for p in found.by_stream["own"][1:])
    differences = [0.7, 0.7, 0.7, 0.7 - (0.81 - 0.04) / 9]  # of four clients; the newcomer, alone, has no spread
    half = 3.182446 * np.std(differences, ddof=1) * (0.25 + 0.25 / 4) ** 0.5
    assert found.places[1].low == pytest.approx((0.7 + np.mean(differences)) / 2 - half)
    alone = rank([RankedRow(r.title, {"new": r.cells["new"]}) for r in rows])
    assert alone.groups == ((0, 2),) and "Within chance of it: y and z." in alone.words()[0]


def test_rows_that_cannot_be_paired_are_left_out_with_the_reason():
    whole = made_up(rows=3)
    lacking = RankedRow("one seed", {s: {0: own[0]} for s, own in whole[0].cells.items()})
    blind = RankedRow("one stream", {"s0": whole[0].cells["s0"]})
    other = RankedRow("other", whole[0].cells, {(0, "s0"): "another hash"})
    doubted = RankedRow("doubted", whole[0].cells, doubt="two runs disagree")
    found = rank([lacking, blind, other, doubted, *whole])
    assert len(found.places) == 3 and found.seeds == (0, 1, 2)
    assert found.left_out == {
        "one seed": "it lacks seeds 1 and 2",
        "one stream": "it has no number on s1 and s2",
        "other": "it was tested on other examples",
        "doubted": "two runs disagree",
    }
    assert rank([lacking, doubted]) is None


def cut(row, seeds, streams):
    """A row with some of its seeds and streams alone."""
    return RankedRow(row.title, {s: {n: row.cells[s][n] for n in seeds} for s in streams})


@pytest.mark.parametrize(
    ("first", "second", "seeds", "streams", "said"),
    [
        (((0, 1, 2), "ab"), ((0, 1, 3), "ab"), (0, 1), "ab", ["Ranked on seeds 0 and 1 alone: not every row has seeds "
                                                               "2 and 3."]),
        (((0, 1), "ab"), ((0, 1), "ac"), (0, 1), "a", ["Ranked without streams b and c: not every row was tested on "
                                                       "the same."]),
        (((0, 1, 2), "a"), ((0,), "a"), (0,), "a", ["Ranked on seed 0 alone: not every row has seeds 1 and 2."]),
        (((0, 1), "ab"), ((0, 1), "ab"), (0, 1), "ab", []),
    ],
)  # fmt: skip
def test_rows_are_ranked_on_what_they_share_and_the_rest_is_named(first, second, seeds, streams, said):
    rng = np.random.default_rng(4)
    whole = [RankedRow(f"r{i}", {s: {n: rng.uniform(0, 1, 5).tolist() for n in range(4)} for s in "abc"})
             for i in range(2)]  # fmt: skip
    rows = [cut(row, *part) for row, part in zip(whole, (first, second), strict=True)]
    found = rank(rows)
    assert found.seeds == seeds and "".join(found.by_stream) == streams and found.left_out == {}
    assert found.besides() == said and all(s in found.words() for s in said)
    means = {r.title: np.mean([r.cells[s][n] for s in streams for n in seeds]) for r in rows}
    assert {p.title: p.mean for p in found.places} == pytest.approx(means)
    besides = found.to_dict()["not_ranked_on"]
    assert besides["seeds"] == sorted(set(first[0]) ^ set(second[0]))
    assert besides["streams"] == sorted(set(first[1]) ^ set(second[1]))


def test_a_row_that_lacks_a_seed_joins_the_others_and_one_on_other_examples_does_not():
    """Three rows of a method and three of another, each method with a seed of its own: two seeds of six rows are more
    numbers than three of three. A row with other examples of a stream costs the others nothing."""
    rng = np.random.default_rng(5)
    whole = [RankedRow(f"r{i}", {s: {n: rng.uniform(0, 1, 5).tolist() for n in range(4)} for s in "ab"})
             for i in range(7)]  # fmt: skip
    rows = [cut(row, (0, 1, 2) if i < 3 else (0, 1, 3), "ab") for i, row in enumerate(whole[:6])]
    other = RankedRow("other", cut(whole[6], (0, 1), "ab").cells, {(0, "b"): "others", (1, "b"): "others"})
    found = rank([*rows, other])
    assert len(found.places) == 6 and found.seeds == (0, 1) and found.other_seeds == (2, 3)
    assert found.left_out == {"other": "it was tested on other examples"} and list(found.by_stream) == ["a", "b"]
    two = rank([cut(whole[0], (0, 1), "ab"), other])
    assert list(two.by_stream) == ["a"] and two.other_streams == ("b",)


def test_what_two_rows_share_in_part_is_cut_to_whole_seeds():
    """Seed 1 lacks stream b on one side: a mean over both streams of seed 0 and of one of seed 1 would mix them."""
    cells = {"a": {0: [0.1, 0.2], 1: [0.3, 0.4]}, "b": {0: [0.5, 0.6], 1: [0.7, 0.8]}}
    first = RankedRow("x", {**cells, "c": {0: [0.9, 0.9]}})
    second = RankedRow("y", {"a": cells["a"], "b": {0: cells["b"][0]}, "d": {0: [0.9, 0.9]}})
    found = rank([first, second])
    assert found.seeds == (0,) and list(found.by_stream) == ["a", "b"] and found.other_seeds == (1,)
    assert found.places[0].mean == pytest.approx(0.35)


def test_streams_with_other_clients_are_drawn_apart():
    rng = np.random.default_rng(2)
    rows = [RankedRow(f"r{i}", {"a": {0: rng.uniform(0, 1, 5).tolist()}, "new": {0: rng.uniform(0, 1, 9).tolist()}})
            for i in range(2)]  # fmt: skip
    found = rank(rows)
    lead = found.places[0].mean - found.places[1].mean
    assert found.places[1].low < lead < found.places[1].high
    means = {e.title: np.mean([np.mean(own[0]) for own in e.cells.values()]) for e in rows}
    assert found.places[0].mean == pytest.approx(max(means.values()))


def test_a_large_federation_is_drawn_in_parts_with_the_same_numbers(monkeypatch):
    own = np.random.default_rng(0).normal(0, 1, (2, 40)).tolist()
    whole = paired.interval(own, draws=500)
    monkeypatch.setattr(paired, "AT_ONCE", 90)
    assert paired.interval(own, draws=500) == whole


def test_more_than_26_groups_have_distinct_letters():
    places = tuple(RankedPlace(f"r{i}", i + 1, 0.5, 0.0, 0.0, 1.0) for i in range(55))
    ranking = Ranking(places, tuple((i, i + 1) for i in range(54)), {}, (0, 1), {})
    bars = ranking.bars()
    assert bars[0] == "a" and bars[25] == "yz" and bars[26] == "za2" and bars[27] == "a2b2" and bars[54] == "b3"
    assert len({bars[0], bars[26], bars[52], bars[54]}) == 4
