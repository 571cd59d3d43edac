"""kNN-Per by value: the vote and the tuned weight against loops in numpy, on stores that are written by hand."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acclimate.adapters.knn import KNNPer
from acclimate.core import Out, rng
from by_hand import softmax

TASK = SimpleNamespace(num_classes=3)


def predict(model, x, mode="eval", key=None):
    """Inputs are features, and their first three numbers logits."""
    return Out(x[:, :3], x, {})


def vote(away, labels, adapter, dim):
    """Class probabilities by neighbours of these distances and labels (Eq. 7)."""
    out = np.zeros(3)
    for d, y in zip(away, labels, strict=True):
        out[y] += np.exp(-d / adapter.sigma if adapter.variant == "paper" else -(d**2) / (dim * adapter.sigma))
    return out / out.sum()


def store(draw, capacity, dim, n, asked, noted):
    """A memory of n real examples in `capacity` places, of which `asked` know `noted` neighbours."""
    away = np.sort(draw.uniform(0.1, 2.0, size=(asked, noted)), -1)
    parts = {"away": away, "votes": draw.integers(0, 3, (asked, noted)), "logits": draw.normal(size=(asked, 3))}
    parts["y"] = draw.integers(0, 3, asked)
    memory = {"z": draw.normal(size=(capacity, dim)), "y": draw.integers(0, 3, capacity), "n": np.array(n)}
    memory = {name: torch.from_numpy(value) for name, value in memory.items()}
    return {**memory, "asked": {name: torch.from_numpy(value) for name, value in parts.items()}}


def tuned(memory, adapter):
    """The first of the weights that answer most of the asked examples right; of a lone one nothing is learned."""
    n, asked = int(memory["n"]), {name: value.numpy() for name, value in memory["asked"].items()}
    right = np.zeros(adapter.grid)
    others = min(n - 1, adapter.k)
    for i in range(min(n, len(asked["y"])) if n > 1 else 0):
        said = vote(asked["away"][i, :others], asked["votes"][i, :others], adapter, memory["z"].shape[1])
        for g in range(adapter.grid):
            lam = g / (adapter.grid - 1)
            right[g] += (lam * said + (1 - lam) * softmax(asked["logits"][i])).argmax() == asked["y"][i]
    return right.argmax() / (adapter.grid - 1)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_tuned_weight_answers_most_stored_examples_right(variant):
    found = set()
    for seed in range(40):
        draw = np.random.default_rng(seed)
        n = 1 + seed % 9
        memory = store(draw, 9, 5, n, 6, 4)
        adapter = KNNPer(k=3, sigma=0.3, grid=6, variant=variant)
        lam = float(adapter.init(TASK, {"memory": memory})["lam"])
        assert lam == pytest.approx(tuned(memory, adapter)), seed
        found.add(lam)
    assert {0.0, 0.2, 0.4} < found


@pytest.mark.parametrize("variant", ["paper", "released"])
@pytest.mark.parametrize("n", [0, 1, 2, 6, 7])
def test_answers_mix_the_model_with_the_nearest_real_examples(n, variant):
    draw = np.random.default_rng(n)
    memory, x = store(draw, 7, 4, n, 2, 2), draw.normal(size=(5, 4))
    memory["z"][n:] = torch.from_numpy(x[:1])  # places that hold no example, and lie nearest
    adapter = KNNPer(k=3, sigma=0.8, lam=0.4, variant=variant)
    model = {"memory": memory}
    got, state = adapter.step(TASK, predict, model, adapter.init(TASK, model), torch.from_numpy(x), rng.key(0))
    z, y = memory["z"].numpy(), memory["y"].numpy()
    for i, own in enumerate(softmax(x[:, :3])):
        near = sorted((np.linalg.norm(x[i] - z[j]), y[j]) for j in range(n))[:3]
        expected = 0.4 * vote(*zip(*near, strict=True), adapter, 4) + 0.6 * own if n else own
        assert got[i].exp().numpy() == pytest.approx(expected, rel=1e-9)
    assert float(state["lam"]) == 0.4


def test_distances_are_exact_far_from_the_origin():
    """Thirty stored features a tenth apart, a thousand from the origin: differences of squares would lose the order."""
    z = 1000.0 + 0.1 * torch.arange(30.0)[:, None] * torch.tensor([1.0, 0.0, 0.0])
    memory = {"z": z, "y": torch.arange(30) % 3, "n": torch.tensor(30)}
    adapter = KNNPer(k=1, lam=1.0)
    got, _ = adapter.step(TASK, predict, {"memory": memory}, {"lam": torch.tensor(1.0)}, z + 0.01, rng.key(0))
    assert got.argmax(-1).tolist() == (torch.arange(30) % 3).tolist()


@pytest.mark.parametrize("far", [0.0, 300.0])
def test_the_candidates_hold_the_nearest_of_many(far):
    """A store of 400 rows, of which 320 are real: all distances by differences give the same neighbours."""
    g = torch.Generator().manual_seed(3)
    z, x = (far + torch.randn(n, 16, generator=g) for n in (400, 50))
    memory = {"z": z, "y": torch.randint(0, 3, (400,), generator=g), "n": torch.tensor(320)}
    adapter = KNNPer(k=10, sigma=0.5, lam=1.0)
    got, _ = adapter.step(TASK, predict, {"memory": memory}, {"lam": torch.tensor(1.0)}, x, rng.key(0))
    exact = np.linalg.norm(x.double().numpy()[:, None] - z[:320].double().numpy(), axis=-1)
    for i, near in enumerate(exact.argsort(-1)[:, :10]):
        expected = vote(exact[i, near], memory["y"].numpy()[near], adapter, 16)
        assert got[i].exp().numpy() == pytest.approx(expected, rel=1e-3 if far else 1e-5, abs=1e-7)


def test_a_store_of_one_number_serves():
    memory = {"z": torch.full((1, 1), 2.0), "y": torch.tensor([1]), "n": torch.tensor(1)}
    state = KNNPer(lam=0.25).init(TASK, {"memory": memory})
    assert state["lam"].shape == () and float(state["lam"]) == 0.25
