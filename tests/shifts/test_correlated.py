"""Streams in hard orders: what order they have, sample by sample, and what their cards say of it."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch

from acclimate.core import rng
from acclimate.shifts import Correlated, LabelSorted, Original, Repeated
from acclimate.shifts.drift import in_waves

KEY = rng.key(5)


def tiny(sizes=(12, 7, 0), classes=4):
    """A world of tiny images whose first pixel is their row."""
    count = sum(sizes)
    x = torch.full((count, 3, 16, 16), 100, dtype=torch.uint8)
    x[:, 0, 0, 0] = torch.arange(count)
    examples = SimpleNamespace(x=x, y=torch.arange(count) % classes, classes=tuple("abcd"[:classes]))
    return SimpleNamespace(test=torch.arange(count).split(list(sizes)), examples=examples)


def labels(stream, client):
    return stream.shards.y[stream.shards.own(client)].tolist()


def test_label_sorted_shows_one_class_after_the_other_in_an_order_of_each_client():
    world = tiny((12, 12, 12, 12, 0))
    stream = LabelSorted().build(world, KEY)
    orders = []
    for c in range(4):
        y = labels(stream, c)
        orders.append(tuple(dict.fromkeys(y)))
        assert y == [k for k in orders[-1] for _ in range(3)]
        assert sorted(stream.shards.own(c).tolist()) == world.test[c].tolist()
        # within a class the order is that of the original stream
        plain = Original().build(world, KEY).shards.own(c)
        first = [r for r in plain.tolist() if r % 4 == orders[-1][0]]
        assert stream.shards.own(c)[:3].tolist() == first
    assert len(set(orders)) > 1
    assert int(stream.shards.n[4]) == 0
    assert stream.card["order"].startswith("one class after the other")


def test_correlated_has_waves_within_each_segment_and_the_segments_of_the_walk():
    world = tiny()
    shift = Correlated(kinds=("contrast", "brightness"), alpha=0.1, slots=3, segment=24)
    mixed = replace(shift, alpha=None)
    waves, plain = shift.build(world, KEY), mixed.build(world, KEY)
    walk = Original().build(world, KEY).shards.own(0).repeat(4)
    assert labels(plain, 0) == world.examples.y[walk].tolist()
    for i in range(2):
        part = slice(24 * i, 24 * i + 24)
        expected = in_waves(
            walk[part], world.examples.y[walk[part]], 0.1, 3, rng.fold(rng.fold(KEY, "correlated", 0), i)
        )
        assert labels(waves, 0)[part] == world.examples.y[expected].tolist()
    assert waves.card["plan"] == [["contrast", 5], ["brightness", 5]]
    assert waves.card["order"] == "within each segment, classes in waves: Dirichlet(0.1) over 3 time slots"
    assert plain.card["order"] == "shuffled"
    assert waves.shards.n.tolist() == [48, 48, 0]


def test_correlated_images_are_corrupted_and_batches_hold_few_classes():
    world = tiny((40,))
    clean = Correlated(kinds=("contrast",), severity=0, alpha=0.01, segment=128).build(world, KEY)
    seen = clean.shards.x[clean.shards.own(0)]
    assert torch.equal(world.examples.y[seen[:, 0, 0, 0].long()], clean.shards.y[clean.shards.own(0)])
    shown = Correlated(kinds=("brightness",), alpha=0.01, segment=128).build(world, KEY).shards
    assert bool((shown.x[:, 0, 4, 4] > 100).all())
    distinct = [len(set(b.tolist())) for b in torch.tensor(labels(clean, 0)).split(32)]
    assert sum(distinct) <= 8 < sum(len(set(b.tolist())) for b in world.examples.y.repeat(4)[:128].split(32))


def test_repeated_shows_the_same_cycle_again_and_again():
    world = tiny()
    stream = Repeated(kinds=("gaussian_noise", "contrast"), segment=8, cycles=3).build(world, KEY)
    shown = stream.shards.x[stream.shards.own(1)].view(3, 16, -1)
    assert torch.equal(shown[0], shown[1]) and torch.equal(shown[0], shown[2])
    assert not torch.equal(shown[0, :8], shown[0, 8:])
    walk = Original().build(world, KEY).shards.own(1)[torch.arange(16) % 7]
    assert labels(stream, 1) == world.examples.y[walk].tolist() * 3
    assert stream.card["cycles"] == 3 and stream.card["plan"] == [["gaussian_noise", 5], ["contrast", 5]]
    assert stream.card["order"].startswith("shuffled; the cycle comes 3 times")
    assert Repeated().cycles == 20 and int(stream.shards.n[2]) == 0


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Correlated(alpha=0.0), "Correlated: alpha=0.0"),
        (lambda: Correlated(slots=0), "Correlated: slots=0 must be a whole number"),
        (lambda: Repeated(cycles=0), "Repeated: cycles=0 must be a whole number"),
        (lambda: Repeated(severity=6), "Repeated: severity=6"),
        (lambda: Correlated(kinds=("rain",)), "kind 'rain' must be one of"),
    ],
)
def test_bad_settings_are_refused_by_name(make, says):
    with pytest.raises(ValueError, match=says):
        make()
