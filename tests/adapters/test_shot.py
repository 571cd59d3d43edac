"""SHOT: its pseudo-labels and its loss by hand, and what it may and may not change."""

import math

import pytest
import torch

from acclimate.adapters.shot import SHOT, information, pseudo_labels
from acclimate.core import Protocol, rng, tree
from acclimate.methods import FedAvg
from acclimate.personal import NoPersonal
from support import SMALL, equal, fitted, gap, shards

EVERY = torch.ones(4, dtype=torch.bool)


def test_pseudo_labels_by_hand():
    features = torch.tensor([[1.0, 0.0], [3.0, 0.3], [0.1, 2.0], [0.6, 0.5]])
    sure = torch.tensor([[4.0, 0.0], [4.0, 0.0], [0.0, 4.0], [0.0, 0.1]])
    # the last sample is said to be class 1, but lies nearer to the centroid of class 0
    assert sure.argmax(-1).tolist() == [0, 0, 1, 1]

    def cosine(a, b):
        return float(a @ b) / float(a.norm() * b.norm())

    p = sure.softmax(-1)
    centroids = [(p[:, k, None] * features).sum(0) / p[:, k].sum() for k in range(2)]
    first = [max(range(2), key=lambda k: cosine(f, centroids[k])) for f in features]
    held = sorted(set(first))
    centroids = {k: torch.stack([f for f, y in zip(features, first, strict=True) if y == k]).mean(0) for k in held}
    second = [max(held, key=lambda k: cosine(f, centroids[k])) for f in features]
    assert pseudo_labels(features, sure, EVERY).tolist() == second
    assert second[3] == 0


def test_rows_that_are_not_real_make_no_centroid():
    g = torch.Generator().manual_seed(0)
    features, logits = torch.rand(9, 4, generator=g), torch.randn(9, 3, generator=g)
    more = torch.cat((features, 50 * torch.rand(5, 4, generator=g))), torch.cat((logits, logits[:5]))
    all_real, some = torch.ones(9, dtype=torch.bool), torch.arange(14) < 9
    assert torch.equal(pseudo_labels(*more, some)[:9], pseudo_labels(features, logits, all_real))


def test_information_by_hand():
    logits = torch.tensor([[100.0, 0.0], [0.0, 100.0]])
    assert float(information(logits)) == pytest.approx(-math.log(2), abs=1e-5)  # sure and diverse
    assert float(information(logits[:1].expand(2, 2))) == pytest.approx(0.0, abs=1e-5)  # sure, but one class
    assert float(information(torch.zeros(2, 2))) == pytest.approx(0.0, abs=1e-5)  # diverse, but unsure


def test_shot_tunes_the_features_under_a_frozen_head_and_lowers_its_loss():
    worker, _, state = fitted(FedAvg(work=SMALL), rounds=2)
    t, model, x = worker.task, {"vars": state.server["vars"]}, shards(seed=4).x[:40]
    adapter, real = SHOT(epochs=3, batch=8), torch.ones(40, dtype=torch.bool)
    new = adapter.prepare(t, worker.predict(), model, adapter.init(t, model), x, real, rng.key(0))["vars"]
    assert equal(tree.pick(new["params"], t.head), tree.pick(model["vars"]["params"], t.head))
    assert information(t.apply(new, x).logits) < information(t.apply(model["vars"], x).logits) - 0.01
    none = SHOT(epochs=0).prepare(t, worker.predict(), model, adapter.init(t, model), x, real, rng.key(0))
    assert equal(none["vars"], model["vars"])


def test_padding_changes_nothing():
    sizes, scores = (9, 12, 0, 8, 11, 10), []
    for backend in ("serial", "vmap"):
        _, engine, state = fitted(FedAvg(work=SMALL), backend, rounds=1)
        models = engine.deploy(state.server, state.mine, NoPersonal())
        scores.append(engine.serve(models, shards(sizes, seed=2), SHOT(epochs=2, batch=4), Protocol(batch=4)))
    held = scores[0]["n"] > 0
    assert gap({"l": scores[0]["loss"][held]}, {"l": scores[1]["loss"][held]}) < 1e-4


@pytest.mark.parametrize("scale", [0.3, 1.0, 1.7, 9.1])
def test_a_lone_sample_keeps_the_class_that_the_model_gives_it(scale):
    """All its centroids point where it does itself: rounding decided which of them was nearest."""
    g = torch.Generator().manual_seed(1)
    for _ in range(20):
        features, logits = scale * torch.rand(1, 8, generator=g), 0.05 * torch.randn(1, 7, generator=g)
        assert torch.equal(pseudo_labels(features, logits, EVERY[:1]), logits.argmax(-1))
