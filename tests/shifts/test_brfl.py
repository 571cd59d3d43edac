"""BRFL's streams: what each client meets, and that nobody meets what anybody trained on."""

import pytest
import torch

from acclimate.core import rng
from acclimate.data import Digits
from acclimate.reporting.preview import contact_sheet
from acclimate.shifts import Corrupted, Gradual, Mixture, NewClients, Original, OutOfClient, brfl

WORLD = Digits(clients=6).world(0)
KEY = rng.key(11)


def rows_of(stream, c):
    return stream.shards.own(c)


def test_original_is_the_clients_own_test_set_in_another_order():
    stream = Original().build(WORLD, KEY)
    for c in range(6):
        assert sorted(rows_of(stream, c).tolist()) == sorted(WORLD.test[c].tolist())
    assert rows_of(stream, 0).tolist() != WORLD.test[0].tolist()


def test_out_of_client_holds_only_test_examples_of_others():
    stream = OutOfClient().build(WORLD, KEY)
    trained = set(torch.cat([*WORLD.train, *WORLD.val]).tolist())
    for c in range(6):
        rows = set(rows_of(stream, c).tolist())
        assert len(rows) == len(WORLD.test[c])
        assert not rows & set(WORLD.test[c].tolist())
        assert not rows & trained


def test_corrupted_changes_pixels_but_not_labels_and_is_fixed_per_example():
    stream = Corrupted().build(WORLD, KEY)
    again = Corrupted().build(WORLD, KEY)
    assert torch.equal(stream.shards.x, again.shards.x)
    test = torch.cat(WORLD.test).sort().values
    assert torch.equal(stream.shards.y, WORLD.examples.y[test])
    changed = (stream.shards.x != WORLD.examples.x[test]).flatten(1).any(1).float().mean()
    assert float(changed) > 0.98
    assert sum(stream.card["kinds"].values()) == len(test)
    assert len([k for k in stream.card["kinds"].values() if k]) == 15
    fewer = Digits(clients=3).world(0)  # other clients hold the same examples: they look the same
    other = Corrupted().build(fewer, KEY).shards
    place = {int(r): i for i, r in enumerate(torch.cat(fewer.test).sort().values.tolist())}
    shared = [(i, place[int(r)]) for i, r in enumerate(test.tolist()) if int(r) in place]
    assert len(shared) > 20
    assert all(torch.equal(stream.shards.x[i], other.x[j]) for i, j in shared)


def test_mixture_is_equal_parts_of_the_very_same_streams():
    parts = [s.build(WORLD, KEY) for s in (Original(), Corrupted(), OutOfClient())]
    mix = Mixture().build(WORLD, KEY).shards
    for c in range(6):
        mine = [tuple(mix.x[r].flatten().tolist()) for r in mix.own(c)]
        each = len(WORLD.test[c])
        assert len(mine) == 3 * each
        expected = [tuple(p.shards.x[r].flatten().tolist()) for p in parts for r in p.shards.own(c)]
        assert sorted(mine) == sorted(expected)
        assert mine != expected


@pytest.mark.parametrize("newcomers", [2, 6, 9])
def test_a_mixture_refuses_newcomers_who_have_other_models(newcomers):
    world = Digits(clients=6, new_clients=newcomers).world(0)
    for parts in ((Original(), NewClients()), (Original(), Mixture(parts=(NewClients(),)))):
        with pytest.raises(ValueError, match="Mixture: part NewClients is of clients that join after training"):
            Mixture(parts=parts).build(world, KEY)


def test_a_mixture_refuses_a_part_that_would_be_served_otherwise():
    says = "Mixture: part Corrupted has batch=1, but the mixture is served with batch=32; set batch for the mixture"
    with pytest.raises(ValueError, match=says):
        Mixture(parts=(Original(), Corrupted(batch=1)))
    with pytest.raises(ValueError, match="Mixture: part Gradual has reset='shift', but the mixture is served with"):
        Mixture(parts=(Gradual(reset="shift"),))
    assert Mixture(batch=1).protocol.batch == 1
    assert Mixture(batch=1, reset="batch", parts=(Original(batch=1), OutOfClient(reset="batch"))).protocol.batch == 1


def test_a_mixture_says_what_its_parts_say():
    parts = (Original(), Corrupted(severity=2), Corrupted(kinds=("fog",)))
    stream = Mixture(parts=parts).build(WORLD, KEY)
    said = [p.build(WORLD, KEY).card for p in parts]
    assert stream.card == {"parts": dict(zip(("Original", "Corrupted", "Corrupted 2"), said, strict=True))}
    assert stream.card["parts"]["Corrupted"]["severity"] == 2
    quoted = contact_sheet(WORLD, {"mixture": stream})["Stream mixture"]
    assert "parts Original, Corrupted, Corrupted 2." in quoted  # previews quote the card


def test_bad_streams_are_named():
    for severity in (0, 6, 2.5, True):
        with pytest.raises(ValueError, match=f"Corrupted: severity={severity} must be a whole number between 1 and 5"):
            Corrupted(severity=severity)
    with pytest.raises(ValueError, match=r"kinds=\['rain'\] must name some of gaussian_noise"):
        Corrupted(kinds=("rain",))
    for batch in (0, 2.5):
        with pytest.raises(ValueError, match=f"Original: batch={batch} must be a whole number of at least 1"):
            Original(batch=batch)
    with pytest.raises(ValueError, match="at least one stream"):
        Mixture(parts=())
    assert [type(s).__name__ for s in brfl()] == ["Original", "Corrupted", "OutOfClient", "Mixture"]
