"""FedICON: its losses by hand, its parts, its ablations, and its adapter."""

import math
from dataclasses import replace

import pytest
import torch
from torch.func import grad, vmap

import acclimate as ac
from acclimate.adapters.icon import ICON
from acclimate.core import SGD, Protocol, Work, rng, tree
from acclimate.methods import FedAvg, Local
from acclimate.methods.fedicon import FedICON
from acclimate.ops.augment import Views
from acclimate.ops.prototypes import contrastive
from support import SMALL, client_data, equal, fitted, gap, shards, task

QUICK = FedICON(opt=SGD(lr=0.1), head_opt=SGD(lr=0.1), work=SMALL, head_work=SMALL, personal_work=SMALL)


def by_hand(z, marks, temperature):
    """Eq. 2, 3 and 5 as loops over anchors, positives and all others."""
    z = z.flatten(0, 1).double()
    z = z / z.norm(dim=-1, keepdim=True)
    marks = marks.tolist() * (len(z) // len(marks))
    total = 0.0
    for i in range(len(z)):
        others = [j for j in range(len(z)) if j != i]
        bottom = sum(math.exp(float(z[i] @ z[j]) / temperature) for j in others)
        positives = [j for j in others if marks[j] == marks[i]]
        total -= sum(float(z[i] @ z[p]) / temperature - math.log(bottom) for p in positives) / len(positives)
    return total / len(z)


@pytest.mark.parametrize("marks", [[0, 0, 1, 2, 1], [0, 1, 2, 3, 4], [3, 3, 3, 3, 3]])
@pytest.mark.parametrize("temperature", [0.07, 0.5])
def test_the_contrastive_losses_equal_a_loop_over_anchors(marks, temperature):
    z, marks = torch.randn(2, 5, 7, generator=torch.Generator().manual_seed(1)), torch.tensor(marks)
    assert float(contrastive(z, marks, temperature)) == pytest.approx(by_hand(z, marks, temperature), rel=1e-4)


def test_the_contrastive_loss_falls_where_positives_meet_and_its_gradient_is_finite():
    marks = torch.tensor([0, 1])
    apart, together = torch.eye(4).view(2, 2, 4), torch.eye(2).repeat(2, 1, 1)
    assert contrastive(together, marks, 0.1) < 1e-3 < contrastive(apart, marks, 0.1)
    assert bool(torch.isfinite(grad(lambda z: contrastive(z, marks, 0.01))(apart)).all())


def test_views_are_keyed_differ_and_keep_shape_and_range():
    x, views = shards().x[:6], Views()
    two = views.several(x, rng.key(1)).unflatten(0, (2, 6))
    assert two.shape == (2, *x.shape) and two.min() >= 0 and two.max() <= 1
    assert (two[0] - two[1]).abs().flatten(1).amax(1).min() > 0.01  # of every image, two different views
    assert torch.equal(two, views.several(x, rng.key(1)).unflatten(0, (2, 6)))
    keys = rng.fold(rng.key(2), torch.arange(3))
    batched = vmap(lambda k: views.views(x, k))(keys)
    assert gap({"v": batched}, {"v": torch.stack([views.views(x, k) for k in keys])}) < 1e-6
    same = Views(zoom=1.0, flip=False, jitter=0.0, grey=0.0).views(x, rng.key(3))
    assert gap({"v": same}, {"v": x.float() / 255}) < 1e-6
    grey = Views(zoom=1.0, flip=False, jitter=0.0, grey=1.0).views(x, rng.key(3))
    assert gap({"v": grey[:, 0]}, {"v": grey[:, 2]}) < 1e-6
    with pytest.raises(ValueError, match="zoom=1.5"):
        Views(zoom=1.5)


def test_the_encoder_learns_from_views_and_the_classifier_from_the_received_encoder():
    t, own = task(), client_data(shards(), 0)
    down = QUICK.init_server(t, 6, rng.key(0))
    up, mine = QUICK.client(t, down, {}, own, rng.key(1))
    still, _ = replace(QUICK, head_work=Work(epochs=0)).client(t, down, {}, own, rng.key(1))
    frozen, _ = replace(QUICK, work=Work(epochs=0)).client(t, down, {}, own, rng.key(1))
    assert mine == {}
    unmoved = {"body.0.bias", "body.4.bias"}  # a batch norm follows, which takes a bias out again
    for name, step in up["delta"]["params"].items():
        alone = (frozen if name in t.head else still)["delta"]["params"][name]
        assert torch.equal(step, alone), name  # neither sees what the other did
        assert name in unmoved or step.abs().max() > 0, name
        other = (still if name in t.head else frozen)["delta"]["params"][name]
        assert not other.any(), name


def test_fedicon_us_never_reads_a_label_before_the_classifier():
    t, own = task(), client_data(shards(), 0)
    down = QUICK.init_server(t, 6, rng.key(0))
    wrong = {**own, "y": (own["y"] + torch.arange(len(own["y"]))) % 5}
    for labels in (True, False):
        method = replace(QUICK, labels=labels)
        a, b = (method.client(t, down, {}, d, rng.key(1))[0]["delta"]["params"] for d in (own, wrong))
        body = [n for n in a if n not in t.head]
        assert all(torch.equal(a[n], b[n]) for n in body) == (not labels)
        assert not torch.equal(a[t.head_weight], b[t.head_weight])


def test_encoders_are_averaged_by_samples_with_weights_that_sum_to_one():
    """Eq. 4 without its extra 1/m: equal clients must leave an equal model, not a shrunken one."""
    worker, _, state = fitted(QUICK, rounds=1, cohort=6)
    start, data = worker.task.init(worker.key("init")), shards()
    ups = [
        QUICK.client(worker.task, {"vars": start}, {}, client_data(data, c), worker.key("train", 0, c))[0]["delta"]
        for c in range(6)
    ]
    share = (data.n / data.n.sum()).tolist()
    mean = tree.map(lambda s, *d: s + sum(w * x for w, x in zip(share, d, strict=True)), start, *ups)
    assert gap(state.server["vars"], mean) < 1e-5


def test_without_extraction_this_is_fedavg_and_without_sharing_local():
    plain = replace(QUICK, extract=False)
    _, engine, ours = fitted(plain, rounds=2)
    _, _, fedavg = fitted(FedAvg(opt=QUICK.opt, work=SMALL), rounds=2)
    assert equal(ours.server["vars"], fedavg.server["vars"])
    assert equal(engine.deploy(ours.server, ours.mine, ac.personal.NoPersonal())[0]["vars"], ours.server["vars"])
    _, _, alone = fitted(replace(plain, share=False), rounds=2)
    _, _, local = fitted(Local(opt=QUICK.opt, work=SMALL), rounds=2)
    assert equal(alone.mine["vars"], local.mine["vars"])
    assert alone.cost["message"] == [] and alone.server == {}


def test_sharing_off_keeps_encoders_apart_and_sends_nothing():
    _, _, state = fitted(replace(QUICK, share=False), rounds=1, cohort=6)
    assert state.cost["up"] == 0
    first = next(iter(state.mine["vars"]["params"].values()))
    assert not torch.equal(first[0], first[1])


def test_the_encoder_rests_after_its_rounds_and_the_classifier_goes_on():
    t, own = task(), client_data(shards(), 0, round=3)
    down = QUICK.init_server(t, 6, rng.key(0))
    up, _ = replace(QUICK, encoder_rounds=3).client(t, down, {}, own, rng.key(1))
    moving, _ = replace(QUICK, encoder_rounds=4).client(t, down, {}, own, rng.key(1))
    body = [n for n in up["delta"]["params"] if n not in t.head]
    assert not any(up["delta"]["params"][n].any() for n in body)
    assert not any(b.any() for b in up["delta"]["buffers"].values())
    assert up["delta"]["params"][t.head_weight].any()
    assert equal(moving, QUICK.client(t, down, {}, own, rng.key(1))[0])


def test_the_classifier_is_personalised_on_the_last_encoder():
    worker, engine, state = fitted(QUICK, rounds=1)
    live = engine.deploy(state.server, state.mine, ac.personal.NoPersonal())
    t = worker.task
    for a in live:
        body = tree.drop(a["vars"]["params"], t.head)
        assert equal(body, tree.drop(state.server["vars"]["params"], t.head))
    assert not torch.equal(live[0]["vars"]["params"][t.head_weight], live[1]["vars"]["params"][t.head_weight])


@pytest.mark.parametrize("model", ["cnn-plain", "cnn-batch"])
def test_icon_tunes_the_encoder_alone_on_the_whole_stream(model):
    worker, engine, state = fitted(QUICK, model=model, rounds=1)
    live, x = engine.deploy(state.server, state.mine, ac.personal.NoPersonal())[0], shards(seed=3).x[:20]
    adapter, t = ICON(opt=SGD(lr=0.1), work=Work(epochs=2, batch=8)), worker.task
    fresh, real = adapter.init(t, live), torch.ones(20, dtype=torch.bool)
    tuned = adapter.prepare(t, worker.predict(), live, fresh, x, real, rng.key(1))["vars"]
    assert equal(tree.pick(tuned["params"], t.head), tree.pick(live["vars"]["params"], t.head))
    assert all(not torch.equal(tuned["params"][n], live["vars"]["params"][n]) for n in t.params if n not in t.head)
    assert all(not torch.equal(tuned["buffers"][n], b) for n, b in live["vars"]["buffers"].items())
    logits, _ = adapter.step(t, worker.predict(), live, {"vars": tuned}, x, rng.key(2))
    assert torch.equal(logits, t.apply(tuned, x).logits)
    none = replace(adapter, work=Work(epochs=0)).prepare(t, worker.predict(), live, fresh, x, real, rng.key(1))
    assert equal(none["vars"], live["vars"])


def test_icon_lowers_its_own_loss():
    worker, _, state = fitted(QUICK, rounds=1)
    t, x = worker.task, shards(seed=3).x[:32]
    live, adapter = {"vars": state.server["vars"]}, ICON(opt=SGD(lr=0.1), work=Work(epochs=30))
    real = torch.ones(32, dtype=torch.bool)
    tuned = adapter.prepare(t, worker.predict(), live, adapter.init(t, live), x, real, rng.key(1))

    def unseen_loss(vars):
        seen = adapter.views.several(x, rng.key(99))
        return float(contrastive(t.apply(vars, seen, "adapt").features.unflatten(0, (2, -1)), torch.arange(32), 0.1))

    assert unseen_loss(tuned["vars"]) < 0.95 * unseen_loss(live["vars"])


def test_padding_changes_nothing_for_icon():
    """Serial serves every client without padding, Vmap in buckets: the same answers."""
    sizes, adapter = (9, 12, 0, 8, 11, 10), ICON(opt=SGD(lr=0.05), work=Work(epochs=2, batch=4))
    scores = []
    for backend in ("serial", "vmap"):
        _, engine, state = fitted(QUICK, backend, rounds=1)
        models = engine.deploy(state.server, state.mine, ac.personal.NoPersonal())
        scores.append(engine.serve(models, shards(sizes, seed=2), adapter, Protocol(batch=4)))
    held = scores[0]["n"] > 0
    assert gap({"l": scores[0]["loss"][held]}, {"l": scores[1]["loss"][held]}) < 1e-4


def test_inputs_that_are_no_images_are_refused():
    t = ac.core.task.Task(ac.models.MLP(hidden=(4,)), (6,), 3)
    with pytest.raises(ValueError, match=r"views of, and these inputs have shape \(6,\)"):
        FedICON().init_server(t, 2, rng.key(0))
    assert "shape (6,)" in ICON().refusal(t, {"vars": t.init(rng.key(0))})
    with pytest.raises(ValueError, match="temperature=0"):
        FedICON(temperature=0.0)
