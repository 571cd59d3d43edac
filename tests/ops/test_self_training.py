"""Losses of a model against its own answers, by hand."""

import math

import pytest
import torch

from acclimate.ops.self_training import likelihood_ratio, rarity


def test_the_likelihood_ratio_by_hand():
    """Of 0.8 and 0.2: the ratios are 4 and 1/4, with 1e-5 added."""
    found = likelihood_ratio(torch.tensor([[math.log(0.8), math.log(0.2)]], dtype=torch.float64))
    assert float(found) == pytest.approx(-(0.8 * math.log(4 + 1e-5) + 0.2 * math.log(0.25 + 1e-5)), rel=1e-9)


def test_the_likelihood_ratio_of_a_sure_answer_is_finite_and_knows_no_more_than_the_bound():
    found = likelihood_ratio(torch.tensor([[40.0, 0.0], [400.0, 0.0]], dtype=torch.float64))
    assert found.tolist() == pytest.approx([-0.99 * math.log(99 + 1e-5)] * 2)


def test_rare_classes_weigh_more_and_weights_have_mean_one():
    """One over 0.5, 0.25 and 0.25 is 2, 4 and 4, of mean 10 / 3."""
    found = rarity(torch.eye(3), torch.tensor([0.5, 0.25, 0.25]))
    assert found.tolist() == pytest.approx([0.6, 1.2, 1.2])
