"""FedICON's tables as released code makes them: the defect, by value, and what differs from the paper's recipes."""

from dataclasses import replace

import pytest
import torch

from acclimate.core import rng
from acclimate.data import Digits, PerClass
from acclimate.experiment import names
from acclimate.recipes import NotScaled, WrappedBytes, recipe
from acclimate.recipes.wrapped import unscaled, with_images, wrapped
from acclimate.shifts import Corrupted, UnseenDomain


def test_images_that_are_not_scaled_are_in_0_to_1_when_the_model_has_scaled_them():
    x = torch.tensor([0, 1, 100, 254, 255], dtype=torch.uint8)
    assert unscaled(x).tolist() == [128, 128, 178, 255, 255]
    seen = (unscaled(x).double() / 255 - 0.5) / 0.5
    assert (seen - x.double() / 255).abs().max() <= 1 / 255


def test_images_in_minus_1_to_1_are_read_as_bytes_that_wrap_around():
    x = torch.tensor([0, 10, 127, 128, 200, 255], dtype=torch.uint8)
    assert wrapped(x).tolist() == [1, 21, 255, 1, 145, 255]
    values = 255 * (x.double() / 255 - 0.5) / 0.5
    assert (values.round().long() % 256).tolist() == wrapped(x).tolist()


def test_a_stream_that_is_not_scaled_is_the_corrupted_one_in_other_values():
    world = Digits(clients=2, fraction=0.1, domains=("plain", "clutter")).world(0)
    key = rng.key(3)
    own, other, both = (s.build(world, key) for s in (Corrupted(), NotScaled(), WrappedBytes()))
    assert torch.equal(other.shards.x, unscaled(own.shards.x))
    before = with_images(world, wrapped(world.examples.x))
    assert torch.equal(both.shards.x, unscaled(Corrupted().build(before, key).shards.x))
    assert all(torch.equal(s.shards.y, own.shards.y) for s in (other, both))


def test_files_may_name_the_streams_that_wrap_and_do_not_scale():
    assert [names.class_of(f"recipes:{cls.__name__}") for cls in (NotScaled, WrappedBytes)] == [NotScaled, WrappedBytes]


@pytest.mark.parametrize("table", ["table1", "table7", "table8", "table9"])
def test_released_tables_differ_in_training_images_and_in_corrupted_tests(table):
    own, other = (list(recipe(f"fedicon/{name}{table}").make("paper")) for name in ("", "released-"))
    for before, after in zip(own, other, strict=True):
        if before.column == "Office-10":
            assert after == before
            continue
        data = replace(before.training.data, split=PerClass(train=74, val=200, test=200))
        tested = {Corrupted: WrappedBytes(), UnseenDomain: UnseenDomain()}[type(before.stream)]
        assert after == replace(before, training=replace(before.training, data=data), stream=tested)


@pytest.mark.parametrize("table", ["table2", "table5"])
def test_clients_of_released_office_tables_count_one_and_all_else_is_alike(table):
    own, other = (list(recipe(f"fedicon/{name}{table}").make("paper")) for name in ("", "released-"))
    assert len(own) == len(other)
    for before, after in zip(own, other, strict=True):
        made, equal = before.training.method, after.training.method
        assert equal == (made if before.row == "Local" else made.but(weights="uniform"))
        assert after == replace(before, training=replace(before.training, method=equal))


def test_released_tables_share_their_trainings():
    first, seventh, eighth, ninth = (
        {c.training for c in recipe(f"fedicon/released-table{n}").make("paper") if c.column != "Office-10"}
        for n in (1, 7, 8, 9)
    )
    assert (len(first), len(eighth - first), len(ninth - first)) == (9, 1, 0)
    assert len(seventh) == 8 * 5 and not seventh & first


def test_tiny_digits_are_tested_so_too():
    cells = list(recipe("fedicon/released-table1").make("smoke"))
    assert {type(c.stream) for c in cells} == {WrappedBytes} and isinstance(cells[0].training.data, Digits)
