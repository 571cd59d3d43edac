"""MBSL's contrastive parts at their edges: repeated samples side by side, small features, and few directions."""

import numpy as np
import pytest
import torch
from torch.func import vmap

from acclimate.adapters import mbsl_contrast
from acclimate.adapters.mbsl_contrast import contrastive, principal, repeated
from acclimate.adapters.mbsl_equations import Equations
from acclimate.adapters.mbsl_released import ReleasedEquations


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def test_samples_that_repeat_side_by_side():
    who = torch.tensor([4, 4, 2, 4, 2, 2])
    assert repeated(who).tolist() == [False, True, False, True, True, True]


def test_the_contrast_by_hand_with_a_repeated_sample():
    """Eq. 11 in numpy: samples 0, 1 and 2, of which 0 stands twice and counts once."""
    first, second, who, temperature = drawn(0, 4, 5), drawn(1, 4, 5), [0, 0, 1, 2], 0.4
    first[1], second[1] = first[0], second[0]

    def unit(v):
        v = v.numpy() - v.numpy().mean(-1, keepdims=True)
        return v / np.linalg.norm(v, axis=-1, keepdims=True)

    p, q = unit(first), unit(second)
    once = [0, 2, 3]
    for m in range(4):
        others = sum(np.exp(p[m] @ p[n] / temperature) for n in once if who[n] != who[m])
        total = sum(np.exp(p[n] @ q[n] / temperature) for n in once) + others
        expected = -np.log(np.exp(p[m] @ q[m] / temperature) / total)
        ours = contrastive(first, second, torch.tensor(who), temperature)[m]
        assert float(ours) == pytest.approx(expected, rel=1e-9)


@pytest.mark.parametrize("size", [1e-5, 1.0, 1e14])
def test_principal_directions_of_features_of_any_size(size):
    """The three largest directions of a singular value decomposition, and three orthonormal ones."""
    x = drawn(2, 30, 6) * torch.tensor([9.0, 6.0, 4.0, 0.2, 0.2, 0.2]) * size + 3 * size
    basis = principal(x, 3, rounds=12)
    _, _, v = np.linalg.svd((x - x.mean(0)).numpy())
    assert (basis.T @ basis).numpy() == pytest.approx(np.eye(3), abs=1e-4)
    assert (basis @ basis.T).numpy() == pytest.approx(v[:3].T @ v[:3], abs=1e-4)


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
def test_features_on_a_line_have_that_direction(dtype):
    """Fewer directions than are asked for: what remains is finite, and holds the line."""
    line = torch.tensor([3.0, 0.0, -4.0, 0.0], dtype=dtype) / 5
    x = torch.linspace(-1, 1, 8, dtype=dtype)[:, None] * line
    basis = principal(x, 3)
    assert basis.shape == (4, 3) and bool(torch.isfinite(basis).all())
    assert float((basis.T @ line).norm()) == pytest.approx(1.0, abs=1e-3)
    assert float((basis.T @ basis).diagonal().max()) <= 1 + 1e-4


def test_the_released_contrast_leaves_out_strong_and_repeated_samples():
    features, who = drawn(3, 2, 4, 5), torch.tensor([0, 0, 1, 2])
    features[:, 1] = features[:, 0]
    equations = ReleasedEquations(0.001, 0.4, 1e-3, 0.5, 8)
    ours = float(equations.contrastive(features, who, torch.tensor([0.0, 0.0, 1.0, 0.0])))
    z = features[:, [0, 3]].reshape(4, 5).numpy()
    z = z / np.linalg.norm(z, axis=-1, keepdims=True)
    z = z - z.mean()
    terms = []
    for i in range(4):
        scores = z @ z[i] / 0.5
        terms.append(np.log(np.exp(np.delete(scores, i)).sum()) - scores[(i + 2) % 4])
    assert ours == pytest.approx(np.mean(terms), rel=1e-9)


def test_the_papers_contrast_is_the_mean_over_rows_in_the_directions_of_both_views():
    """All of three directions, so that components are a turn of the centred features: cosines of their own centring."""
    features = drawn(4, 2, 5, 3)
    equations = Equations(0.001, 0.4, 1e-3, 0.3, 8)
    both = features.reshape(10, 3)
    basis = principal(both, 3)
    p, q = ((view - both.mean(0)) @ basis for view in features)
    p, q = (v - v.mean(-1, keepdim=True) for v in (p, q))
    p, q = (v / v.norm(dim=-1, keepdim=True) for v in (p, q))
    terms = []
    for m in range(5):
        total = sum(torch.exp(p[n] @ q[n] / 0.3) for n in range(5))
        total += sum(torch.exp(p[m] @ p[n] / 0.3) for n in range(5) if n != m)
        terms.append(float(torch.log(total) - p[m] @ q[m] / 0.3))
    ours = float(equations.contrastive(features, torch.arange(5), torch.zeros(5)))
    assert ours == pytest.approx(np.mean(terms), rel=1e-6)


@pytest.mark.parametrize("form", [Equations, ReleasedEquations])
def test_labels_are_means_over_views(form):
    logits = drawn(5, 4, 3, 5)
    said, margin = form(0.001, 0.4, 1e-3, 0.5, 8).labels(logits)
    p = np.exp(logits.numpy()) / np.exp(logits.numpy()).sum(-1, keepdims=True)
    top = np.sort(p.mean(0) if form is Equations else p, -1)
    far = top[..., -1] - top[..., -2]
    assert said.numpy() == pytest.approx(p.mean(0) if form is Equations else logits.numpy().mean(0), rel=1e-9)
    assert margin.numpy() == pytest.approx(far if form is Equations else far.mean(0), rel=1e-9)


def test_directions_and_centre_are_no_way_for_gradients():
    """Eq. 11 is learned through what is compared; the components that it is compared in are given."""
    features = torch.randn(2, 5, 6, generator=torch.Generator().manual_seed(3)).requires_grad_()
    equations, who = Equations(0.001, 0.4, 1e-3, 0.5, 3), torch.arange(5)
    (ours,) = torch.autograd.grad(equations.contrastive(features, who, torch.zeros(5)), features)
    both = features.detach().flatten(0, 1)
    centre, basis = both.mean(0), principal(both, 3)
    p, q = ((view - centre) @ basis for view in features)
    (want,) = torch.autograd.grad(contrastive(p, q, who, 0.5).mean(), features)
    torch.testing.assert_close(ours, want)


def test_directions_stay_finite_where_products_round_to_ten_bits(monkeypatch):
    """As with TF32, whose products of nearly equal columns have roots that are no numbers."""
    exact, found = mbsl_contrast.products, []

    def rounded(y):
        found.append((exact(y).view(torch.int32) + 4096).bitwise_and(-8192).view(torch.float32))
        return found[-1]

    monkeypatch.setattr(mbsl_contrast, "products", rounded)
    g = torch.Generator().manual_seed(0)
    alike = torch.randn(32, 1, generator=g) @ torch.randn(1, 64, generator=g)
    x = alike + 1e-3 * torch.randn(32, 64, generator=g)
    assert torch.isfinite(principal(x, 8)).all()
    assert min(float(torch.linalg.eigvalsh(products).min()) for products in found) < -1e-6  # without the bound: no root


def by_masks(y):
    """The factorisation with all rows in their places, those that are done and those below the pivot's chosen."""
    count = y.shape[1]
    place = torch.arange(count)[:, None]
    for _ in range(2):
        y = y / y.square().sum().sqrt().clamp_min(1e-20)
        rows = torch.cat((y.mT @ y + mbsl_contrast.LEAST * torch.eye(count), y.mT), 1)
        for i in range(count):
            root = rows[i, i].clamp_min(mbsl_contrast.LEAST).sqrt()
            pivot, share = rows[i] / root, rows[:, i : i + 1] / root
            rows = torch.where(place == i, pivot, torch.where(place > i, rows - share * pivot, rows))
        y = rows[:, count:].mT
    return y


@pytest.mark.parametrize("shape", [(40, 8), (5, 1), (6, 3)])
def test_orthonormal_columns_are_those_of_a_factorisation_in_place_to_the_bit(shape):
    """In less operations: rows that are done are put aside."""
    y = drawn(9, 3, *shape).float()
    y[1, :, -1] = y[1, :, 0]
    assert torch.equal(vmap(mbsl_contrast._orthonormal)(y), vmap(by_masks)(y))
    assert torch.equal(mbsl_contrast._orthonormal(y[0]), by_masks(y[0]))
