"""Splits that are records: by number of examples per class, and a share for testing that is rounded up."""

from dataclasses import replace

import pytest
import torch

from acclimate.core import rng
from acclimate.data import ByDomain, Digits, PerClass, TrainTest
from acclimate.experiment import ConfigError, Experiment, decode, encode
from acclimate.experiment.settings import expand

TWO = Digits(ByDomain(), 2, PerClass(train=10, val=20, test=30), domains=("plain", "inverted"))


def counts(world, rows):
    return world.histogram(rows).tolist()


def test_every_client_has_so_many_examples_of_a_class():
    world = TWO.world(3)
    assert counts(world, world.train) == [[10] * 10] * 2
    assert counts(world, world.val) == [[20] * 10] * 2
    assert counts(world, world.test) == [[30] * 10] * 2
    assert [world.examples.domain[r].unique().tolist() for r in world.train] == [[0], [1]]
    used = torch.cat([*world.train, *world.val, *world.test])
    assert len(used.unique()) == len(used) == 2 * 600
    other = TWO.world(4)
    assert not torch.equal(world.train[0].sort().values, other.train[0].sort().values)
    assert TWO.world(3).content == world.content != other.content


def test_clients_meet_the_test_part_of_a_held_out_domain():
    world = replace(TWO, clients=1, held_out=("inverted",)).world(0)
    assert counts(world, [world.held]) == [[30] * 10]
    assert world.examples.domain[world.held].unique().tolist() == [1]
    shares = replace(TWO, clients=1, held_out=("inverted",), split=(0.6, 0.2, 0.2)).world(0)
    assert len(shares.held) == 898  # shares leave it whole, as they always did


def test_a_class_that_a_client_lacks_is_left_out_and_one_with_too_few_is_named():
    y = torch.tensor([0] * 5 + [2] * 4)
    train, val, test = PerClass(2, 1, 1).cut(y, rng.key(0))
    assert y[train].tolist() == [0, 0, 2, 2] and y[val].tolist() == y[test].tolist() == [0, 2]
    with pytest.raises(ValueError, match="train=2, val=1 and test=2 need 5 examples .* one has 4 of class 2"):
        PerClass(2, 1, 2).cut(y, rng.key(0))


@pytest.mark.parametrize(("rows", "test"), [(958, 192), (1123, 225), (157, 32), (295, 59)])
def test_a_fifth_of_office_10_is_what_the_published_cells_fit(rows, test):
    parts = TrainTest().cut(torch.zeros(rows), rng.key(1))
    assert [len(p) for p in parts] == [rows - test, 0, test]
    assert torch.cat(parts).sort().values.tolist() == list(range(rows))
    held_back = TrainTest(val=0.1).cut(torch.zeros(rows), rng.key(1))
    assert len(held_back[1]) == rows // 10 and torch.equal(held_back[2], parts[2])


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: PerClass(train=0), "PerClass: train=0"),
        (lambda: PerClass(val=-1), "PerClass: val=-1"),
        (lambda: TrainTest(test=1.5), "TrainTest: test=1.5"),
        (lambda: TrainTest(test=0.5, val=0.5), "test=0.5 and val=0.5 must leave a share for training"),
    ],
)
def test_sizes_that_cannot_be_are_refused(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_a_split_is_named_on_the_command_line_and_in_files():
    (found,) = expand(["data.split=per-class", "data.split.train=5"])
    assert found.data.split == PerClass(train=5) and decode(encode(found)) == found
    (found,) = expand(["data.split=0.5,0.25,0.25"])
    assert found.data.split == (0.5, 0.25, 0.25) and encode(found)["data"]["split"] == [0.5, 0.25, 0.25]
    assert expand(["data.split=train-test"])[0].data.split == TrainTest()
    with pytest.raises(ConfigError, match="per-clas"):
        expand(["data.split=per-clas"])
    assert encode(Experiment())["data"]["split"] == [0.6, 0.2, 0.2]
