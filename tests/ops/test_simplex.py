"""Projections onto the simplex, and mixtures, by hand and step by step."""

import pytest
import torch

from acclimate.ops.simplex import best_mixtures, project


def test_the_nearest_point_of_the_simplex_by_hand():
    given = torch.tensor([[0.5, 0.7, -0.1], [0.2, 0.3, 0.5], [3.0, 0.0, 1.0], [0.1, 0.1, 0.1]])
    # (0.5 + 0.7 - 1) / 2 = 0.1 is taken off two entries; the second is a point of it; one entry stays; all are raised
    wanted = [[0.4, 0.6, 0.0], [0.2, 0.3, 0.5], [1.0, 0.0, 0.0], [1 / 3] * 3]
    torch.testing.assert_close(project(given), torch.tensor(wanted))


def test_the_best_mixture_of_two_weighs_bias_against_variance():
    """a = (1 - b, b): (2 b)^2 + (1 - b)^2 v + b^2 v is least at b = v / (4 + 2 v)."""
    for v in (0.5, 2.0, 8.0):
        found = best_mixtures(torch.tensor([[0.0], [2.0]]), torch.full((2,), v))
        assert float(found[0, 1]) == pytest.approx(v / (4 + 2 * v), abs=1e-3)
        assert found.sum(-1).tolist() == pytest.approx([1.0, 1.0], abs=1e-5)


def test_the_steps_are_those_of_fista_and_start_anew_where_they_lead_uphill():
    """Beck & Teboulle's own loop, for one row: t becomes (1 + sqrt(1 + 4 t^2)) / 2."""
    points = torch.tensor([[0.0, 1.0], [2.0, 0.5], [1.0, 3.0]], dtype=torch.float64)
    variance = torch.tensor([3.0, 0.5, 1.0], dtype=torch.float64)
    flat = points - points.mean(0)
    among, target = flat @ flat.T, torch.tensor([1.0, 0.0, 0.0], dtype=torch.float64)
    rate = 1 / (torch.linalg.eigvalsh(among).max() + variance.max())
    best, ahead, t, anew = target, target, 1.0, 0
    for step in range(1, 30):
        new = project(ahead - rate * ((ahead - target) @ among + ahead * variance))
        uphill = float((ahead - new) @ (new - best)) > 0
        t, anew = 1.0 if uphill else t, anew + uphill
        after = (1 + (1 + 4 * t**2) ** 0.5) / 2
        ahead = new if uphill else new + (t - 1) / after * (new - best)
        best, t = new, after
        torch.testing.assert_close(best_mixtures(points, variance, step)[0], best, rtol=0, atol=1e-12)
    assert anew > 0, "this case has to start anew once"


def test_three_hundred_steps_are_taken_unless_told_otherwise():
    """Here each of them still moves: one estimate lies ten times as far out as the others."""
    draw = torch.Generator().manual_seed(0)
    points = torch.randn(8, 3, generator=draw, dtype=torch.float64)
    points[0] *= 10
    variance = torch.full((8,), 1e-2, dtype=torch.float64)
    found = best_mixtures(points, variance)
    assert torch.equal(found, best_mixtures(points, variance, 300))
    assert float((found - best_mixtures(points, variance, 301)).abs().max()) > 1e-5
