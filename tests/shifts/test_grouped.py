"""The stream in which clients meet the same corruption in groups."""

import pytest
import torch

from acclimate.core import rng
from acclimate.data import Digits
from acclimate.shifts import Grouped
from acclimate.shifts.base import ordered
from acclimate.shifts.corruptions import corrupt

KINDS = ("gaussian_noise", "contrast")


def test_a_client_meets_the_corruption_of_its_group_alone():
    world, key = Digits(clients=5, fraction=0.3).world(0), rng.key(3)
    built = Grouped(kinds=KINDS, length=30).build(world, key)
    assert built.shards.n.tolist() == [30] * 5
    assert built.card["groups"] == {"gaussian_noise": [0, 2, 4], "contrast": [1, 3]}
    own = ordered(world, key)
    for c in range(5):
        rows = own[c][torch.arange(30) % len(own[c])]
        keys = rng.fold(rng.fold(rng.fold(key, "grouped"), rows), torch.arange(30) // len(own[c]))
        want = corrupt(world.examples.x[rows], KINDS[c % 2], 5, keys)
        assert torch.equal(built.shards.x[built.shards.own(c)], want)
        assert torch.equal(built.shards.y[built.shards.own(c)], world.examples.y[rows])
    once = Grouped(kinds=KINDS, severity=1).build(world, key).shards
    assert once.n.tolist() == [len(r) for r in own]


BAD = [({"kinds": ("rain",)}, "kinds"), ({"severity": 6}, "severity"), ({"length": 0}, "length")]


@pytest.mark.parametrize(("change", "field"), BAD)
def test_bad_settings_name_the_field(change, field):
    with pytest.raises(ValueError, match=field):
        Grouped(**change)
