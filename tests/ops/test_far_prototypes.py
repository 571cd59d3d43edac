"""The nearest known prototype where features are long, and the mean of all examples."""

import torch

from acclimate.ops.prototypes import mean_of_means, nearest


def test_a_class_that_is_not_known_is_never_the_nearest_however_long_features_are():
    g = torch.Generator().manual_seed(0)
    for size in (0.1, 10.0, 1000.0):
        features, prototypes = size * torch.randn(40, 16, generator=g), size * torch.randn(5, 16, generator=g)
        known = torch.tensor([2.0, 0.0, 1.0, 3.0, 0.0])
        logits = nearest(features, prototypes, known)
        places = torch.tensor([0, 2, 3])
        far = torch.cdist(features.double(), prototypes[places].double())
        assert torch.equal(logits.argmax(-1), places[far.argmin(-1)])
        assert bool((logits.softmax(-1)[:, [1, 4]] < 1e-20).all())


def test_where_nothing_is_known_all_are_equally_unlikely():
    assert nearest(torch.ones(2, 3), torch.ones(2, 3), torch.zeros(2)).tolist() == [[-1e4, -1e4], [-1e4, -1e4]]


def test_a_class_that_is_not_known_lies_a_hundred_below_the_farthest_that_is():
    """Known: 600 - 1 and -60,000 - 10,000. The prototype of the unknown class, which means nothing, is farther."""
    features, prototypes = torch.tensor([[300.0]]), torch.tensor([[1.0], [-100.0], [-5000.0]])
    logits = nearest(features, prototypes, torch.tensor([2.0, 1.0, 0.0]))
    assert logits.tolist() == [[599.0, -70_000.0, -70_100.0]]


def test_the_mean_of_all_examples_weighs_classes_by_their_counts_and_one_example_is_its_own_mean():
    prototypes = torch.tensor([[1.0, 2.0], [5.0, -2.0]])

    def mean(*counts):
        return mean_of_means({"prototypes": prototypes, "counts": torch.tensor(counts)}).tolist()

    assert mean(3.0, 1.0) == [2.0, 1.0] and mean(0.0, 1.0) == [5.0, -2.0] and mean(0.0, 0.0) == [0.0, 0.0]
