"""LAME's answers against a plain numpy loop."""

import numpy as np
import pytest
import torch

from acclimate.adapters import LAME
from acclimate.adapters.lame import agreed
from acclimate.core import Out, rng
from support import images, task

KEY = rng.key(1)
G = torch.Generator().manual_seed(5)
FEATURES, LOGITS = torch.randn(9, 4, generator=G), 2 * torch.randn(9, 3, generator=G)


def predict(model, x, mode="eval", key=None):
    assert mode == "eval"
    return Out(LOGITS[x], FEATURES[x], {})


class Small:
    dim, num_classes, head_weight = 4, 3, "head.weight"


MODEL = {"vars": {"params": {"head.weight": torch.zeros(3, 4)}}}


def answers(adapter, *batches):
    state, out = adapter.init(Small, MODEL), []
    for rows in batches:
        logits, state = adapter.step(Small, predict, MODEL, state, torch.tensor(rows), KEY)
        out.append(logits.softmax(-1).numpy())
    return out


def affinity(kind, k, rows, others):
    """w of every row to every other node, one pair after the other."""
    unit = FEATURES.double().numpy()
    unit = unit / np.linalg.norm(unit, axis=1, keepdims=True)
    away = np.array([[np.linalg.norm(unit[i] - unit[j]) for j in others] for i in rows])
    w = np.zeros(away.shape)
    if kind == "linear":
        return np.array([[unit[i] @ unit[j] for j in others] for i in rows])
    if kind == "rbf":
        width = np.mean([sorted(row)[min(k, len(others)) - 1] for row in away])
        return np.exp(-(away**2) / (2 * width**2))
    for a in range(len(rows)):
        near = sorted((b for b in range(len(others)) if b != a), key=lambda b: away[a, b])[:k]
        w[a, near] = 1
    return w


def loop(kind, k, lam, rows, past=(), fixed=()):
    """Assignments by 400 rounds, one sample after the other."""
    p = torch.softmax(LOGITS.double(), -1).numpy()[list(rows)]
    w = affinity(kind, k, list(rows), [*rows, *past])
    z = p.copy()
    for _ in range(400):
        every = np.concatenate([z, np.asarray(fixed).reshape(-1, 3)])
        new = np.zeros_like(z)
        for i in range(len(z)):
            pull = p[i] * np.exp(lam * sum(w[i, j] * every[j] for j in range(len(every))))
            new[i] = pull / pull.sum()
        z = new
    return z


@pytest.mark.parametrize("kind", ["knn", "rbf", "linear"])
@pytest.mark.parametrize("k", [2, 5])
def test_assignments_are_the_fixed_point(kind, k):
    (got,) = answers(LAME(affinity=kind, k=k, lam=0.7, steps=200), range(9))
    np.testing.assert_allclose(got, loop(kind, k, 0.7, range(9)), atol=1e-4)
    plain = LOGITS.softmax(-1).numpy()
    assert np.abs(got - plain).max() > 0.05


def test_earlier_samples_are_neighbours_with_the_assignments_that_they_got():
    first, second, third = [0, 1, 2], [3, 4, 5], [6, 7, 8]
    got = answers(LAME(k=2, window=4, steps=200), first, second, third)
    past = loop("knn", 2, 1.0, first)
    np.testing.assert_allclose(got[0], past, atol=1e-4)
    then = loop("knn", 2, 1.0, second, first, past)
    np.testing.assert_allclose(got[1], then, atol=1e-4)
    last = loop("knn", 2, 1.0, third, [2, 3, 4, 5], np.concatenate([past[-1:], then]))
    np.testing.assert_allclose(got[2], last, atol=1e-4)


@pytest.mark.parametrize("kind", ["knn", "rbf", "linear"])
def test_without_weight_or_neighbours_the_model_answers(kind):
    t = task("cnn-plain")
    model, x = {"vars": t.init(KEY)}, images(6)[0]

    def plain(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode)

    off, alone = LAME(affinity=kind, lam=0.0), LAME(affinity=kind)
    assert torch.equal(off.step(t, plain, model, {}, x, KEY)[0], t.apply(model["vars"], x).logits)
    one = t.apply(model["vars"], x[:1]).logits
    got = alone.step(t, plain, model, {}, x[:1], KEY)[0]
    assert got.argmax() == one.argmax() and got.isfinite().all()
    if kind == "knn":
        torch.testing.assert_close(got, one)
    windowed = LAME(affinity=kind, window=3)
    state = windowed.init(t, model)
    for part in x.split(1):
        got, state = windowed.step(t, plain, model, state, part, KEY)
        assert got.isfinite().all()
    assert state["held"].tolist() == [1.0] * 3


@pytest.mark.parametrize("fields", [{"k": 0}, {"lam": -1.0}, {"steps": 0}, {"window": -1}, {"affinity": "near"}])
def test_bad_settings_are_named(fields):
    with pytest.raises(ValueError, match=rf"LAME: {next(iter(fields))}="):
        LAME(**fields)


def test_a_single_iteration_starts_from_each_samples_own_answer():
    """Two samples, one fixed neighbour: logits plus weights times softmaxes by hand."""
    logits = torch.tensor([[1.0, 0.0], [0.0, 2.0]])
    fixed, weight = torch.tensor([[0.5, 0.5]]), torch.tensor([[0.0, 1.0, 2.0], [3.0, 0.0, 0.0]])
    first, second = (np.exp(row) / np.exp(row).sum() for row in ([1.0, 0.0], [0.0, 2.0]))
    wanted = np.array([[1.0, 0.0] + second + 1.0, [0.0, 2.0] + 3 * first])
    np.testing.assert_allclose(agreed(logits, fixed, weight, 1).numpy(), wanted, rtol=1e-6)


@pytest.mark.parametrize("affinity", ["knn", "rbf", "linear"])
def test_nodes_that_are_not_real_have_no_weight_wherever_they_are(affinity):
    unit = torch.nn.functional.normalize(torch.tensor([[1.0, 0.2], [0.3, 1.0], [1.0, 1.0]]), dim=-1)
    nodes, real = torch.cat((unit, unit[:2])), torch.tensor([1.0, 1.0, 1.0, 0.0, 1.0])
    found = LAME(affinity=affinity, k=2).affinities(unit, nodes, real)
    assert not found[:, 3].any() and bool(found[1, 4] > 0)
