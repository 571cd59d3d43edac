"""Walks through corruptions, labels on a clock of their own, and what a small device may learn from."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acclimate import adapters
from acclimate.core import Protocol, rng, stream
from acclimate.experiment.settings import expand
from acclimate.shifts import (
    Blends,
    Corrupted,
    FewClasses,
    FewSamples,
    Gradual,
    GradualLabels,
    Mixture,
    Original,
    Periodic,
    RecurringLabels,
)
from acclimate.shifts.corruptions import corrupt
from acclimate.shifts.label_clocks import drifting

KEY = rng.key(5)
T = torch.tensor


def tiny(sizes=(12, 7, 0), classes=4):
    """A world of small images that differ, with as many of each class."""
    count = sum(sizes)
    x = torch.randint(0, 256, (count, 3, 16, 16), generator=torch.Generator().manual_seed(1), dtype=torch.uint8)
    examples = SimpleNamespace(x=x, y=torch.arange(count) % classes, classes=tuple("abcd"[:classes]))
    return SimpleNamespace(test=torch.arange(count).split(list(sizes)), examples=examples)


def relabelled(world):
    return SimpleNamespace(
        test=world.test, examples=SimpleNamespace(**{**vars(world.examples), "y": 3 - world.examples.y})
    )


def shown(built, client=0):
    return built.shards.x[built.shards.own(client)]


def labels(built, client=0):
    return built.shards.y[built.shards.own(client)].tolist()


# --- blends -----------------------------------------------------------------------------------------------------------


WALK = Blends(kinds=("contrast", "brightness", "gaussian_noise"), length=20, leg=8, low=1.0, high=4.0)


def test_severities_fade_and_grow_evenly_between_corners_of_different_types():
    kinds, severities = WALK.corners(KEY)
    assert len(kinds) == 4 and all(a != b for a, b in zip(kinds, kinds[1:], strict=False))
    assert bool(((severities >= 1) & (severities <= 4)).all())
    at = WALK.places(KEY)
    for i in range(20):
        leg, share = i // 8, (i % 8) / 8
        assert (int(at.fading[i]), int(at.growing[i])) == (int(kinds[leg]), int(kinds[leg + 1]))
        assert float(at.fading_severity[i]) == pytest.approx(float(severities[leg]) * (1 - share))
        assert float(at.growing_severity[i]) == pytest.approx(float(severities[leg + 1]) * share)


def test_many_corners_reach_every_type_and_never_stay():
    kinds, _ = replace(WALK, length=3000).corners(KEY)
    counts = torch.bincount(kinds, minlength=3)
    assert bool((counts > 90).all()) and bool((kinds[1:] != kinds[:-1]).all())


def test_a_sample_is_under_both_corruptions_weighed_between_whole_severities():
    world = tiny()
    built, own = WALK.build(world, KEY), rng.fold(KEY, "blends")
    at, rows = WALK.places(own), Original().build(world, KEY).shards.own(0)
    for i in (0, 3, 13, 17):
        row = int(rows[i % 12])
        key = rng.fold(rng.fold(rng.fold(own, "image"), T([row])), T([i]))
        x = world.examples.x[row][None]
        for kind, severity, word in (
            (at.fading[i], at.fading_severity[i], "fading"),
            (at.growing[i], at.growing_severity[i], "growing"),
        ):
            low, part = int(severity), float(severity) - int(severity)
            name = WALK.kinds[int(kind)]
            ends = [corrupt(x, name, s, rng.fold(key, word)) if s else x for s in (low, low + 1)] if part else [x, x]
            if not part and low:
                ends = [corrupt(x, name, low, rng.fold(key, word))] * 2
            x = (ends[0].float() * (1 - part) + ends[1].float() * part).round().to(torch.uint8)
        assert int((shown(built)[i][None].int() - x.int()).abs().max()) <= 1  # of 255: the order of sums


def test_a_longer_walk_goes_on_where_a_shorter_one_ends():
    world = tiny()
    short, long = WALK.build(world, KEY), replace(WALK, length=50).build(world, KEY)
    assert short.shards.n.tolist() == [20, 20, 0] and long.shards.n.tolist() == [50, 50, 0]
    for c in (0, 1):
        assert torch.equal(shown(short, c), shown(long, c)[:20]) and labels(short, c) == labels(long, c)[:20]
    assert long.card["corners"][:4] == short.card["corners"] and long.card["length"] == 50
    assert short.card["order"].startswith("a walk through corruptions")
    assert torch.equal(shown(WALK.build(world, KEY)), shown(short))
    assert not torch.equal(shown(WALK.build(world, rng.key(6))), shown(short))


@pytest.mark.parametrize("shift", [WALK, FewSamples(kinds=("contrast",)), Periodic(segment=4, batch=4)])
def test_labels_change_neither_order_nor_pixels(shift):
    world = tiny()
    a, b = shift.build(world, KEY), shift.build(relabelled(world), KEY)
    assert torch.equal(shown(a), shown(b)) and labels(b) == [3 - y for y in labels(a)]


def test_walks_that_are_not_possible_are_refused():
    for fields, said in (
        ({"kinds": ("contrast",)}, "two or more"),
        ({"kinds": ("contrast", "rain")}, "rain"),
        ({"kinds": ("fog", "fog")}, "none twice"),
        ({"low": 4.0, "high": 3.0}, "high"),
        ({"length": 0}, "length"),
        ({"reset": "shift", "leg": 40}, "multiple of batch"),
    ):
        with pytest.raises(ValueError, match=said):
            Blends(**fields)


# --- labels on their own clock ----------------------------------------------------------------------------------------


def test_the_mix_moves_from_one_draw_to_the_next():
    rows, classes, draws = torch.arange(40), torch.arange(40) % 2, 4000
    found = drifting(rows, classes, draws, 0.5, 2000, KEY)
    mixes = [rng.dirichlet(rng.fold(KEY, "mix", i), 0.5, 1, 2)[0].numpy() for i in range(3)]
    for start in (0, 1000, 2000, 3000):
        turn, share = start // 2000, (start % 2000) / 2000 + 0.125  # the middle of 500 samples
        expected = (1 - share) * mixes[turn] + share * mixes[turn + 1]
        seen = np.bincount(classes[found[start : start + 500]].numpy(), minlength=2) / 500
        assert np.abs(seen - expected).max() < 0.08
    ones = found[classes[found] == 1]
    assert ones[:40].tolist() == rows[classes == 1].repeat(2).tolist()  # in turn
    assert torch.equal(drifting(rows, classes, 300, 0.5, 2000, KEY), found[:300])


@pytest.mark.parametrize(
    "shift", [GradualLabels(segment=8, period=20), RecurringLabels(segment=8, period=20, cycles=2)]
)
def test_images_change_with_segments_and_labels_with_the_clock(shift):
    world = tiny()
    built = shift.build(world, KEY)
    length = 8 * len(shift.plan())
    assert built.shards.n.tolist() == [length, length, 0]
    own = Original().build(world, KEY).shards.own(0)
    rows = drifting(own, world.examples.y[own], length, 0.5, 20, rng.fold(KEY, "label clock", 0))
    assert labels(built) == world.examples.y[rows].tolist()
    other = Original().build(world, KEY).shards.own(1)
    rows1 = drifting(other, world.examples.y[other], length, 0.5, 20, rng.fold(KEY, "label clock", 1))
    assert labels(built, 1) == world.examples.y[rows1].tolist()  # each client has a mix of its own
    assert torch.equal(shown(built)[:8], world.examples.x[rows[:8]])  # the first segment is clean
    assert not torch.equal(shown(built)[8:16], world.examples.x[rows[8:16]])
    assert built.card["order"] == "the mix of classes drifts, to another one of Dirichlet(0.5) every 20 samples"
    assert built.card["plan"] == [[k, s] for k, s in shift.plan()] and built.card["period"] == 20
    assert torch.equal(shown(shift.build(world, KEY)), shown(built))
    assert labels(built) != labels(Gradual(segment=8).build(world, KEY))[:length]


# --- what a device may learn from -------------------------------------------------------------------------------------


class Counting(adapters.NoAdapt):
    """Answers with how many batches it has learned from."""

    transductive = True

    def init(self, task, model):
        return {"learned": torch.zeros(()), "shown": torch.zeros(()), "sum": torch.zeros(())}

    def prepare(self, task, predict, model, state, x, real, key):
        return {**state, "shown": real.sum().float(), "sum": torch.where(real, x[:, 0], 0.0).sum()}

    def step(self, task, predict, model, state, x, key):
        answers = torch.stack((state["learned"], state["shown"], state["sum"])).expand(len(x), 3)
        return answers, {**state, "learned": state["learned"] + 1}

    def trace(self, task, predict, model, state, x, key):
        return *self.step(task, predict, model, state, x, key), {"x": x}


def counted(protocol, trace=False):
    data = {"x": torch.arange(20.0)[:, None], "rows": torch.arange(20), "n": T(18)}
    return stream.run(None, None, Counting(), {}, data, protocol, KEY, trace).logits


def test_only_some_batches_are_learned_from_and_a_preview_shows_no_more():
    plain = counted(Protocol(4))
    assert plain[::4, 0].tolist() == [0, 1, 2, 3, 4] and plain[0, 1:].tolist() == [18, sum(range(18))]
    assert counted(Protocol(4, every=2))[::4, 0].tolist() == [0, 1, 1, 2, 2]
    few = counted(Protocol(4, until=8))
    assert few[::4, 0].tolist() == [0, 1, 2, 2, 2] and few[0, 1:].tolist() == [8, sum(range(8))]
    assert counted(Protocol(4, until=12, every=2))[::4, 0].tolist() == [0, 1, 1, 2, 2]
    assert counted(Protocol(4, "shift", 8, every=2))[::4, 0].tolist() == [0, 1, 0, 1, 0]
    for protocol in (Protocol(4, every=2), Protocol(4, until=8)):
        assert torch.equal(counted(protocol, trace=True), counted(protocol))
    with pytest.raises(ValueError, match="until=6 must be a multiple of batch=4"):
        Protocol(4, until=6)
    with pytest.raises(ValueError, match="every"):
        Protocol(4, every=0)


def test_few_samples_are_those_of_the_corrupted_stream():
    world, kinds = tiny(), ("contrast",)
    few, plain = FewSamples(kinds=kinds, learn=32), Corrupted(kinds=kinds)
    assert torch.equal(shown(few.build(world, KEY)), shown(plain.build(world, KEY)))
    assert few.protocol == Protocol(16, until=32)
    assert few.build(world, KEY).card["learning"] == "from the first 32 samples alone"
    with pytest.raises(ValueError, match="until=20 must be a multiple of batch=16"):
        FewSamples(learn=20)


def test_few_classes_come_first_and_then_all_examples():
    world = tiny((12, 7, 12, 0))
    shift = FewClasses(kinds=("contrast",), learn=16, classes=2)
    built, plain = shift.build(world, KEY), Corrupted(kinds=("contrast",)).build(world, KEY)
    assert built.shards.n.tolist() == [28, 23, 28, 0]
    chosen = []
    for c in range(3):
        y = labels(built, c)
        chosen.append(frozenset(y[:16]))
        assert len(chosen[-1]) == 2 and y[16:] == labels(plain, c)
        own = [p for p, k in zip(shown(plain, c), labels(plain, c), strict=True) if k in chosen[-1]]
        assert all(torch.equal(p, own[i % len(own)]) for i, p in enumerate(shown(built, c)[:16]))
    assert len(set(chosen)) > 1  # drawn for each client
    assert built.card["learning"].endswith("of 2 of the client's classes")


def test_periodic_learns_once_in_a_while_and_a_mixture_refuses_it():
    world = tiny()
    shift = Periodic(segment=8, batch=4, every=3)
    assert shift.protocol == Protocol(4, "stream", 8, every=3)
    built = shift.build(world, KEY)
    assert built.card["learning"] == "from the first batch of 4 samples in every 3"
    assert built.shards.n.tolist() == [32, 32, 0]
    with pytest.raises(ValueError, match="part Periodic says what the adapter learns from"):
        Mixture(parts=(Original(), Periodic()))


def test_settings_name_them():
    (e,) = expand(["streams=blends,few-classes,periodic", "streams.blends.length=100", "streams.few-classes.classes=3"])
    assert e.streams == (Blends(length=100), FewClasses(classes=3), Periodic())
