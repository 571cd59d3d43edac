"""Streams by name: another machine's rounding is the same stream; another severity, seed, order or client is not."""

import hashlib
import math
from dataclasses import replace

import pytest
import torch

import acclimate as ac
from acclimate.core import Shards, rng
from acclimate.eval.same_stream import TOLERANCE, WIDTH, apart, first_alike, names, sketch
from acclimate.leaderboard import frozen, track
from acclimate.running.build import build
from acclimate.running.evaluate import streams_of
from acclimate.shifts import Stream, benchmark_streams
from acclimate.shifts.corruptions import COMMON


@pytest.fixture(scope="module")
def world():
    made, _, engine = build(track("small").experiment())
    engine.close()
    return made


@pytest.fixture(scope="module")
def built(world):
    return {name: stream for name, (_, stream) in streams_of(world, track("small").experiment().streams).items()}


def known(name):
    return frozen("small")["seeds"]["0"]["streams"][name]


def key(world):
    return rng.fold(rng.key(world.seed), "streams")


def far(stream, name="corrupted"):
    return math.dist(sketch(stream), known(name)["sketch"])


def rounded(stream, share, up):
    """The stream on a machine where this share of the pixels came out one higher, or one higher or lower."""
    s, g = stream.shards, torch.Generator().manual_seed(5)
    hit = torch.rand(s.x.shape, generator=g) < share
    step = torch.ones(s.x.shape) if up else torch.randint(0, 2, s.x.shape, generator=g) * 2 - 1
    return replace(stream, shards=replace(s, x=(s.x + hit * step).clamp(0, 255).to(torch.uint8)))


@pytest.mark.parametrize("name", ["original", "corrupted", "out-of-client", "mixture"])
@pytest.mark.parametrize("up", [False, True])
def test_another_machines_bytes_are_the_same_stream(built, name, up):
    other = rounded(built[name], 0.05, up)
    assert names(other)["hash"] != known(name)["hash"]
    assert apart(names(other), known(name)) is None
    assert 0.1 < far(other, name) < 0.4  # the root of 0.05 is 0.22
    assert far(rounded(built[name], 1.0, up), name) < TOLERANCE


def test_a_sketch_is_sums_with_signs_of_a_standard_hash():
    x, rows = torch.arange(3 * 70, dtype=torch.uint8).view(3, 70), [torch.tensor([2, 0]), torch.tensor([1])]
    sums = [0.0] * WIDTH
    for client, own in enumerate([[*range(140, 210), *range(70)], [*range(70, 140)]]):
        bits = hashlib.shake_256(f"acclimate sketch {client} 0".encode()).digest(18)
        for i, value in enumerate(own):
            sums[i % 64] += -value if bits[i // 8] >> (7 - i % 8) & 1 else value
    assert sketch(Stream(Shards.of(x, torch.zeros(3), rows))) == pytest.approx([v / 210**0.5 for v in sums], abs=6e-5)


def test_another_severity_or_kind_is_refused(world):
    for severity in (1, 4):
        other = ac.shifts.Corrupted(severity=severity).build(world, key(world))
        assert far(other) > 15
        assert "levels of 255 off, and rounding explains at most 2.0" in apart(names(other), known("corrupted"))
    nearest = ["gaussian_noise" if k == "jpeg_compression" else k for k in COMMON]
    assert far(ac.shifts.Corrupted(kinds=tuple(nearest)).build(world, key(world))) > 5
    parts = (ac.shifts.Original(), ac.shifts.Corrupted(severity=4), ac.shifts.OutOfClient())
    assert far(ac.shifts.Mixture(parts=parts).build(world, key(world)), "mixture") > 8


def test_another_seed_of_the_noise_is_refused(world, monkeypatch):
    plain = rng.fold
    monkeypatch.setattr(
        benchmark_streams.rng, "fold", lambda k, *at: plain(k, *at, "other") if at == ("image",) else plain(k, *at)
    )
    other = names(ac.shifts.Corrupted().build(world, key(world)))
    assert other["examples"] == known("corrupted")["examples"]  # the same examples, in the same order
    assert math.dist(other["sketch"], known("corrupted")["sketch"]) > 20
    assert "levels of 255 off" in apart(other, known("corrupted"))


def swapped(s):
    rows = s.rows.clone()
    rows[3, [0, 1]] = rows[3, [1, 0]]
    return replace(s, rows=rows)


def relabelled(s):
    y = s.y.clone()
    y[s.rows[0, 0]] = (y[s.rows[0, 0]] + 1) % 10
    return replace(s, y=y)


def short(s):
    return replace(s, rows=s.rows[:-1], n=s.n[:-1])


@pytest.mark.parametrize("change", [swapped, relabelled, short], ids=lambda c: c.__name__)
@pytest.mark.parametrize("name", ["original", "corrupted"])
def test_another_order_label_or_number_of_clients_is_refused(built, name, change):
    other = names(replace(built[name], shards=change(built[name].shards)))
    assert "its examples, their order or labels are others" in apart(other, known(name))


def test_what_a_sketch_cannot_say_is_refused_and_without_one_bytes_decide(built):
    good, wanted = names(built["original"]), known("original")
    assert apart(good, wanted) is None
    for bad in ([math.nan] * WIDTH, good["sketch"][:-1], "long", [None] * WIDTH):
        assert apart(good | {"sketch": bad}, wanted) is not None
    assert apart({"examples": None, **{k: v for k, v in good.items() if k == "sketch"}}, wanted) is not None
    assert apart({"hash": wanted["hash"]}, wanted) is None
    assert apart({"hash": "0" * 16}, wanted) == f"its hash is {'0' * 16}, and must be {wanted['hash']}"
    assert apart(good | {"hash": "0" * 16}, {"hash": wanted["hash"]}) is not None
    assert apart(good, wanted | {"sketch": [1.0]}) is not None


def test_only_bytes_have_a_sketch(built):
    """Features of deviation 1 under another shift are nearer to each other than pixels that were rounded otherwise."""
    s = built["original"].shards
    as_floats = replace(built["original"], shards=replace(s, x=s.x / 255))
    assert names(as_floats).keys() == {"hash", "examples"} and "sketch" in names(built["original"])
    moved = replace(as_floats, shards=replace(s, x=s.x / 255 + 0.5))
    assert apart(names(moved), names(as_floats)) is not None


def test_a_card_is_numbered_by_the_first_that_it_is_like():
    known: list = []
    sketches = [[v] * WIDTH for v in (0.0, 5.0, 0.1)]
    cards = [{"hash": str(v[0]), "examples": "e", "sketch": v} for v in sketches]
    assert [first_alike(known, card) for card in (*cards, {}, {}, {"hash": "x"})] == [0, 1, 0, 2, 2, 3]
    assert len(known) == 4
