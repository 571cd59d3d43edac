"""A client's class frequencies, by value, and where adapters start with them."""

from types import SimpleNamespace

import pytest
import torch

from acclimate.core import rng
from acclimate.ops.priors import class_prior, prior_refusal
from acclimate.personal import ClassPrior

TASK = SimpleNamespace(num_classes=4, head_weight="head.weight")
BARE = {"vars": {"params": {"head.weight": torch.zeros(4, 3)}}}


def noted(rows, n, **fields):
    data = {"y": torch.tensor([0, 1, 2, 3, 1, 1]), "rows": torch.tensor(rows), "n": torch.tensor(n)}
    return ClassPrior(**fields).run(TASK, None, BARE, data, rng.key(0))


def test_shares_of_the_real_rows_with_so_many_examples_of_every_class():
    got = noted([1, 4, 5, 2, 0, 0], 4)["prior"]  # three of class 1, one of class 2; the rest is padding
    torch.testing.assert_close(got, torch.tensor([1.0, 4.0, 2.0, 1.0]) / 8)
    less = noted([1, 4, 5, 2, 0, 0], 4, smooth=0.5)["prior"]
    torch.testing.assert_close(less, torch.tensor([0.5, 3.5, 1.5, 0.5]) / 6)
    torch.testing.assert_close(noted([0], 0)["prior"], torch.full((4,), 0.25))
    with pytest.raises(ValueError, match=r"ClassPrior: smooth=0.0 must be a finite number above 0"):
        ClassPrior(smooth=0.0)


def test_an_adapter_starts_at_equal_shares_or_at_the_clients():
    model = noted([1, 4, 5, 2], 4)
    assert class_prior(TASK, model, "uniform").tolist() == [0.25] * 4
    assert torch.equal(class_prior(TASK, model, "client"), model["prior"])


def test_a_prior_that_is_missing_or_of_other_classes_is_refused():
    assert prior_refusal(TASK, BARE, "uniform", "Some") is None
    assert prior_refusal(TASK, noted([0], 1), "client", "Some") is None
    assert "Some with prior='client' needs prior" in prior_refusal(TASK, BARE, "client", "Some")
    other = {**BARE, "prior": torch.ones(6) / 6}
    assert "the shares of 6 classes, and this model has 4" in prior_refusal(TASK, other, "client", "Some")
