"""Scores that choose between adapters, against plain numpy."""

import math

import numpy as np
import torch

from acclimate.ops import selection

T = torch.tensor


def drawn(rows=7, classes=4):
    return torch.randn(rows, classes, generator=torch.Generator().manual_seed(3)) * 2


def probabilities(logits):
    e = np.exp(np.asarray(logits, dtype=np.float64))
    return e / e.sum(-1, keepdims=True)


def test_certainty_is_the_negative_mean_entropy_of_the_rows_that_count():
    logits, real = drawn(), torch.arange(7) < 5
    p = probabilities(logits)[:5]
    torch.testing.assert_close(
        selection.certainty(logits, real).item(), (p * np.log(p)).sum(-1).mean(), rtol=1e-5, atol=0
    )
    assert selection.certainty(T([[50.0, 0.0]]), T([True])) > selection.certainty(T([[0.0, 0.0]]), T([True]))


def plain_density(logits, temperature):
    p = probabilities(logits)
    p = p / np.sqrt((p**2).sum(-1, keepdims=True))
    total = 0.0
    for i in range(len(p)):
        near = np.array([math.exp(p[i] @ p[j] / temperature) for j in range(len(p)) if j != i])
        near = near / near.sum()
        total -= (near * np.log(near)).sum()
    return total / len(p)


def test_density_is_the_mean_entropy_over_soft_neighbours_without_the_sample_itself():
    logits, real = drawn(), torch.arange(7) < 5
    for temperature in (0.05, 0.5):
        found = selection.density(logits, real, temperature).item()
        torch.testing.assert_close(found, plain_density(logits[:5], temperature), rtol=1e-4, atol=1e-6)
    other = torch.where(real[:, None], logits, 99.0)
    assert torch.equal(selection.density(logits, real), selection.density(other, real))  # rows that do not count


def test_density_is_highest_where_answers_lie_together():
    together, apart = torch.zeros(6, 3), 20 * torch.eye(3).repeat(2, 1)
    everyone = torch.ones(6, dtype=torch.bool)
    torch.testing.assert_close(selection.density(together, everyone).item(), math.log(5), rtol=1e-5, atol=0)
    assert selection.density(apart, everyone).item() < 1e-6  # each has one twin
    assert selection.density(together, torch.arange(6) < 1).isnan()


def test_the_first_of_equals_is_chosen_and_nan_never():
    assert selection.best(T([0.2, 0.7, 0.7])).item() == 1
    assert selection.best(T([math.nan, -3.0, math.nan])).item() == 1
    own, together = T([[0.1, 0.2], [math.nan, math.nan], [0.9, math.nan]]), T([0.5, 0.6])
    assert selection.best_of_each(own, together).tolist() == [1, 1, 0]


def test_the_oracle_alone_needs_labels_of_the_stream():
    assert set(selection.STRATEGIES) - set(selection.WITHOUT_LABELS) == {"oracle"}
