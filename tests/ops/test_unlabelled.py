"""Tuning per sample: which views a step sees, and that samples do not care who is tuned beside them."""

import pytest
import torch

from acclimate.core import SGD, rng
from acclimate.ops.augmix import augmix
from acclimate.ops.unlabelled import augmix_views, map_samples, marginal_entropy, tuned_on_views

KEYS = rng.rows(rng.key(3), 5)
IMAGES = torch.randint(0, 256, (5, 1, 8, 8), generator=torch.Generator().manual_seed(0)).to(torch.uint8)
START = {"w": torch.randn(4, 64, generator=torch.Generator().manual_seed(1)) / 8}


def logits(tuned, x):
    return x.flatten(1) @ tuned["w"].T


def test_every_step_has_views_of_its_own_key():
    seen = augmix_views(3, 4)(IMAGES[0], KEYS[0])
    for t in range(3):
        assert torch.equal(seen[t], augmix(IMAGES[0], rng.fold(KEYS[0], t), views=4))
    assert augmix_views(0, 4)(IMAGES[0], KEYS[0]).shape == (0, 4, 1, 8, 8)


@pytest.mark.parametrize("chunk", [1, 2, 5])
def test_samples_are_tuned_each_on_their_own(chunk):
    def one(sample, key):
        tuned = tuned_on_views(logits, START, sample["seen"], SGD(lr=0.5))
        return logits(tuned, sample["x"][None].float() / 255)[0]

    got = map_samples(one, {"x": IMAGES}, KEYS, chunk, augmix_views(2, 6))
    for i, x in enumerate(IMAGES):
        w = START["w"].clone().requires_grad_()
        for t in range(2):  # by autograd, with nothing of ours but the views
            views = augmix(x, rng.fold(KEYS[i], t), views=6)
            mean = (views.flatten(1) @ w.T).softmax(-1).mean(0)
            (grad,) = torch.autograd.grad(-(mean * mean.log()).sum(), w)
            w = (w - 0.5 * grad).detach().requires_grad_()
        torch.testing.assert_close(got[i], (x.flatten() / 255) @ w.T.detach(), atol=1e-5, rtol=1e-5)


@pytest.mark.parametrize("chunk", [1, 5])
def test_rows_are_given_their_model_whether_or_not_views_are_drawn(chunk):
    def one(sample, key):
        return sample["model"]["w"] @ sample["x"].flatten().float() + sample.get("seen", torch.ones(())).mean()

    wanted = IMAGES.flatten(1).float() @ START["w"].T
    torch.testing.assert_close(map_samples(one, {"x": IMAGES}, KEYS, chunk, model=START), wanted + 1)
    drawn = map_samples(one, {"x": IMAGES}, KEYS, chunk, lambda x, key: torch.full((2, 1, 8, 8), 3.0), START)
    torch.testing.assert_close(drawn, wanted + 3)


def test_marginal_entropy_is_that_of_the_mean_prediction():
    p = torch.tensor([[0.5, 0.25, 0.25], [0.1, 0.8, 0.1]])
    mean = p.mean(0)
    torch.testing.assert_close(marginal_entropy(p.log() + 3.0), -(mean * mean.log()).sum())
