"""FedSPL: exchanged features, strong and weak pseudo-labels, and the schedules, by hand-computed equalities."""

import math
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad, vmap

from acclimate.adapters import NoAdapt
from acclimate.adapters.mbsl import MBSL
from acclimate.adapters.mbsl_contrast import contrastive, principal, repeated, simclr
from acclimate.adapters.mbsl_equations import average, margins
from acclimate.adapters.mbsl_views import TAUGHT, of_all, on_views
from acclimate.core import SGD, Protocol, Worker, rng, tree
from acclimate.methods import FedAvg
from acclimate.methods.fedspl import FedSPL, matched, mixed, reorder, restyled
from acclimate.ops.augment import FlipCrop
from acclimate.personal import NoPersonal
from support import BACKENDS, SMALL, fitted, gap, shards, small, task


def test_matching_keeps_one_samples_values_and_the_others_order():
    content, style = torch.tensor([5.0, 1.0, 3.0, 2.0]), torch.tensor([10.0, 40.0, 20.0, 30.0])
    assert matched(content, style).tolist() == [40.0, 10.0, 30.0, 20.0]
    x = rng.normal(rng.key(0), 4, 3, 5, 5)
    out, key = reorder(x, rng.key(1)), rng.key(1)
    partner = rng.permutation(rng.fold(key, "shuffle"), 4)
    for b in range(4):
        for c in range(3):
            assert torch.equal(out[b, c].flatten().sort().values, x[partner[b], c].flatten().sort().values)
            assert torch.equal(out[b, c].flatten().argsort(), x[b, c].flatten().argsort())


def test_a_model_without_feature_maps_is_refused():
    """There is nothing to exchange in it, so that this would be FedAvg under another name."""
    with pytest.raises(ValueError, match=r"FedSPL needs feature maps, and this model has none; set model=cnn"):
        fitted(small(FedSPL()), model="mlp-dropout", rounds=1)


def test_gradients_go_to_the_sample_itself_and_as_released_also_to_whose_values_are_used():
    x, key = rng.normal(rng.key(0), 3, 2, 4, 4), rng.key(2)
    weight = rng.normal(rng.key(5), *x.shape)
    torch.testing.assert_close(restyled(x, key), reorder(x, key))
    assert torch.equal(grad(lambda x: (restyled(x, key) * weight).sum())(x), weight)
    share = 1 - rng.dirichlet(rng.fold(key, "weight"), 0.1, 3, 2)[:, 0].float().view(-1, 1, 1, 1)
    torch.testing.assert_close(mixed(x, key, 1.0, 0.1), x + share * (reorder(x, key) - x))
    values = grad(lambda x: (reorder(x, key) * share * weight).sum())(x)
    torch.testing.assert_close(grad(lambda x: (mixed(x, key, 1.0, 0.1) * weight).sum())(x), weight + values)
    assert torch.equal(mixed(x, key, 0.0, 0.1), x)


def test_features_are_exchanged_where_asked_and_only_there():
    t = task("cnn-plain")
    vars = t.init(rng.key(0))
    x = torch.rand(6, 3, 10, 10)
    assert t.stages[0] == "body.0"
    plain = t.apply(vars, x, "train").logits
    seen = {}
    t.apply(vars, x, "train", change={t.stages[0]: lambda out: seen.update(shape=out.shape)})
    changed = t.apply(vars, x, "train", change={t.stages[0]: lambda out: reorder(out, rng.key(1))}).logits
    assert seen["shape"] == (6, 3, 8, 8) and not torch.allclose(plain, changed)
    assert torch.equal(t.apply(vars, x, "train").logits, plain)  # nothing is left behind
    with pytest.raises(ValueError, match="no module matches 'layer9'"):
        t.places(("layer9",))


def test_a_batch_of_one_exchanges_with_itself_and_is_fedavg():
    work = replace(SMALL, batch=1)
    spl, avg = (fitted(small(m, work), rounds=1, model="cnn-plain")[2].server for m in (FedSPL(), FedAvg()))
    assert gap(spl["vars"], avg["vars"]) < 1e-5
    spl, avg = (fitted(small(m), rounds=1, model="cnn-plain")[2].server for m in (FedSPL(), FedAvg()))
    assert gap(spl["vars"], avg["vars"]) > 1e-4


def test_margins_threshold_and_the_average():
    said = torch.tensor([[0.7, 0.2, 0.1], [0.4, 0.35, 0.25], [0.5, 0.1, 0.4]])
    torch.testing.assert_close(margins(said), torch.tensor([0.5, 0.05, 0.1]))
    strong = margins(said) >= margins(said).mean()
    assert strong.tolist() == [True, False, False]
    one, two = {"w": torch.tensor([1.0])}, {"w": torch.tensor([3.0])}
    assert average(one, two, 1.0)["w"].item() == 1.0
    assert average(one, two, 0.75)["w"].item() == 1.5


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_teacher_moves_with_every_step(variant):
    """A student that all but stands still, half a unit away: the teacher goes a quarter of the way in each step."""
    t, adapter = task("cnn-plain"), MBSL(opt=SGD(lr=1e-12), rho=0.75, views=2, variant=variant)
    teacher = t.init(rng.key(0))
    student = tree.map(lambda p: p + 0.5, teacher["params"])
    zero = torch.zeros(())
    now = {
        "teacher": teacher["params"],
        "student": student,
        "opt": adapter.opt.init(student),
        "grown": zero + 1,
        "j": zero,
    }
    said = torch.full((4, t.num_classes), 1.0 / t.num_classes)
    seen = {"x": torch.rand(4, 3, 10, 10), "taught": said, "margin": torch.rand(4), "delta": zero + 0.5}
    seen["who"] = torch.arange(4)
    predict = Worker(t, FedAvg()).predict()
    for steps in (1, 2, 3):
        now = adapter._learn(predict, {"vars": teacher}, now, seen, rng.key(steps))
        gone = tree.sub(now["teacher"], teacher["params"])
        assert gap(gone, tree.map(lambda p, n=steps: torch.full_like(p, 0.5 * (1 - 0.75**n)), gone)) < 1e-4


def test_the_strong_loss_dominates_and_the_weak_weight_grows_to_its_bound():
    adapter, grown, seen = MBSL(), torch.ones(()), []
    for j in range(50):
        weights, grown = adapter.equations.weights(grown, torch.tensor(0.2), torch.zeros(1), torch.tensor(float(j)))
        seen.append({k: float(v) for k, v in weights.items()})
    assert seen[0]["weak"] == pytest.approx(0.001 * 0.2) and seen[-1]["weak"] == pytest.approx(0.001, rel=1e-3)
    assert all(w["strong"] > 0.59 for w in seen) and all(sum(w.values()) == pytest.approx(1.0) for w in seen)
    assert seen[10]["contrast"] == pytest.approx(0.4 * math.exp(-0.01))


def test_the_contrastive_loss_is_the_sum_over_rows_as_printed():
    p, q, temperature = rng.normal(rng.key(0), 5, 6), rng.normal(rng.key(1), 5, 6), 0.3
    a, b = p - p.mean(1, keepdim=True), q - q.mean(1, keepdim=True)
    want = []
    for m in range(5):
        total = 0.0
        for n in range(5):
            total += torch.exp(F.cosine_similarity(a[n], b[n], dim=0) / temperature)
            if n != m:
                total += torch.exp(F.cosine_similarity(a[m], a[n], dim=0) / temperature)
        want.append(-torch.log(torch.exp(F.cosine_similarity(a[m], b[m], dim=0) / temperature) / total))
    ours = contrastive(p, q, torch.arange(5), temperature)
    torch.testing.assert_close(ours, torch.stack(want), rtol=1e-4, atol=1e-5)


def test_a_sample_that_a_short_client_repeats_is_not_told_from_itself():
    who = torch.tensor([0, 1, 2, 0, 1, 2, 0])
    assert repeated(who).tolist() == [False] * 3 + [True] * 4
    p, q = rng.normal(rng.key(0), 3, 6), rng.normal(rng.key(1), 3, 6)
    once = contrastive(p, q, torch.arange(3), 0.3)
    torch.testing.assert_close(contrastive(p[who], q[who], who, 0.3), once[who])
    alone = grad(lambda p: contrastive(p, q[:1], torch.zeros(1), 0.3).sum())(p[:1])
    assert torch.isfinite(alone).all()


def test_components_are_counted_from_the_mean_of_the_batch():
    """Features that share a large offset: the loss must not see it."""
    t, adapter = task("cnn-plain"), MBSL(views=2, components=3)
    model, who = {"vars": t.init(rng.key(0))}, torch.arange(6)
    x, predict = torch.rand(6, 3, 10, 10), Worker(t, FedAvg()).predict()
    _, views = on_views(predict, model, model["vars"]["params"], x, adapter.augment, 2, rng.key(1))
    shifted = views + 5.0 * torch.arange(t.dim)
    losses = [adapter.equations.contrastive(features, who, torch.zeros(6)) for features in (views, shifted)]
    torch.testing.assert_close(*losses, rtol=1e-3, atol=1e-3)


def test_the_released_contrast_is_a_loop_over_both_views_of_weak_samples():
    p, q, temperature = rng.normal(rng.key(0), 4, 6), rng.normal(rng.key(1), 4, 6), 0.3
    weak = torch.tensor([True, False, True, True])
    z = F.normalize(torch.cat((p[weak], q[weak])), dim=-1)
    z = z - z.mean()
    want = []
    for i in range(6):
        others = [torch.dot(z[i], z[k]) / temperature for k in range(6) if k != i]
        want.append(torch.logsumexp(torch.stack(others), 0) - torch.dot(z[i], z[(i + 3) % 6]) / temperature)
    torch.testing.assert_close(simclr(p, q, weak, temperature), torch.stack(want).mean(), rtol=1e-4, atol=1e-5)
    assert simclr(p, q, torch.zeros(4, dtype=torch.bool), temperature) == 0


def test_released_margins_are_means_over_views():
    logits = rng.normal(rng.key(3), 3, 5, 4)
    said, margin = MBSL(views=3, variant="released").equations.labels(logits)
    top = logits.softmax(-1).topk(2, dim=-1).values
    torch.testing.assert_close(margin, (top[..., 0] - top[..., 1]).mean(0))
    torch.testing.assert_close(said, logits.mean(0))
    said, margin = MBSL(views=3).equations.labels(logits)
    torch.testing.assert_close(margin, margins(logits.softmax(-1).mean(0)))
    assert torch.allclose(said.sum(-1), torch.ones(5))


def test_the_teacher_sees_full_chunks_of_real_samples_alone():
    t = task("cnn-plain")
    model, x = {"vars": t.init(rng.key(0))}, torch.rand(5, 3, 10, 10)
    seen = []

    def predict(model, x, mode="eval", key=None):
        seen.append(x)
        return t.apply(model["vars"], x, mode, key)

    class Same:
        def views(self, x, key):
            return x

    def taught(x, key):
        return {"logits": on_views(predict, model, model["vars"]["params"], x, Same(), 2, key)[0].mean(0)}

    logits = of_all(taught, x, torch.tensor(3), rng.key(0))["logits"]
    assert logits.shape == (5, t.num_classes) and len(seen[0]) == TAUGHT
    alone = t.apply(model["vars"], x[:3], "adapt").logits
    torch.testing.assert_close(logits, alone[torch.arange(5) % 3], rtol=1e-4, atol=1e-5)


def test_principal_directions_are_those_of_the_singular_value_decomposition():
    x = rng.normal(rng.key(0), 30, 12) * torch.tensor([9.0, 6.0, 4.0] + [0.3] * 9)
    ours = principal(x, 3, rounds=12)
    _, _, v = torch.linalg.svd(x - x.mean(0))
    torch.testing.assert_close(ours @ ours.T, v[:3].T @ v[:3], atol=1e-3, rtol=1e-3)
    both = vmap(lambda x: principal(x, 3))(torch.stack((x, 2 * x)))
    torch.testing.assert_close(both[0] @ both[0].T, both[1] @ both[1].T, atol=1e-3, rtol=1e-3)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_the_teacher_learns_on_every_backend_alike(variant):
    adapter = MBSL(epochs=2, batch=4, views=2, opt=SGD(lr=0.05), rho=0.5, augment=FlipCrop(1), variant=variant)
    served = {}
    for name in BACKENDS:
        _, engine, state = fitted(small(FedSPL()), name, rounds=1)
        models = engine.deploy(state.server, state.mine, NoPersonal())
        served[name] = engine.serve(models, shards((9, 12, 5, 8, 5, 8), seed=2), adapter, Protocol(4))
        still = engine.serve(models, shards((9, 12, 5, 8, 5, 8), seed=2), MBSL(epochs=1, rho=1.0), Protocol(4))
    assert gap(*served.values()) < 1e-4
    assert gap(served["vmap"]["loss"], still["loss"]) > 1e-4  # it did learn; rho=1 keeps the teacher


def test_a_teacher_that_keeps_itself_answers_like_the_model_with_batch_statistics():
    _, engine, state = fitted(small(FedSPL()), rounds=1, model="cnn-plain")
    models = engine.deploy(state.server, state.mine, NoPersonal())
    kept = engine.serve(models, shards(seed=2), MBSL(epochs=1, rho=1.0), Protocol(4))
    assert gap(kept, engine.serve(models, shards(seed=2), NoAdapt(), Protocol(4))) < 1e-5
    assert MBSL().refusal(task("mlp-dropout"), {"vars": {}}) is None  # these are images still
    with pytest.raises(ValueError, match="losses"):
        MBSL(losses=("strange",))
