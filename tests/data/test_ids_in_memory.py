"""Token ids in memory: as they are, with a model of their size, and a sentence where they are meant but not given."""

import numpy as np
import pytest
import torch

import acclimate as ac
from elsewhere import CLASSES, Encoder, sequences

IDS, LABELS = sequences(60)


@pytest.mark.parametrize("given", [IDS, IDS.int(), IDS.numpy().astype(np.uint16), IDS.tolist()])
def test_ids_stay_as_they_are_and_the_default_model_knows_them_all(given):
    data = ac.data.of(given, LABELS, client=torch.arange(60) % 3, tokens=True)
    world = data.world()
    assert torch.equal(world.examples.x, IDS) and world.examples.x.dtype == torch.int64
    assert (world.mean, data.inputs(), data.clients) == ((), "texts", 3)
    streams = (ac.shifts.Original(),)
    assert ac.Experiment(data=data, streams=streams).model == ac.models.TextNet(tokens=int(IDS.max()) + 1)


def test_whole_numbers_are_features_unless_they_are_said_to_be_ids():
    data = ac.data.of(IDS, LABELS, clients=2)
    assert data.inputs() == "vectors" and data.tokens() is None
    assert ac.Experiment(data=data).model == ac.models.MLP(norm="batch")
    shape = data.world().shape
    with pytest.raises(ValueError, match="if x holds token ids, give whole numbers, as ac.data.of.*tokens=True"):
        ac.Task(Encoder(), shape, CLASSES)


@pytest.mark.parametrize(
    ("x", "says"),
    [
        (IDS.float(), r"x is of type float32 and shape \(60, 8\); with tokens=True it must be whole numbers"),
        (IDS[:, 0], r"shape \(60,\); with tokens=True"),
        (IDS - 3, "x has -3, but token ids are numbered from 0"),
    ],
)
def test_what_is_no_ids_is_refused(x, says):
    with pytest.raises(ValueError, match=says):
        ac.data.of(x, LABELS, clients=2, tokens=True)
