"""t-SNE, and traces as they are kept and summed up."""

import math

import pytest
import torch

from acclimate.eval import analysis, tsne


def blobs(count=90, groups=3, width=20, seed=0):
    g = torch.Generator().manual_seed(seed)
    label = torch.arange(count) % groups
    return 8 * torch.randn(groups, width, generator=g)[label] + torch.randn(count, width, generator=g), label


def test_clusters_stay_apart_in_the_plane():
    points, label = blobs()
    place = tsne.embed(points, perplexity=10)
    assert place.shape == (90, 2)
    apart = torch.cdist(place, place)
    same = label[:, None] == label[None]
    assert float(apart[same].max()) < float(apart[~same].min())


def test_the_same_points_give_the_same_picture_without_touching_the_global_generator():
    points, _ = blobs()
    before = torch.random.get_rng_state()
    assert torch.equal(tsne.embed(points, steps=60), tsne.embed(points.clone(), steps=60))
    assert torch.equal(before, torch.random.get_rng_state())


def test_affinities_have_the_perplexity_asked_for():
    points, _ = blobs(60)
    apart = torch.cdist(points, points).square()
    near = tsne.affinities(points, 7.0)
    assert float(near.sum()) == pytest.approx(1, abs=1e-4)
    assert torch.equal(near, near.T)
    assert float(near.diagonal().abs().max()) == 0

    def row(i):  # by bisection in plain Python
        low, high = 0.0, 1e6
        for _ in range(200):
            beta = (low + high) / 2
            weight = [
                0.0 if j == i else math.exp(-beta * float(apart[i, j] - apart[i].sort().values[1])) for j in range(60)
            ]
            share = [w / sum(weight) for w in weight]
            wide = -sum(s * math.log(s) for s in share if s > 0) > math.log(7)
            low, high = (beta, high) if wide else (low, beta)
        return torch.tensor(share)

    expected = (row(3)[11] + row(11)[3]) / 120
    assert float(near[3, 11]) == pytest.approx(float(expected), rel=1e-3)


def test_the_gradient_is_that_of_the_kl_divergence():
    points, _ = blobs(30)
    near = tsne.affinities(points, 5.0).double()
    place = torch.randn(30, 2, dtype=torch.float64, generator=torch.Generator().manual_seed(1)).requires_grad_()
    kernel = 1 / (1 + (place[:, None] - place[None]).square().sum(-1)) * (1 - torch.eye(30))
    kl = torch.special.xlogy(near, near).sum() - torch.special.xlogy(near, kernel / kernel.sum() + torch.eye(30)).sum()
    (expected,) = torch.autograd.grad(kl, place)
    torch.testing.assert_close(tsne.gradient(near, place.detach()), expected, rtol=1e-6, atol=1e-9)


@pytest.mark.parametrize("shape", [(0, 4), (1, 4), (2, 4), (3, 1), (5, 1), (40, 3)])
def test_few_equal_or_flat_points_have_places(shape):
    for points in (torch.zeros(shape), torch.arange(math.prod(shape)).view(shape).float()):
        place = tsne.embed(points, steps=20)
        assert place.shape == (shape[0], 2)
        assert bool(place.isfinite().all())


def test_points_that_are_far_apart_have_the_places_of_nearer_ones():
    """Features of a model that is about to diverge are finite, and their squares are not."""
    points = torch.randn(12, 3, generator=torch.Generator().manual_seed(2))
    far, near = tsne.embed(points * 2.0**70, steps=5), tsne.embed(points * 2.0**-2, steps=5)
    torch.testing.assert_close(far, near, rtol=1e-3, atol=1e-6)


def test_bad_input_is_named():
    with pytest.raises(ValueError, match=r"points has shape \(3,\)"):
        tsne.embed(torch.zeros(3))
    with pytest.raises(ValueError, match="perplexity=1 must be above 1"):
        tsne.embed(torch.zeros(9, 2), perplexity=1)


# --- what is kept -----------------------------------------------------------------------------------------------------


def test_flat_traces_leave_the_padding_out_and_say_whose_samples_they_are():
    weight = torch.tensor([[1.0, 2.0, 9.0], [9.0, 9.0, 9.0], [3.0, 9.0, 9.0]])
    kept = analysis.flat({"weight": weight, "feature": weight[..., None]}, torch.tensor([2, 0, 1]), "mine")
    assert kept["client"].tolist() == [0, 0, 2]
    assert kept["weight"].tolist() == [1, 2, 3]
    assert kept["at"].tolist() == [0, 1, 2]
    assert kept["feature"].flatten().tolist() == [1, 2, 3]
    assert "at" not in analysis.flat({"weight": weight}, torch.tensor([2, 0, 1]), "mine")
    assert analysis.flat({}, torch.tensor([2, 0, 1]), "mine") == {}
    with pytest.raises(ValueError, match="mine: a trace may not be called 'at'"):
        analysis.flat({"at": weight}, torch.tensor([2, 0, 1]), "mine")


def test_vectors_are_kept_for_an_even_part_of_the_samples():
    values = torch.arange(2500.0)[None, :, None]
    kept = analysis.flat({"feature": values}, torch.tensor([2500]), "mine")
    assert kept["at"].tolist() == [i * 5 // 2 for i in range(1000)]
    assert torch.equal(kept["feature"][:, 0].long(), kept["at"])
    assert len(kept["client"]) == 2500


def test_histograms_share_their_bins_and_count_every_finite_value():
    h = analysis.histogram({"a": torch.tensor([0.0, 0.24, 0.25, 1.0]), "b": torch.tensor([0.5, math.nan])}, bins=4)
    assert (h["low"], h["high"]) == (0.0, 1.0)
    assert h["streams"]["a"]["counts"] == [2, 1, 0, 1]
    assert h["streams"]["b"] == {"samples": 1, "mean": 0.5, "counts": [0, 0, 1, 0]}
    wide = analysis.histogram({"a": torch.tensor([-1.0, 3.0])}, bins=4)
    assert wide["streams"]["a"]["counts"] == [1, 0, 0, 1]
    assert analysis.histogram({"a": torch.tensor([])})["streams"]["a"]["mean"] is None


def test_a_summary_draws_numbers_as_histograms_and_vectors_as_maps():
    points, label = blobs(60)
    kept = {"client": label, "at": torch.arange(60), "weight": torch.rand(60), "feature": points}
    drawn = analysis.summary({"mine": {"one": kept, "two": kept}}, {"mine": {"weight": "how sure"}})
    assert [(h["trace"], h["meaning"]) for h in drawn["histograms"]] == [("weight", "how sure")]
    assert [(m["trace"], m["meaning"]) for m in drawn["maps"]] == [("feature", "feature")]
    places = drawn["maps"][0]["streams"]
    assert [len(places[s]) for s in ("one", "two")] == [60, 60]
    assert max(abs(v) for row in places["one"] for v in row) <= 1
