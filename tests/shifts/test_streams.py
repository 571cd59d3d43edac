"""The streams beyond BRFL: where their examples come from, in what order, and what resets mean."""

import functools
import os
from dataclasses import dataclass, fields, replace
from typing import get_args, get_type_hints

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

import acclimate as ac
from acclimate.core import Protocol, rng
from acclimate.core.stream import run as serve
from acclimate.data import ByDomain, Dataset, Digits, Dirichlet, Examples, Pathological
from acclimate.experiment import labels
from acclimate.ops import disk_cache
from acclimate.ops.hashing import content_hash
from acclimate.shifts import (
    Continual,
    Correlated,
    Corrupted,
    Gradual,
    Interleaved,
    LabelDrift,
    LabelSorted,
    Mixture,
    Natural,
    NewClients,
    Original,
    OutOfClient,
    Recurring,
    Reduced,
    Repeated,
    Rotated,
    UnseenDomain,
    brfl,
    severity_sweep,
)
from acclimate.shifts.base import frost
from acclimate.shifts.corruptions import COMMON, CORRUPTIONS, REVISIONS
from acclimate.shifts.drift import Segments
from support import client_data, shards, task

WORLD = Digits(clients=6).world(0)
KEY = rng.key(11)
EVERY = [
    *brfl(),
    Interleaved(),
    Rotated(),
    Reduced(),
    Gradual(),
    Continual(kinds=COMMON[:3]),
    Recurring(),
    LabelDrift(),
    LabelSorted(),
    Correlated(segment=32),
    Repeated(cycles=2),
]


@pytest.mark.parametrize("shift", EVERY, ids=lambda s: type(s).__name__)
def test_a_stream_of_copies_says_of_which_examples_they_are(shift):
    each = torch.arange(len(WORLD.examples.y))  # a label is the number of its example
    world = replace(WORLD, examples=replace(WORLD.examples, y=each, classes=tuple(map(str, each.tolist()))))
    built = shift.build(world, KEY)
    assert torch.equal(built.shards.y, each if built.copied is None else built.copied)


@pytest.mark.parametrize("shift", EVERY, ids=lambda s: type(s).__name__)
def test_no_stream_holds_a_training_example_and_each_is_fixed_by_the_key(shift):
    world = replace(WORLD, examples=replace(WORLD.examples, y=torch.arange(len(WORLD.examples.y)) % 10))
    a, b, other = shift.build(world, KEY), shift.build(world, KEY), shift.build(world, rng.key(12))
    assert torch.equal(a.shards.rows, b.shards.rows)
    assert torch.equal(a.shards.x, b.shards.x)
    assert not (torch.equal(a.shards.rows, other.shards.rows) and torch.equal(a.shards.x, other.shards.x))
    # trace every sample back by a label that is its row: nothing of train or val may appear
    traced = Examples(
        WORLD.examples.x,
        torch.arange(1797),
        tuple(map(str, range(1797))),
        WORLD.examples.domain,
        WORLD.examples.domains,
    )
    stream = shift.build(replace(WORLD, examples=traced), KEY).shards
    test = set(torch.cat(WORLD.test).tolist())
    for c in range(6):
        assert set(stream.y[stream.own(c)].tolist()) <= test
        assert len(stream.own(c)) > 0


@dataclass(frozen=True)
class Pictures(Dataset):
    """A second data set of the same classes, with few examples of some of them and none of some that may be named."""

    lacks: tuple[int, ...] = ()

    def load(self):
        y = torch.tensor([c for c in range(10) for _ in range(20 + 7 * c) if c not in self.lacks])
        x = torch.zeros(len(y), 3, 16, 16, dtype=torch.uint8)
        return Examples(x, y, tuple("0123456789"), torch.zeros_like(y), ("pictures",))


@settings(max_examples=15)
@given(st.floats(0.05, 5), st.integers(2, 12), st.integers(0, 50))
def test_natural_streams_match_the_histogram_within_one_example(alpha, clients, seed):
    world = Digits(clients=clients, partition=Dirichlet(alpha)).world(seed)
    built = Natural(source=Pictures()).build(world, KEY)
    stream, scale = built.shards, built.card["scale"]
    used = torch.cat([stream.own(c) for c in range(clients)])
    assert len(used.unique()) == len(used)
    for c in range(clients):
        own = torch.bincount(stream.y[stream.own(c)], minlength=10)
        wanted = torch.bincount(world.examples.y[world.test[c]], minlength=10) * scale
        assert float((own - wanted).abs().max()) <= 1.0 + 1e-2 * len(world.test[c])


def test_natural_refuses_what_does_not_fit():
    with pytest.raises(ValueError, match="source must name a data set"):
        Natural().build(WORLD, KEY)
    with pytest.raises(ValueError, match=r"has inputs \(3, 16, 16\), the clients' are \(3, 20, 20\)"):
        Natural(source=Pictures()).build(Digits(side=20).world(0), KEY)
    absent = ac.data.CIFAR10_1(root="nowhere")
    with pytest.raises(FileNotFoundError, match="^Natural: CIFAR10_1: .*is named by streams.natural.source=NAME$"):
        Natural(source=absent).build(WORLD, KEY)


def test_natural_names_the_classes_that_the_other_set_lacks():
    for lacks, says in (
        ((3,), "Natural: Pictures has no example of '3', which clients are tested on; name a source"),
        ((1, 4), "has no example of '1', '4', which clients are tested on"),
        ((0, 1, 2, 3, 4, 5, 6), "has no example of '0', '1', '2', '3', '4' and 2 more, which"),
    ):
        with pytest.raises(ValueError, match=says):
            Natural(source=Pictures(lacks=lacks)).build(WORLD, KEY)
    threes = WORLD.examples.y == 3
    nobody = replace(WORLD, test=tuple(rows[~threes[rows]] for rows in WORLD.test))
    stream = Natural(source=Pictures(lacks=(3,))).build(nobody, KEY)
    assert stream.card["scale"] > 0
    assert bool((stream.shards.n > 0).all())


@dataclass(frozen=True)
class Paintings(Pictures):
    """A third set, whose rows have the same numbers."""


def test_a_mixture_tells_examples_of_several_sets_apart():
    """Row 5 of the clients' examples and row 5 of another set are two examples, and a copy of one is it again."""
    inner = Mixture(parts=(Natural(source=Paintings()), Original()))
    mixture = Mixture(parts=(Original(), Natural(source=Pictures()), Corrupted(), inner, Natural(source=Pictures())))
    built = mixture.build(WORLD, KEY)
    assert built.foreign == (Pictures(), Paintings())
    each = {0: set(), 1: set(), 2: set()}
    for kind, row in zip(built.sets.tolist(), built.copied.tolist(), strict=True):
        each[kind].add(row)
    assert each[0] & each[1] and each[1] & each[2]  # the same numbers in all three
    pairs = list(zip(built.sets.tolist(), built.copied.tolist(), strict=True))
    assert len(set(pairs)) == len(built.examples.unique()) > len(built.copied.unique())
    by_pair = dict(zip(pairs, built.examples.tolist(), strict=True))
    assert [by_pair[p] for p in pairs] == built.examples.tolist()
    for row, kind in enumerate(built.sets.tolist()):  # all pictures are black, the clients' images are not
        assert bool(built.shards.x[row].any()) == (kind == 0)
    plain = Mixture(parts=(Original(), Corrupted())).build(WORLD, KEY)
    assert plain.sets is None and torch.equal(plain.examples, plain.copied)
    assert Original().build(WORLD, KEY).examples is None


def test_unseen_domains_are_seen_by_all_and_trained_on_by_none():
    data = Digits(domains=("plain", "sketch", "faded"), held_out=("sketch",), partition=ByDomain(), clients=2)
    world = data.world(0)
    domain = world.examples.domain
    assert set(domain[torch.cat([*world.train, *world.val, *world.test])].tolist()) == {0, 2}
    assert set(domain[world.held].tolist()) == {1}
    for c in range(2):
        assert len(domain[world.train[c]].unique()) == 1
    whole = UnseenDomain().build(world, KEY).shards
    assert all(sorted(whole.own(c).tolist()) == sorted(world.held.tolist()) for c in range(2))
    parts = UnseenDomain(shared=False).build(world, KEY).shards
    assert sorted(torch.cat([parts.own(0), parts.own(1)]).tolist()) == sorted(world.held.tolist())
    with pytest.raises(ValueError, match="no domain is held out; the data has one alone$"):
        UnseenDomain().build(WORLD, KEY)
    with pytest.raises(ValueError, match="no domain is held out; set data.held_out, for example data.held_out=faded$"):
        UnseenDomain().build(replace(data, held_out=(), clients=3).world(0), KEY)


def test_newcomers_are_apart_from_everybody():
    data = Digits(clients=6, new_clients=4, partition=Pathological(2))
    world = data.world(0)
    assert len(world.new) == 4
    assert world.card()["new_clients"] == 4
    stream = NewClients(share=0.5).build(world, KEY)
    assert stream.new
    assert stream.shards.clients == 4
    trained = set(torch.cat([*world.train, *world.val, *world.test]).tolist())
    for c in range(4):
        rows = set(stream.shards.own(c).tolist())
        assert rows <= set(world.new[c].tolist())
        assert len(rows) == round(len(world.new[c]) * 0.5)
        assert not rows & trained
    with pytest.raises(ValueError, match="nobody joins; set data.new_clients"):
        NewClients().build(WORLD, KEY)


def test_newcomers_with_their_own_alpha():
    world = Digits(clients=5, new_clients=20, partition=Dirichlet(100.0), new_partition=Dirichlet(0.01)).world(0)

    def top(rows):
        shares = [torch.bincount(world.examples.y[r], minlength=10) / len(r) for r in rows]
        return float(torch.stack(shares).amax(1).mean())

    assert top(world.train) < 0.25
    assert top(world.new) > 0.5


def test_newcomers_are_tested_with_the_deployed_model():
    e = ac.Experiment(
        data=Digits(clients=4, new_clients=3, partition=ac.data.IID()),  # newcomers have classes that were trained on
        model=ac.models.MLP(hidden=(16,)),
        rounds=1,
        adapters=(ac.adapters.NoAdapt(), ac.adapters.T3A()),
        streams=(Original(), NewClients()),
    )
    for backend in (ac.backends.Serial(), ac.backends.Vmap()):
        table = ac.evaluate(ac.train(replace(e, backend=backend)))
        assert {(r["stream"], r["clients"]) for r in table.rows} == {("original", 4), ("new-clients", 3)}
        assert all(r["accuracy"] > 0.1 for r in table.rows)


def test_drifting_streams_follow_their_plan():
    stream = Recurring(segment=8, cycles=2, kinds=("contrast", "brightness")).build(WORLD, KEY)
    assert stream.card["plan"] == [["contrast", 0], ["contrast", 5], ["brightness", 0], ["brightness", 5]] * 2
    s = stream.shards
    rows = Original().build(WORLD, KEY).shards.own(2)
    shown = s.x[s.own(2)]
    clean = WORLD.examples.x[rows[torch.arange(64) % len(rows)]]
    same = (shown == clean).flatten(1).all(1).view(8, 8)
    assert same[0::2].all()
    assert not same[1::2].any()
    levels = [s for _, s in Gradual().plan()]
    assert levels == [0, 1, 2, 3, 4, 5, 4, 3, 2, 1, 0]
    assert [p[0] for p in Continual().plan()] == list(COMMON)


def saved_frost(root, level):
    """A data root with one frost picture, of one grey."""
    image = pytest.importorskip("PIL.Image", reason="writes pictures with Pillow")
    (root / "frost").mkdir(exist_ok=True)
    image.new("RGB", (120, 120), (level,) * 3).save(root / "frost" / "frost1.png")


@pytest.mark.parametrize("shift", [Corrupted(kinds=("frost",)), Continual(kinds=("frost",), segment=8)])
def test_a_changed_frost_picture_is_seen_although_streams_are_kept(shift, tmp_path, monkeypatch):
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    monkeypatch.setenv("ACCLIMATE_CACHE", str(tmp_path / "cache"))
    monkeypatch.setattr(disk_cache, "remembered", functools.partial(disk_cache.remembered, least=1))
    shown = []
    for at, level in enumerate((40, 240, 40)):
        saved_frost(tmp_path, level)
        os.utime(tmp_path / "frost" / "frost1.png", (at, at))  # a fast machine may write all within one tick
        stream = shift.build(WORLD, KEY)
        assert stream.card["frost"] == "files"
        shown.append(stream.shards.x.clone())
    assert float(shown[1].float().mean()) > float(shown[0].float().mean()) + 50
    assert torch.equal(shown[0], shown[2])
    assert len(list((tmp_path / "cache" / "streams").iterdir())) == 2


def test_cache_entries_are_named_by_frost_pictures_only_where_these_matter(tmp_path, monkeypatch):
    monkeypatch.delenv("ACCLIMATE_DATA", raising=False)
    assert frost().mark(COMMON) == "synthesised"  # the word alone, as in the caches of earlier versions
    monkeypatch.setenv("ACCLIMATE_DATA", str(tmp_path))
    assert frost().mark(COMMON) == "synthesised"
    saved_frost(tmp_path, 100)
    assert frost().mark(("fog", "snow")) == "files"
    assert frost().mark(COMMON) == f"files {content_hash(*frost().textures)}"


def test_drifting_streams_say_where_their_frost_comes_from():
    assert Continual(kinds=("frost", "fog"), segment=8).build(WORLD, KEY).card["frost"] == frost().source
    for without in (Continual(kinds=("fog",), segment=8), Continual(kinds=("frost",), severity=0, segment=8)):
        assert "frost" not in without.build(WORLD, KEY).card


def test_label_drift_orders_without_losing_anything():
    plain, waves = Original().build(WORLD, KEY).shards, LabelDrift(alpha=0.01).build(WORLD, KEY).shards

    def changes(shards):
        y = shards.y[shards.own(0)]
        return int((y[1:] != y[:-1]).sum())

    assert sorted(plain.own(0).tolist()) == sorted(waves.own(0).tolist())
    assert changes(waves) < changes(plain)


def test_rotation_is_exact_for_a_quarter_turn_and_keeps_labels():
    world = Digits(clients=3).world(0)
    stream = Rotated(angles=(90.0,)).build(world, KEY).shards
    own = Original().build(world, KEY).shards
    turned = torch.rot90(world.examples.x[own.own(1)], 1, (2, 3)).int()
    assert int((stream.x[stream.own(1)].int() - turned).abs().max()) <= 1
    assert torch.equal(stream.y[stream.own(1)], world.examples.y[own.own(1)])


def test_clients_can_be_rotated_in_training_and_newcomers_otherwise():
    data = Digits(clients=3, new_clients=3, angles=(90.0,), new_angles=(180.0,))
    world, plain = data.world(0), replace(data, angles=(), new_angles=()).world(0)
    r, n = world.train[0][0], world.new[0][0]
    assert int((world.examples.x[r].int() - torch.rot90(plain.examples.x[r], 1, (1, 2)).int()).abs().max()) <= 1
    assert int((world.examples.x[n].int() - torch.rot90(plain.examples.x[n], 2, (1, 2)).int()).abs().max()) <= 1


@dataclass(frozen=True)
class Counting(ac.Adapter):
    """Counts the batches since it started afresh, and predicts class 0 with certainty from the third on."""

    def init(self, task, model):
        return {"count": torch.zeros(())}

    def step(self, task, predict, model, state, x, key):
        count = state["count"] + 1
        spread = torch.eye(task.num_classes)[torch.arange(len(x)) % task.num_classes] * 20
        stuck = torch.eye(task.num_classes)[torch.zeros(len(x), dtype=torch.int64)] * 20
        logits = torch.where(count >= 3, stuck, spread)
        return logits + count * 1e-3, {"count": count}


@pytest.mark.parametrize(
    ("protocol", "counts"),
    [
        (Protocol(4, "stream"), [1, 2, 3, 4, 5, 6]),
        (Protocol(4, "batch"), [1, 1, 1, 1, 1, 1]),
        (Protocol(4, "shift", segment=8), [1, 2, 1, 2, 1, 2]),
        (Protocol(4, "collapse"), [1, 2, 3, 1, 2, 3]),
    ],
)
def test_reset_policies(protocol, counts):
    own = {k: v for k, v in client_data(shards((24,)), 0).items() if k != "y"}
    logits = serve(task(), lambda *a: None, Counting(), {}, own, protocol, rng.key(0)).logits
    seen = ((logits.min(-1).values * 1000).round().int()[::4]).tolist()
    assert seen == counts


@dataclass(frozen=True)
class Stepwise(Segments):
    """A plan of one's own, with a severity that there is not."""

    def plan(self):
        return [("fog", 2), ("fog", 2.5)]


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: Gradual(kind="rain"), "kind 'rain' must be one of"),
        (lambda: Continual(severity=6), "Continual: severity=6 must be a whole number between 0 and 5"),
        (lambda: Continual(severity=2.5), "Continual: severity=2.5 must be a whole number"),
        (lambda: Recurring(severity=2.5), "Recurring: severity=2.5 must be a whole number"),
        (lambda: Stepwise(), "Stepwise: severity 2.5 must be one of 0"),
        (lambda: Gradual(segment=8.5), "Gradual: segment=8.5 must be a whole number of at least 1"),
        (lambda: Recurring(cycles=1.5), "Recurring: cycles=1.5 must be a whole number"),
        (lambda: LabelDrift(slots=2.5), "LabelDrift: slots=2.5 must be a whole number"),
        (lambda: Continual(batch=5, segment=32, reset="shift"), "segment=32 to be a multiple of batch=5"),
        (lambda: Original(reset="shift"), "needs a stream of segments"),
        (lambda: Recurring(cycles=0), "cycles=0"),
        (lambda: LabelDrift(alpha=0.0), "alpha=0.0"),
        (lambda: Reduced(share=0.0), "share=0.0"),
        (lambda: NewClients(share=1.5), "share=1.5"),
        (lambda: Rotated(angles=()), "must name at least one"),
        (
            lambda: Digits(domains=("plain", "font"), held_out=("pencil",)).world(0),
            "has 'pencil'; its domains are plain, font",
        ),
        (lambda: Digits(held_out=("plain",)).world(0), "leaves no domain to train on"),
        (lambda: Digits(fraction=0.0), "fraction=0.0"),
        (lambda: Digits(new_clients=-1), "new_clients=-1"),
    ],
)
def test_bad_streams_and_worlds_are_named(make, says):
    with pytest.raises(ValueError, match=says):
        make()


def test_severity_sweep_is_five_streams():
    assert [s.severity for s in severity_sweep()] == [1, 2, 3, 4, 5]
    assert len(set(labels.distinct(severity_sweep()))) == 5


def test_other_clients_examples_are_the_same_size_as_ones_own():
    stream = OutOfClient().build(WORLD, KEY).shards
    assert stream.n.tolist() == [len(r) for r in WORLD.test]


@pytest.mark.parametrize("shift", [Corrupted, Interleaved, Gradual, Continual, Recurring])
def test_a_stream_that_corrupts_names_the_version_of_its_corruptions(shift):
    (revision,) = (f for f in fields(shift) if f.name == "revision")
    assert revision.kw_only and revision.default == 2 and shift(revision=2) == shift()
    assert get_args(get_type_hints(shift)["revision"]) == tuple(REVISIONS)
    with pytest.raises(ValueError, match=rf"^{shift.__name__}: revision=7 must be one of 1, 2$"):
        shift(revision=7)


@pytest.mark.parametrize("shift", [Corrupted(kinds=("fog",)), Gradual(kind="fog")])
def test_images_are_corrupted_by_the_version_that_the_stream_names(shift, monkeypatch):
    monkeypatch.setitem(REVISIONS, 2, {**CORRUPTIONS, "fog": lambda x, keys, constants: torch.zeros_like(x)})
    shards = shift.build(WORLD, KEY).shards
    assert any(not bool(image.any()) for image in shards.x)
    assert all(bool(image.any()) for image in WORLD.examples.x)
