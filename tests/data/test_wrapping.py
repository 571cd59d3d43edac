"""Data sets made from others: what of the inner one is taken over, and what is refused because it would do nothing."""

from dataclasses import dataclass, replace

import numpy as np
import pytest
import torch

import acclimate as ac
from acclimate.data import IID, ByClient, Cells, Dataset, Digits, Dirichlet, Examples, Noisy, Public, Windows
from acclimate.ops.augment import FlipCrop


class Grey(Digits):
    """Grey pictures with the constants of coloured ones, as CIFAR10(channels=1) has them."""

    def load(self):
        return replace(super().load(), x=super().load().x[:, :1])


@pytest.mark.parametrize("wrapper", [Public, Noisy])
def test_mean_and_std_are_those_of_the_inner_set_for_the_channels_that_images_have(wrapper):
    assert wrapper().world().mean == (0.5, 0.5, 0.5)
    assert wrapper(data=Digits(mean=(0.25,), std=(0.75,))).world().std == (0.75, 0.75, 0.75)
    assert wrapper(data=Grey(mean=(0.1, 0.2, 0.3))).world().mean == (0.1815,)
    assert wrapper(mean=(0.1,), std=(0.2,)).world().mean == (0.1, 0.1, 0.1)


def test_mean_and_std_reach_through_several_wrappers():
    world = Public(data=Noisy(data=Grey())).world()
    assert (world.mean, world.std) == ((0.5,), (0.5,))


def test_grey_pictures_with_constants_of_coloured_ones_can_be_trained_on():
    data = Public(data=Grey(), clients=2, partition=IID(), fraction=0.2)
    experiment = ac.Experiment(data, ac.models.MLP(hidden=(8,)), rounds=1, streams=(ac.shifts.Original(),))
    assert ac.train(experiment).world.shape == (1, 16, 16)


IGNORED = {
    "partition": IID(),
    "clients": 5,
    "split": (0.5, 0.25, 0.25),
    "seed": 3,
    "new_clients": 2,
    "new_partition": Dirichlet(1.0),
    "held_out": ("plain",),
    "fraction": 0.1,
    "angles": (90.0,),
    "new_angles": (45.0,),
    "augment": FlipCrop(),
}


@pytest.mark.parametrize("wrapper", [Public, Noisy])
@pytest.mark.parametrize("field", IGNORED)
def test_settings_of_the_inner_set_that_would_do_nothing_are_refused(wrapper, field):
    inner = Digits(**{field: IGNORED[field]})
    said = rf"^{wrapper.__name__}: {field}=.* of its data Digits would do nothing; set {field} of {wrapper.__name__} "
    with pytest.raises(ValueError, match=said):
        wrapper(data=inner)
    assert getattr(wrapper(data=inner, **{field: IGNORED[field]}), field) == IGNORED[field]  # meant so, and done so


def test_settings_that_say_which_examples_there_are_stay_with_the_inner_set():
    assert Public(data=Digits(domains=("plain", "font"), side=20)).world().shape == (3, 20, 20)


def test_one_client_inside_stands_for_examples_that_are_not_dealt():
    assert Noisy(data=Digits(clients=1, partition=IID()), clients=4).world().clients == 4


@dataclass(frozen=True)
class Few(Dataset):
    """A user's set with a number of clients of its own."""

    clients: int = 3

    def load(self):
        y = torch.arange(90) % 3
        return Examples.of(torch.zeros(90, 4), y, "abc")


def test_the_inner_sets_own_defaults_are_not_settings():
    assert Public(data=Few(), partition=IID()).world().clients == 10


def readings(**settings):
    """Two series of 80 readings, in runs of ten of one class."""
    frame = {"who": np.arange(160) // 80, "kind": np.arange(160) // 10 % 2, "v": np.arange(160.0)}
    return Windows.of(frame, label="kind", client="who", window=4, **settings)


def test_windows_are_fitted_by_the_split_of_the_outer_record():
    world = Noisy(data=readings(), partition=ByClient(), clients=2, split=(0.6, 0.4, 0.0), s=0.0, p=0.0).world()
    assert not sum(map(len, world.test)) and sum(map(len, world.val))  # the inner split has a share for testing


def test_public_windows_are_not_said_to_overlap():
    world = Public(data=readings(stride=4), partition=ByClient(), clients=2).world()
    assert len(world.public) and [n for n in world.notes if "overlap" in n] == []
    assert "earlier windows of a class train, later ones test" in world.notes


def test_windows_that_overlap_are_no_public_ones_through_several_wrappers():
    with pytest.raises(ValueError, match="Public: share=0.1 is drawn at random, and examples of Noisy overlap"):
        Public(data=Noisy(data=readings(stride=2), partition=ByClient(), clients=2), partition=ByClient(), clients=2)


def test_clinics_are_as_many_as_the_outer_record_has_clients():
    world = Public(data=Cells(), partition=ByClient(), clients=6, new_clients=2).world()
    assert world.clients == 6 and len(world.new) == 2
    assert len(world.examples.users.unique()) == 8
