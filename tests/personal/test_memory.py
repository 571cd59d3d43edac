"""The datastore of kNN-Per, by value: what is stored, and what the model and the others say of stored examples."""

import numpy as np
import pytest
import torch

from acclimate.core import Out, rng, tree
from acclimate.personal import memory
from acclimate.personal.memory import Memory

X = torch.tensor([[0.0, 0.0], [3.0, 4.0], [6.0, 8.0], [0.0, 1.0], [9.0, 9.0], [5.0, 0.0], [1.0, 1.0], [2.0, 7.0]])
Y = torch.tensor([0, 1, 2, 3, 4, 5, 6, 7])


def predict(model, x, mode="eval", key=None):
    return Out(torch.cat([10 * x, x.sum(-1, keepdim=True)], -1), x, {})


def noted(rows, n, **fields):
    data = {"x": X, "y": Y, "rows": torch.tensor(rows), "n": torch.tensor(n)}
    return Memory(**fields).run(None, predict, {"vars": "kept"}, data, rng.key(1))


def by_hand(stored, count, tune, neighbours):
    """Distances and labels of the nearest others of the first examples, with numpy."""
    x = X.numpy()
    away, votes = np.zeros((tune, neighbours)), np.zeros((tune, neighbours))
    for i in range(min(tune, count)):
        others = sorted((float(np.linalg.norm(x[stored[i]] - x[s])), s) for s in stored[:count] if s != stored[i])
        for j, (distance, label) in enumerate(others[:neighbours]):
            away[i, j], votes[i, j] = distance, label
    return away, votes


@pytest.mark.parametrize("pad", [0, 3])
@pytest.mark.parametrize(("capacity", "tune", "neighbours"), [(8, 2, 3), (6, 6, 4), (9, 9, 6)])
def test_the_store_and_what_the_others_say(pad, capacity, tune, neighbours):
    rows = [6, 1, 4, 3, 0, 7]
    model = noted(rows + [0] * pad, 6, capacity=capacity, tune=tune, neighbours=neighbours)
    got, asked = model["memory"], model["memory"]["asked"]
    stored = got["y"][:6].tolist()  # labels are the places in X
    assert sorted(stored) == sorted(rows) and stored != rows and int(got["n"]) == 6 and model["vars"] == "kept"
    assert torch.equal(got["z"][:6], X[stored])
    assert got["z"].shape == (capacity, 2) and got["y"].shape == (capacity,)
    away, votes = by_hand(stored, 6, tune, neighbours)
    real = min(tune, 6)
    assert torch.equal(asked["logits"][:real], predict({}, X[stored[:real]]).logits)
    assert asked["y"][:real].tolist() == stored[:real] and len(asked["y"]) == len(asked["logits"]) == tune
    np.testing.assert_allclose(asked["away"][:real], away[:real], rtol=1e-6)
    there = min(neighbours, 5)  # of six examples each has five others
    assert asked["votes"][:real, :there].tolist() == votes[:real, :there].tolist()
    assert asked["away"].shape == asked["votes"].shape == (tune, neighbours)


def test_a_full_store_holds_a_random_part_and_asks_it_alone():
    got = noted([6, 1, 4, 3, 0, 7, 2, 5], 8, capacity=5, tune=3, neighbours=4)["memory"]
    stored = got["y"].tolist()
    assert int(got["n"]) == 5 and len(set(stored)) == 5
    away, votes = by_hand(stored, 5, 3, 4)
    np.testing.assert_allclose(got["asked"]["away"], away, rtol=1e-6)
    assert got["asked"]["votes"].tolist() == votes.tolist()


def test_distances_of_near_points_far_from_the_origin_are_exact():
    """Many points at once: |a|^2 + |b|^2 - 2ab would lose every digit here."""
    x = 4096.0 + torch.arange(40.0)[:, None] / 64
    data = {"x": x, "y": torch.arange(40), "rows": torch.arange(40), "n": torch.tensor(40)}
    got = Memory(capacity=40, tune=40, neighbours=1).run(None, predict, {}, data, rng.key(1))["memory"]["asked"]
    assert got["away"].unique().tolist() == [1 / 64]


def test_nothing_that_is_stored_carries_a_gradient():
    data = {"x": X.clone().requires_grad_(), "y": Y, "rows": torch.arange(8), "n": torch.tensor(8)}
    got = Memory(capacity=8, tune=2, neighbours=1).run(None, predict, {}, data, rng.key(1))["memory"]
    assert not any(t.requires_grad for t in tree.leaves(got))


def test_what_is_empty_is_zero():
    got = noted([6, 1], 2, capacity=4, tune=3, neighbours=5)["memory"]
    assert not got["z"][2:].any() and not got["y"][2:].any()
    assert not got["asked"]["away"][:, 1:].any() and not got["asked"]["logits"][2:].any()
    assert not got["asked"]["votes"][:, 2:].any()
    assert torch.equal(memory.padded(torch.ones(2, 2), 3), torch.tensor([[1.0, 1.0], [1.0, 1.0], [0.0, 0.0]]))
