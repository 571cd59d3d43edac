"""EM and BBSE by value, on a model whose logits are its inputs."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acclimate.adapters.bbse import BBSE, solve
from acclimate.adapters.em import EM, estimate
from acclimate.core import Out, rng

TASK = SimpleNamespace(head_weight="w", num_classes=3)
JOINT = np.array([[0.3, 0.05, 0.02], [0.04, 0.25, 0.03], [0.01, 0.06, 0.24]])
LOGITS = np.random.default_rng(0).normal(size=(7, 3)) + [1.0, 0.0, -0.5]
REAL = torch.arange(7) < 5


def predict(model, x, mode="eval", key=None):
    return Out(x, x, {})


def deployed():
    w = torch.zeros(3, 3, dtype=torch.float64)
    return {"vars": {"params": {"w": w}, "buffers": {}}, "confusion": {"joint": torch.from_numpy(JOINT)}}


def shift(adapter):
    model, x = deployed(), torch.from_numpy(LOGITS)
    return adapter.prepare(TASK, predict, model, adapter.init(TASK, model), x, REAL, rng.key(0))["shift"].numpy()


def ridge_by_hand(joint, mu, ridge):
    """The normal equations of |joint w - mu|^2 + scale |w - 1|^2; the scale is a share of the mean squared column."""
    scale = np.square(joint).sum() / joint.shape[1] * ridge + 1e-12
    left = joint.T @ joint + scale * np.eye(len(joint))
    return np.linalg.solve(left, joint.T @ mu + scale)


@pytest.mark.parametrize("ridge", [1e-9, 0.1, 20.0])
def test_bbse_solves_the_ridge_equations(ridge):
    mu = np.array([0.2, 0.3, 0.5])
    ours = solve(torch.from_numpy(JOINT), torch.from_numpy(mu), ridge).numpy()
    assert ours == pytest.approx(ridge_by_hand(JOINT, mu, ridge), rel=1e-12)
    assert np.ptp(ours) > 0.1 or ridge > 1


def test_bbse_without_any_examples_leaves_the_answers_alone():
    none = torch.zeros(3, 3, dtype=torch.float64)
    assert solve(none, torch.tensor([0.2, 0.3, 0.5]).double(), 1e-3).tolist() == pytest.approx([1.0] * 3)


def test_the_least_scale_of_the_ridge_is_added():
    """A matrix so small that its own part of the scale is a third of the least one, 1e-12."""
    joint, mu = 1e-6 * np.diag([1.0, 2.0, 3.0]), np.array([0.5e-6, 1e-6, 2e-6])
    ours = solve(torch.from_numpy(joint), torch.from_numpy(mu), 0.1).numpy()
    assert ours == pytest.approx(ridge_by_hand(joint, mu, 0.1), rel=1e-9)


def test_bbse_counts_the_answers_of_real_samples():
    mu = np.bincount(LOGITS[:5].argmax(-1), minlength=3) / 5
    weights = np.maximum(ridge_by_hand(JOINT, mu, 0.01), 1e-6)
    assert shift(BBSE(ridge=0.01)) == pytest.approx(np.log(weights), rel=1e-9)


def em_by_hand(logits, prior, steps):
    e = np.exp(logits)
    p = e / e.sum(-1, keepdims=True)
    q = prior
    for _ in range(steps):
        posterior = p * q / prior
        q = (posterior / posterior.sum(-1, keepdims=True)).mean(0)
    return q


@pytest.mark.parametrize("steps", [0, 1, 3])
def test_em_equals_its_two_steps_in_numpy(steps):
    prior = np.array([0.5, 0.3, 0.2])
    ours = estimate(torch.from_numpy(LOGITS), REAL, torch.from_numpy(prior), steps).numpy()
    assert ours == pytest.approx(em_by_hand(LOGITS[:5], prior, steps), rel=1e-9)


@pytest.mark.parametrize(("prior", "p"), [("uniform", np.full(3, 1 / 3)), ("noted", JOINT.sum(0))])
def test_em_shifts_answers_by_the_ratio_of_frequencies(prior, p):
    expected = np.log(em_by_hand(LOGITS[:5], p, 4) / p)
    assert shift(EM(steps=4, prior=prior)) == pytest.approx(expected, rel=1e-9)
    assert np.abs(expected).max() > 0.1


def test_em_needs_what_confusion_notes_only_where_it_uses_it():
    noted, bare = deployed(), {"vars": deployed()["vars"]}
    assert EM(prior="uniform").refusal(TASK, bare) is None
    assert EM(prior="uniform").refusal(TASK, noted) is None
    assert EM(prior="noted").refusal(TASK, noted) is None
    assert "needs confusion" in EM(prior="noted").refusal(TASK, bare)
