"""Projections onto the simplex, and mixtures, by hand."""

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
