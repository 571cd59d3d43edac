"""FedPCL's term for one sample, by hand: similarities 1 and 0 at temperature 1/2."""

import math

import pytest
import torch

from acclimate.ops.prototypes import prototype_loss

Z, SETS = torch.tensor([[1.0, 0.0]]), torch.tensor([[1.0, 0.0], [0.0, 1.0], [1.0, 0.0]])


@pytest.mark.parametrize(
    ("known", "wanted"),
    [
        ([1, 1, 1], math.log(math.exp(0) + math.exp(2)) - 2),  # both others are in the denominator, the own is not
        ([1, 1, 0], 0 - 2),
        ([0, 1, 1], 0),  # the own class is not known
        ([1, 0, 0], 0),  # nor is any other
        ([0, 0, 0], 0),
    ],
)
def test_the_term_is_zero_unless_the_own_class_and_another_are_known(known, wanted):
    found = prototype_loss(Z, torch.tensor([0]), SETS, torch.tensor(known, dtype=torch.float32), 0.5)
    assert found.tolist() == pytest.approx([wanted], abs=1e-6)
