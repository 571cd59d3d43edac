"""Functions that modules from elsewhere call, against torch's own."""

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

from acclimate.core import rng
from acclimate.core.nn.calls import PureCalls


def heads(*shape, seed=0):
    g = torch.Generator().manual_seed(seed)
    return [torch.randn(*shape, generator=g) for _ in range(3)]


@pytest.mark.parametrize(
    "options",
    [
        {},
        {"scale": 0.3},
        {"is_causal": True},
        {"attn_mask": torch.tensor([[True, True, False, True]])},
        {"attn_mask": torch.tensor([[0.0, -1.0, 2.0, -torch.inf]])},
    ],
)
def test_attention_equals_torchs(options):
    q, k, v = heads(2, 3, 4, 5)
    with PureCalls(None):
        ours = F.scaled_dot_product_attention(q, k, v, **options)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, **options))


def test_attention_with_fewer_keys_than_queries_equals_torchs():
    q, (k, v, _) = heads(2, 4, 6, 5)[0], heads(2, 2, 6, 5, seed=1)
    with PureCalls(None):
        ours = F.scaled_dot_product_attention(q, k, v, enable_gqa=True)
    torch.testing.assert_close(ours, F.scaled_dot_product_attention(q, k, v, enable_gqa=True))


@pytest.mark.parametrize("first", [False, True])
@pytest.mark.parametrize("other", [False, True])
def test_multi_head_attention_equals_torchs(first, other):
    layer = nn.MultiheadAttention(6, 2, batch_first=first, kdim=5 if other else None, vdim=3 if other else None).eval()
    nn.init.normal_(layer.in_proj_bias)
    q = torch.randn(4, 3, 6)
    k, v = (torch.randn(4, 3, 5), torch.randn(4, 3, 3)) if other else (q, q)
    batch, length = (4, 3) if first else (3, 4)
    padded = torch.zeros(batch, length, dtype=torch.bool)
    padded[0, -1] = True
    later = torch.ones(length, length, dtype=torch.bool).triu(1)
    each = torch.randn(batch * 2, length, length)
    for masks in (
        {},
        {"key_padding_mask": padded},
        {"attn_mask": later, "key_padding_mask": padded},
        {"attn_mask": each},
    ):
        with PureCalls(None):
            ours = layer(q, k, v, **masks)
        torch.testing.assert_close(ours, layer(q, k, v, **masks))
    with PureCalls(None):
        ours = layer(q, k, v, average_attn_weights=False)[1], layer(q, k, v, need_weights=False)[1]
    torch.testing.assert_close(ours[0], layer(q, k, v, average_attn_weights=False)[1])
    assert ours[1] is None


def test_rare_attention_is_refused():
    layer, given = nn.MultiheadAttention(6, 2, add_zero_attn=True), heads(4, 3, 6)  # both are drawn
    with PureCalls(None), pytest.raises(ValueError, match="add_zero_attn=True .* is not supported"):
        layer(*given)


def test_second_derivatives_of_attention_are_those_of_the_formula():
    q, k, v = heads(2, 4, 5)

    def ours(q):
        with PureCalls(None):
            return F.scaled_dot_product_attention(q, k, v).square().sum()

    def plain(q):
        return ((q @ k.mT / 5**0.5).softmax(-1) @ v).square().sum()

    def twice(f):
        return vmap(grad(lambda q: grad(f)(q).pow(3).sum()))(torch.stack((q, 2 * q)))

    torch.testing.assert_close(twice(ours), twice(plain))
    x = torch.tensor([-4.0, -1.0, 0.5, 4.0])
    with PureCalls(None):
        slopes = grad(lambda x: grad(lambda x: F.hardsigmoid(x).square().sum())(x).sum())(x)
    torch.testing.assert_close(slopes, torch.tensor([0.0, 2 / 36, 2 / 36, 0.0]))


def test_what_is_drawn_comes_from_the_key():
    def draw(key):
        with PureCalls(key):
            dropped = F.dropout(torch.ones(3000), 0.25)
            coins, numbers = torch.empty(3000).bernoulli_(0.3), torch.rand(2, 3)
            return dropped, F.dropout(torch.ones(3000), 0.25), coins, numbers, torch.randn_like(coins)

    keys = rng.fold(rng.key(0), torch.arange(2))
    alone, together = [draw(k) for k in keys], vmap(draw)(keys)
    for i in range(2):
        assert all(torch.equal(a, b[i]) for a, b in zip(alone[i], together, strict=True))
    dropped, again, coins, numbers, noise = alone[0]
    assert dropped.unique().tolist() == [0.0, pytest.approx(4 / 3)] and not torch.equal(dropped, again)
    assert float(dropped.mean()) == pytest.approx(1.0, abs=0.05) and float(coins.mean()) == pytest.approx(0.3, abs=0.03)
    assert numbers.shape == (2, 3) and not torch.equal(dropped, alone[1][0])
    assert float(noise.std()) == pytest.approx(1.0, abs=0.05) and float(noise.mean()) == pytest.approx(0.0, abs=0.05)
    with PureCalls(None):
        assert torch.equal(F.dropout(torch.ones(3), 0.5, training=False), torch.ones(3))
        with pytest.raises(ValueError, match="draws random numbers: pass a key"):
            F.dropout(torch.ones(3))


def test_every_way_to_draw_comes_from_the_key():
    def draw(key):
        with PureCalls(key):
            x = torch.full((500, 4, 3, 3), -1.0)
            coins, spread, bell = (torch.empty(3000) for _ in range(3))
            coins, spread, bell = coins.bernoulli_(0.3), spread.uniform_(2, 6), bell.normal_(5.0, 2.0)
            chances = torch.bernoulli(torch.full((3000,), 0.8))
            return F.dropout2d(x, 0.25), F.rrelu(x, 0.1, 0.5, True), coins, spread, bell, chances, torch.randn(2, 3)

    keys = rng.fold(rng.key(0), torch.arange(2))
    alone, together = [draw(k) for k in keys], vmap(draw)(keys)
    for i in range(2):
        assert all(torch.equal(a, b[i]) for a, b in zip(alone[i], together, strict=True))
    assert not any(torch.equal(a, b) for a, b in zip(*alone, strict=True))
    dropped, bent, coins, spread, bell, chances, numbers = alone[0]
    assert dropped.flatten(2).unique(dim=2).shape[2] == 1, "a channel is dropped as a whole"
    assert dropped.unique().tolist() == [pytest.approx(-4 / 3), 0.0]
    assert -0.5 <= float(bent.min()) < -0.45 and -0.15 < float(bent.max()) <= -0.1
    assert [float(v.mean()) for v in (coins, chances)] == pytest.approx([0.3, 0.8], abs=0.03)
    assert 2 <= float(spread.min()) < 2.1 and 5.9 < float(spread.max()) <= 6 and numbers.shape == (2, 3)
    assert (float(bell.mean()), float(bell.std())) == pytest.approx((5.0, 2.0), abs=0.15)
    with PureCalls(None):
        assert F.rrelu(torch.tensor([-1.0, 2.0]), 0.1, 0.5).tolist() == pytest.approx([-0.3, 2.0])


def test_what_is_drawn_in_place_is_there_and_where_it_cannot_be_nobody_reads_it():
    def draw(key):
        with PureCalls(key):
            mask = torch.empty(6)
            mask.bernoulli_(0.5)
            return mask

    keys = rng.fold(rng.key(0), torch.arange(2))
    assert set(draw(keys[0]).tolist()) == {0.0, 1.0}
    assert bool(vmap(draw, out_dims=None)(keys).isnan().all()), "one mask cannot be that of two clients"


@pytest.mark.parametrize(
    ("call", "name"),
    [
        (lambda: torch.randperm(3), "torch.randperm"),
        (lambda: torch.randint(0, 3, (2,)), "torch.randint"),
        (lambda: torch.normal(torch.zeros(2), 1.0), "torch.normal"),
        (lambda: torch.zeros(2).exponential_(), "Tensor.exponential_"),
    ],
)
def test_draws_that_no_seed_knows_are_refused_by_name(call, name):
    with PureCalls(rng.key(0)), pytest.raises(ValueError, match=f"calls {name}, which draws random numbers that no"):
        call()
