"""Shifts of vectors and windows: each by its own arithmetic, in five severities; and the streams that use them."""

import math

import numpy as np
import pytest
import torch

import acclimate as ac
from acclimate.core import rng
from acclimate.data import of
from acclimate.shifts import numbers
from acclimate.shifts.corruptions import COMMON, CORRUPTIONS

KEY = rng.fold(rng.key(3), "streams")


def vectors(rows=120, columns=4):
    """Numbers of unlike scales, then a column of zeros and ones."""
    g = np.random.default_rng(0)
    x = g.normal(0, 1, (rows, columns)) * np.arange(1, columns + 1) + 10
    x[:, -1] = np.arange(rows) % 2
    return of(x.astype(np.float32), np.arange(rows) % 2, client=np.arange(rows) % 3).world()


def windows(rows=60, sensors=6, time=20):
    x = np.random.default_rng(1).normal(2, 1.5, (rows, sensors, time))
    return of(x.astype(np.float32), np.arange(rows) % 2, client=np.arange(rows) % 2).world()


def under(world, kind, severity, rows=None, common=5):
    """Some examples before and after, and the units of the training rows."""
    rows = torch.arange(len(world.examples.y)) if rows is None else rows
    x, keys = world.examples.x[rows], rng.fold(rng.key(1), rows)
    units = numbers.units(world.examples, torch.cat(world.train))
    level = torch.zeros_like(rows)
    return x, numbers.change_each(x, level, severity, keys, (kind,), units, rng.key(common)), units


def test_units_are_those_of_training_rows():
    world = vectors()
    train = world.examples.x[torch.cat(world.train)].double()
    units = numbers.units(world.examples, torch.cat(world.train))
    assert torch.allclose(units.mean.double(), train.mean(0)) and torch.allclose(
        units.std.double(), train.std(0, correction=0)
    )
    assert torch.equal(units.fill[:3], train.float().median(0).values[:3])
    assert units.numbers.tolist() == [True] * 4  # data.of says that all of its columns are numbers
    bare = type("Bare", (), {"x": world.examples.x})
    assert numbers.units(bare, torch.cat(world.train)).numbers.tolist() == [True, True, True, False]


@pytest.mark.parametrize("make", [vectors, windows])
def test_noise_has_the_size_of_the_deviation(make):
    world = make()
    for severity, size in enumerate((0.1, 0.25, 0.5, 0.75, 1.0), start=1):
        x, out, units = under(world, "noise", severity)
        z = (out - x) / units.std.view(-1, *[1] * (x.dim() - 2))
        assert z.std().item() == pytest.approx(size, rel=0.1) and abs(z.mean().item()) < 0.2 * size
    rows = torch.tensor([7, 3])
    assert torch.equal(under(world, "noise", 5, rows)[1], under(world, "noise", 5)[1][rows])


@pytest.mark.parametrize("make", [vectors, windows])
def test_offsets_and_scales_are_alike_for_all_examples(make):
    world = make()
    for severity, size in enumerate((0.2, 0.4, 0.7, 1.0, 1.5), start=1):
        x, out, units = under(world, "offset", severity)
        moved = ((out - x) / units.std.view(-1, *[1] * (x.dim() - 2))).transpose(0, 1).flatten(1)
        assert torch.allclose(moved.abs(), torch.full_like(moved, size), atol=1e-3)
        assert torch.allclose(moved, moved[:, :1].expand_as(moved), atol=1e-3)
    for severity, log in enumerate((0.1, 0.2, 0.4, 0.7, 1.0), start=1):
        x, out, units = under(world, "scale", severity)
        mean = units.mean.view(-1, *[1] * (x.dim() - 2))
        factor = ((out - mean) / (x - mean)).transpose(0, 1).flatten(1).median(1).values
        assert torch.allclose(factor.log().abs(), torch.full_like(factor, log), atol=1e-3)
    other = under(world, "offset", 5, common=6)[1]
    assert not torch.equal(other, under(world, "offset", 5)[1])


def test_missing_columns_have_the_median_and_are_marked():
    world = of(_holes(), np.arange(200) % 2, client=np.arange(200) % 2).world()
    kinds = [f.kind for f in world.examples.features]
    mark = kinds.index("missing")
    for severity, share in enumerate((0.05, 0.1, 0.2, 0.35, 0.5), start=1):
        x, out, units = under(world, "missing", severity)
        gone = out[:, 1:] != x[:, 1:]
        assert gone.float().mean().item() == pytest.approx(share, abs=0.06)
    changed = out[:, 0] != x[:, 0]
    assert changed.any() and (out[changed, 0] == units.fill[0]).all() and (out[changed, mark] == 1).all()
    untouched = ~changed & (x[:, mark] == 0) & (x[:, 0] != units.fill[0])
    assert (out[untouched, mark] == 0).all()


@pytest.mark.parametrize("kind", ["missing", "dropped"])
def test_what_was_missing_before_stays_marked(kind):
    world = of(_holes(), np.arange(200) % 2, client=np.arange(200) % 2).world()
    mark = [f.kind for f in world.examples.features].index("missing")
    for common in range(8):  # of four columns half are dropped, the mark as often as others if it were one
        x, out, units = under(world, kind, 5, common=common)
        was = x[:, mark] == 1
        assert int(was.sum()) == 20
        assert (out[was, mark] == 1).all() and (out[was, 0] == units.fill[0]).all()
        if kind == "dropped":
            assert sum(int((out[:, i] == units.fill[i]).all()) for i in (0, 2, 3)) == 2  # of three columns


def _holes():
    x = np.random.default_rng(2).normal(0, 1, (200, 3))
    x[::10, 0] = np.nan
    return x


def test_missing_time_is_one_stretch():
    world = windows()
    for severity, length in enumerate((1, 2, 4, 7, 10), start=1):
        x, out, units = under(world, "missing", severity)
        gone = (out != x).any(1)
        assert gone.sum(1).tolist() == [length] * len(x)
        edges = gone.int().diff(dim=1).abs().sum(1) + gone[:, 0].int() + gone[:, -1].int()
        assert (edges == 2).all()
        assert torch.equal(out[0, :, gone[0]], units.fill[:, None].expand(-1, length))
    starts = [int(g.int().argmax()) for g in gone]
    assert length == 10 and {0, 10} <= set(starts) <= set(range(11))  # from the first reading to the last


@pytest.mark.parametrize(("make", "counts"), [(vectors, (1, 1, 1, 2, 2)), (windows, (1, 1, 2, 2, 3))])
def test_dropped_sensors_are_the_same_for_all_and_more_with_severity(make, counts):
    world, before = make(), set()
    for severity, count in enumerate(counts, start=1):
        x, out, units = under(world, "dropped", severity)
        filled = (out == units.fill.view(-1, *[1] * (x.dim() - 2))).view(len(x), x.shape[1], -1)
        gone = set(filled.all(2).all(0).nonzero().flatten().tolist())
        assert len(gone) == count and before <= gone
        before = gone


def test_axes_turn_by_the_angle_and_keep_lengths():
    world = windows()
    for severity, degrees in enumerate((10, 20, 40, 60, 90), start=1):
        x, out, _ = under(world, "rotated", severity)
        for part in (slice(0, 3), slice(3, 6)):
            assert torch.allclose(x[:, part].norm(dim=1), out[:, part].norm(dim=1), atol=1e-4)
        turn = torch.linalg.lstsq(
            x[:, :3].transpose(0, 1).flatten(1).T, out[:, :3].transpose(0, 1).flatten(1).T
        ).solution
        assert torch.allclose(
            turn, numbers.rotation(rng.fold(rng.fold(rng.key(5), "rotated"), "axis"), degrees).T, atol=1e-4
        )
        assert math.degrees(math.acos((turn.trace().item() - 1) / 2)) == pytest.approx(degrees, abs=0.1)
        assert torch.det(turn).item() == pytest.approx(1, abs=1e-4)


def test_words_go_missing_and_nothing_else_happens_to_them():
    frame = {"a": np.arange(40.0), "colour": ["red", "blue"] * 20, "kind": ["x", "y", "y", "x"] * 10}
    world = ac.data.Table.of(frame, label="kind", clients=2, partition=ac.data.IID()).world()
    for kind in ("noise", "offset", "scale"):
        x, out, _ = under(world, kind, 5)
        assert torch.equal(x[:, 1:], out[:, 1:]) and not torch.equal(x[:, 0], out[:, 0])
    _, out, _ = under(world, "missing", 5)
    assert (out[:, 1:].sum(1) == 0).any() and set(out[:, 1:].flatten().tolist()) == {0.0, 1.0}


# --- streams ---------------------------------------------------------------------------------------------------------


def test_which_kinds_fit():
    assert numbers.kinds_for(torch.zeros(2, 5)) == ("noise", "offset", "missing", "scale", "dropped")
    assert numbers.kinds_for(torch.zeros(2, 3, 5)) == (*numbers.kinds_for(torch.zeros(2, 5)), "rotated")
    assert "rotated" not in numbers.kinds_for(torch.zeros(2, 2, 5))
    assert numbers.kinds_for(torch.zeros(2, 3, 16, 16, dtype=torch.uint8)) == ()


@pytest.mark.parametrize("make", [vectors, windows])
def test_corrupting_streams_take_the_kinds_that_fit(make):
    world = make()
    fitting = numbers.kinds_for(world.examples.x)
    built = ac.shifts.Corrupted().build(world, KEY)
    assert tuple(built.card["kinds"]) == fitting and sum(built.card["kinds"].values()) == sum(map(len, world.test))
    plan = ac.shifts.Continual(segment=4).build(world, KEY)
    assert [k for k, _ in plan.card["plan"]] == list(fitting)
    assert ac.shifts.Gradual(segment=4).build(world, KEY).card["plan"][3] == ["noise", 3]
    recurring = ac.shifts.Recurring(segment=4, cycles=1).build(world, KEY)
    assert [k for k, s in recurring.card["plan"] if s] == list(fitting[:3])
    for stream in (
        ac.shifts.Mixture(),
        ac.shifts.Interleaved(),
        ac.shifts.Grouped(),
        ac.shifts.Blends(length=40, leg=8),
    ):
        x = stream.build(world, KEY).shards.x
        assert x.is_floating_point() and torch.isfinite(x).all()
    clean = ac.shifts.Continual(severity=0, segment=4).build(world, KEY).shards
    assert torch.equal(clean.x[:4], world.examples.x[ac.shifts.Original().build(world, KEY).shards.own(0)[:4]])


def test_an_example_is_shifted_alike_whoever_holds_it():
    world = vectors()
    own, mixed = (
        s.build(world, KEY).shards for s in (ac.shifts.Corrupted(), ac.shifts.Mixture(parts=(ac.shifts.Corrupted(),)))
    )
    rows = {tuple(v) for v in own.x.tolist()}
    assert {tuple(v) for v in mixed.x.tolist()} == rows


def test_kinds_that_do_not_fit_are_refused_by_name():
    with pytest.raises(
        ValueError, match=r"Corrupted: kinds=\('fog',\) does not fit inputs of shape \(4,\); name some of noise"
    ):
        ac.shifts.Corrupted(kinds=("fog",)).build(vectors(), KEY)
    images = ac.data.Digits(clients=2, fraction=0.1).world()
    with pytest.raises(
        ValueError, match=r"Gradual: kind='noise' does not fit inputs of shape \(3, 16, 16\); .*gaussian"
    ):
        ac.shifts.Gradual(kind="noise").build(images, KEY)
    with pytest.raises(ValueError, match="kinds=.'fgo'. must name some of gaussian_noise"):
        ac.shifts.Corrupted(kinds=("fgo",))
    assert ac.shifts.Corrupted().kinds == COMMON and set(COMMON) <= set(CORRUPTIONS)
    assert tuple(ac.shifts.Corrupted(kinds=("noise", "scale")).build(vectors(), KEY).card["kinds"]) == (
        "noise",
        "scale",
    )


def test_quantile_keeps_the_highest_of_a_column():
    world = vectors()
    for severity, share in enumerate((0.8, 0.65, 0.5, 0.35, 0.2), start=1):
        built = ac.shifts.Quantile(severity=severity, column="1").build(world, KEY)
        for c, test in enumerate(world.test):
            values = world.examples.x[test, 1].sort(descending=True).values
            left = world.examples.x[built.shards.own(c), 1]
            assert len(left) == round(share * len(test))
            assert torch.equal(left.sort(descending=True).values, values[: len(left)])
    assert built.card == {"severity": 5, "column": "1", "share": 0.2}
    assert ac.shifts.Quantile().build(ac.data.Cells().world(), KEY).card["column"] == "mean-radius"
    with pytest.raises(
        ValueError, match=r"column='size' must be one of 0, 1, 2, 3, or an input's number \(0, 1, 2, \.\.\.\)"
    ):
        ac.shifts.Quantile(column="size").build(world, KEY)
    with pytest.raises(ValueError, match="have no columns"):
        ac.shifts.Quantile().build(ac.data.Digits(clients=2, fraction=0.1).world(), KEY)


def test_quantile_goes_by_numbers_dates_and_times_and_never_by_words():
    who = [i % 3 for i in range(60)]
    table = {
        "who": who,
        "town": [f"t{w}" for w in who],  # tells clients apart
        "age": [None if i % 9 == 4 else float(i) for i in range(60)],
        "day": [f"2024-{w + 1:02d}-{i % 28 + 1:02d}" for i, w in enumerate(who)],
        "clock": [f"{i % 24:02d}:30" for i in range(60)],
        "y": [0, 1] * 30,
    }
    world = ac.data.Table.of(table, label="y", client="who").world()
    assert [(f.column, f.kind) for f in world.examples.features] == [
        *[("town", "word")] * 3,
        *[("age", "number"), ("age", "missing"), ("day", "date"), ("clock", "time")],
    ]
    assert ac.shifts.Quantile().build(world, KEY).card["column"] == "day"
    for place, column in ((3, "age"), (5, "day"), (6, "clock")):
        built = [ac.shifts.Quantile(severity=5, column=c).build(world, KEY) for c in (column, str(place))]
        assert built[0].card == built[1].card == {"severity": 5, "column": column, "share": 0.2}
        for c, test in enumerate(world.test):
            left = [world.examples.x[b.shards.own(c), place] for b in built]
            highest = world.examples.x[test, place].sort(descending=True).values[: round(0.2 * len(test))]
            assert torch.equal(left[0], left[1]) and torch.equal(left[0].sort(descending=True).values, highest)
    allowed = r"must be one of age, day, clock, or an input's number \(3, 5, 6\)$"
    says = "^Quantile: column='town' holds words, and no word is higher than another; it "
    with pytest.raises(ValueError, match=says + allowed):
        ac.shifts.Quantile(column="town").build(world, KEY)
    for column in ("size", "0", "4"):  # the last ones: an input of a word, and the mark of what is missing
        with pytest.raises(ValueError, match=f"^Quantile: column='{column}' {allowed}"):
            ac.shifts.Quantile(column=column).build(world, KEY)
    words = ac.data.Table.of({n: table[n] for n in ("who", "town", "y")}, label="y", client="who").world()
    for column in ("", "town"):
        with pytest.raises(
            ValueError, match=r"^Quantile: all columns \(town\) hold words, and no word is higher than another$"
        ):
            ac.shifts.Quantile(column=column).build(words, KEY)


def test_quantile_takes_the_column_that_tells_clients_apart_by_its_own_measure():
    g = np.random.default_rng(0)
    who = np.arange(120) % 3
    wide, constant = 100 * g.normal(size=120), np.full(120, 7.0)  # large means that differ by chance; and no spread
    x = np.stack([wide, constant, who + 0.1 * g.normal(size=120)], 1).astype(np.float32)
    world = of(x, np.arange(120) % 2, client=who, scale="none").world()
    assert ac.shifts.Quantile().build(world, KEY).card["column"] == "2"


def test_in_order_is_the_order_of_the_data():
    world = vectors()
    shards = ac.shifts.InOrder().build(world, KEY).shards
    assert [shards.own(c).tolist() for c in range(3)] == [sorted(r.tolist()) for r in world.test]
