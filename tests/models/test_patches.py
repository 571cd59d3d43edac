"""Images as tokens: values and gradients of any order, under vmap, are those of a convolution and of sums.

Kernels: `TRITON_INTERPRET=1 PYTHONPATH=src:tests python -m pytest --noconftest tests/models/test_patches.py`.
"""

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, jacrev, vmap

from acclimate.core.nn import kernels, patch_kernels, trials
from acclimate.models import ViT, patches

G = torch.Generator().manual_seed(0)
DTYPE = torch.float32 if kernels.INTERPRETED else torch.float64
TIGHT = {"rtol": 1e-4, "atol": 1e-4} if kernels.INTERPRETED else {"rtol": 1e-10, "atol": 1e-10}
CLIENTS, BATCH, CHANNELS, HIGH, WIDE, SIDE, WIDTH = 2, 3, 3, 8, 12, 4, 5
works = pytest.mark.skipif(not kernels.INTERPRETED, reason="needs Triton and TRITON_INTERPRET=1")


def draw(*shape):
    return torch.randn(*shape, generator=G, dtype=DTYPE)


X = draw(CLIENTS, BATCH, CHANNELS, HIGH, WIDE)
WEIGHT, BIAS, PLACES = draw(WIDTH, CHANNELS, SIDE, SIDE), draw(WIDTH), draw(7, WIDTH)


def places_for(x):
    return PLACES[: 1 + x.shape[-2] * x.shape[-1] // SIDE**2]


def at_once(x):
    return patches.frozen_tokens(x, SIDE, WEIGHT.flatten(1), BIAS, places_for(x))


def written_out(x):
    y = F.conv2d(x, WEIGHT, BIAS, stride=SIDE).flatten(2).mT
    places = places_for(x)
    return torch.cat((places[:1].expand(len(x), 1, -1), y + places[1:]), 1)


def test_tokens_are_a_convolution_behind_a_token_in_their_places():
    torch.testing.assert_close(vmap(at_once)(X), torch.stack([written_out(x) for x in X]), **TIGHT)


def test_gradients_of_two_orders_are_those_of_the_convolution():
    def slopes(f):
        return lambda x: grad(lambda x: f(x).sin().sum())(x)

    for f in (slopes, lambda f: jacrev(slopes(f))):
        x = X[..., :SIDE, :]  # one row of patches
        torch.testing.assert_close(vmap(f(at_once))(x), torch.stack([f(written_out)(each) for each in x]), **TIGHT)


def test_clients_with_places_of_their_own_go_the_plain_way():
    net = ViT(patch=SIDE, width=8, depth=1).build((CHANNELS, HIGH, HIGH), 2)
    images = torch.rand(BATCH, CHANNELS, HIGH, HIGH)
    found = patches.tokens_of(net.patch_embed, images, net.pos_embed, alike=False)
    proj = net.patch_embed.proj
    y = F.conv2d(images, proj.weight, proj.bias, stride=SIDE).flatten(2).mT
    torch.testing.assert_close(found, F.pad(y, (0, 0, 1, 0)) + net.pos_embed)


@works
@pytest.mark.parametrize("shape", [(2, 1, 4, 4), (3, 3, 40, 48)])
def test_kernels_cut_and_place_as_torch_does(shape):
    images = draw(*shape)
    cut = patch_kernels.cut(images, SIDE)
    assert torch.equal(cut, trials.patches_of(images, SIDE))
    places = draw(cut.shape[1] + 1, cut.shape[2])
    torch.testing.assert_close(patch_kernels.placed(cut, places), F.pad(cut, (0, 0, 1, 0)) + places)


@works
def test_trials_notice_a_wrong_kernel(monkeypatch):
    assert trials._patches_trial(X[0], SIDE) == 0 and trials._places_trial(draw(2, 6, 5)) < 1e-6
    monkeypatch.setattr(trials, "cut", lambda x, side: trials.patches_of(x, side).flip(1))
    monkeypatch.setattr(trials, "placed", lambda y, places: F.pad(y, (0, 0, 0, 1)) + places)
    assert trials._patches_trial(X[0], SIDE) > 0.1 and trials._places_trial(draw(2, 6, 5)) > 0.1
