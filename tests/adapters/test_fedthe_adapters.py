"""MEMO, TTT, TSA, kNN-Per and AugMix: equalities worked out by hand, and plain loops against the vectorised code."""

from functools import cache

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import vmap

from acclimate.adapters import NoAdapt
from acclimate.adapters.knn import KNNPer
from acclimate.adapters.memo import MEMO
from acclimate.adapters.tsa import TSA
from acclimate.adapters.ttt import TTT
from acclimate.core import SGD, Protocol, Task, Work, rng, tree
from acclimate.methods import FedAvg
from acclimate.methods.fedttt import FedTTT
from acclimate.ops import augmix as am
from acclimate.ops import unlabelled
from acclimate.ops.augment import FlipCrop, turned
from acclimate.ops.augmix import augmix
from acclimate.ops.params import joined
from acclimate.ops.unlabelled import map_samples, marginal_entropy
from acclimate.personal import FineTune, NoPersonal
from acclimate.personal.memory import Memory
from support import CLASSES, MODELS, SMALL, client_data, equal, fitted, gap, images, shards, task

KEY = rng.key(7)


def deployed(name="cnn-batch", **extra):
    t = task(name)
    model = {"vars": t.init(rng.key(0)), **extra}

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    return t, predict, model


def rotation_head(t, seed=1):
    return FedTTT().init_client(t, 0, rng.key(seed))["rotation"]


def leaf(params):
    return {k: p.clone().requires_grad_() for k, p in params.items()}


def sgd_by_hand(loss, params, lr):
    """One step of plain autograd, without torch.func."""
    own = leaf(params)
    grads = torch.autograd.grad(loss(own), list(own.values()), allow_unused=True)
    return {
        k: (p - lr * g).detach() if g is not None else p.detach() for (k, p), g in zip(own.items(), grads, strict=True)
    }


# --- AugMix ---------------------------------------------------------------------------------------------------------


def levels(*values):
    return torch.tensor(values, dtype=torch.float32).view(1, 1, 1, -1)


def whole(image):
    return image.flatten(2).to(torch.int64)


def look_up(image, table):
    return table.gather(-1, whole(image)).view_as(image)


def looked_up(image, table):
    return look_up(image, table).flatten().tolist()


def test_value_operations_on_tiny_images():
    assert looked_up(levels(50, 100, 150), am.autocontrast_table(levels(50, 100, 150))) == [0, 127, 255]
    assert looked_up(levels(9, 9), am.autocontrast_table(levels(9, 9))) == [9, 9]
    x = levels(0, 99, 100, 255)
    assert looked_up(x, am.solarize_table(torch.tensor([100.0]), x)[:, None]) == [0, 99, 155, 0]
    assert looked_up(x, am.posterize_table(torch.tensor([16.0]), x)[:, None]) == [0, 96, 96, 240]
    assert looked_up(x, am.equalize_table(whole(x))) == [0, 99, 100, 255]  # too small an image to equalise


def equalize_reference(image):
    """PIL's published recipe, level by level, in Python integers."""
    out = np.empty_like(image)
    for c in range(image.shape[0]):
        counts = np.bincount(image[c].ravel(), minlength=256)
        used = counts[counts > 0]
        step = int(used.sum() - used[-1]) // 255 if len(used) > 1 else 0
        seen, table = step // 2, []
        for v in range(256):
            table.append(min(seen // step, 255) if step else v)
            seen += int(counts[v])
        out[c] = np.array(table)[image[c]]
    return out


def test_equalize_equals_a_numpy_reference_and_pil():
    g = np.random.default_rng(0)
    dark = (g.random((3, 32, 32)) ** 3 * 200).astype(np.int64)
    flat = np.full((3, 32, 32), 77)
    for image in (dark, flat):
        x = torch.from_numpy(image).float()[None]
        got = look_up(x, am.equalize_table(whole(x)))[0].numpy()
        np.testing.assert_array_equal(got, equalize_reference(image))
    ops = pytest.importorskip("PIL.ImageOps")
    image = pytest.importorskip("PIL.Image").fromarray(dark.transpose(1, 2, 0).astype(np.uint8))
    x = torch.from_numpy(dark).float()[None]
    ours = {
        "equalize": am.equalize_table(whole(x)),
        "autocontrast": am.autocontrast_table(x),
        "posterize": am.posterize_table(torch.tensor([16.0]), x)[:, None].expand(1, 3, 256),
        "solarize": am.solarize_table(torch.tensor([100.0]), x)[:, None].expand(1, 3, 256),
    }
    theirs = {"posterize": (4,), "solarize": (100,)}
    for name, table in ours.items():
        pil = np.asarray(getattr(ops, name)(image, *theirs.get(name, ()))).transpose(2, 0, 1).astype(float)
        off = np.abs(look_up(x, table)[0].numpy() - pil)
        assert off.max() <= (1 if name == "autocontrast" else 0), name


def affine_of(turn=0.0, shear=(0.0, 0.0), shift=(0.0, 0.0), side=4):
    one = [torch.tensor([float(v)]) for v in (turn, *shear, *shift)]
    return am.affine(one[0], (one[1], one[2]), (one[3], one[4]), (side, side))


def test_place_operations_on_a_tiny_image():
    x = torch.arange(16.0).view(1, 1, 4, 4)
    assert torch.equal(am.warp(x, affine_of()), x)
    right = am.warp(x, affine_of(shift=(1.0, 0.0)))[0, 0]
    assert torch.equal(right[:, :3], x[0, 0, :, 1:])
    assert right[:, 3].tolist() == [128.0] * 4
    down = am.warp(x, affine_of(shift=(0.0, -1.0)))[0, 0]
    assert torch.equal(down[1:], x[0, 0, :3])
    assert down[0].tolist() == [128.0] * 4
    assert torch.equal(am.warp(x, affine_of(turn=90.0))[0, 0], torch.rot90(x[0, 0], -1))
    sheared = am.warp(x, affine_of(shear=(1.0, 0.0)))[0, 0]  # row y is read y + 1/2 further right, between two pixels
    assert sheared[0].tolist() == [0.0, 2.0, 2.0, 128.0]  # 0.5, 1.5, 2.5 rounded to even, then the border
    assert sheared[3].tolist() == [128.0] * 4


def test_warps_follow_pil_but_for_its_truncation():
    pil = pytest.importorskip("PIL.Image")
    dark = np.random.default_rng(1).integers(0, 256, (32, 32), dtype=np.uint8)
    image, x = pil.fromarray(dark), torch.from_numpy(dark).float().view(1, 1, 32, 32)
    cases = [
        (affine_of(shear=(0.03, 0.0), side=32), (1, 0.03, 0, 0, 1, 0)),
        (affine_of(shear=(0.0, -0.02), side=32), (1, 0, 0, -0.02, 1, 0)),
        (affine_of(shift=(1.0, 0.0), side=32), (1, 0, 1, 0, 1, 0)),
    ]
    for matrix, numbers in cases:
        theirs = image.transform(
            (32, 32), pil.Transform.AFFINE, numbers, resample=pil.Resampling.BILINEAR, fillcolor=128
        )
        assert np.abs(am.warp(x, matrix)[0, 0].numpy() - np.asarray(theirs)).max() <= 1
    theirs = image.rotate(2, resample=pil.Resampling.BILINEAR, fillcolor=128)
    ours = am.warp(x, affine_of(turn=-2.0, side=32))[0, 0].numpy()
    assert np.abs(ours - np.asarray(theirs)).max() <= 1


def test_augmix_is_keyed_in_range_mild_and_the_same_under_vmap():
    x, _ = images(6)
    keys = rng.fold(KEY, torch.arange(6))
    alone = torch.stack([augmix(x[i], keys[i], views=8) for i in range(6)])
    assert alone.shape == (6, 8, 3, 10, 10)
    assert torch.equal(alone, torch.stack([augmix(x[i], keys[i], views=8) for i in range(6)]))
    assert not torch.equal(alone[0], augmix(x[0], keys[1], views=8))
    torch.testing.assert_close(vmap(lambda a, k: augmix(a, k, views=8))(x, keys), alone, rtol=0, atol=1e-5)
    nested = vmap(lambda a, k: map_samples(lambda b, q: augmix(b, q, views=8), a, k, 2))(
        x.view(2, 3, 3, 10, 10), keys.view(2, 3)
    )
    torch.testing.assert_close(nested.flatten(0, 1), alone, rtol=0, atol=1e-5)
    torch.testing.assert_close(augmix(x[0].float() / 255, keys[0], views=8), alone[0])
    assert float(alone.min()) >= 0 and float(alone.max()) <= 1
    still = torch.stack([augmix(x[i], keys[i], views=64, pad=0) for i in range(6)])
    plain = x.float()[:, None] / 255
    change = torch.minimum((still - plain).abs().mean((2, 3, 4)), (still - plain.flip(-1)).abs().mean((2, 3, 4)))
    assert 0.001 < float(change.mean()) < 0.1
    assert len({tuple(v.flatten().tolist()) for v in alone[0]}) == 8  # views differ


def test_augmix_draws_every_operation_and_every_depth(monkeypatch):
    seen = []
    real = am._drawn
    monkeypatch.setattr(am, "_drawn", lambda op, level, *rest: seen.append((op, level)) or real(op, level, *rest))
    augmix(images(1)[0][0], KEY, views=600)
    [(ops, strength)] = seen
    length = (ops < len(am.OPS)).sum(0)
    assert torch.bincount(length, minlength=4)[1:].float().div(1800).sub(1 / 3).abs().max() < 0.04
    drawn = torch.bincount(ops.flatten(), minlength=10)[:9].float()
    assert (drawn / drawn.sum()).sub(1 / 9).abs().max() < 0.02
    assert float(strength.min()) >= 0.1 and float(strength.max()) <= 1


# --- MEMO -----------------------------------------------------------------------------------------------------------


def test_marginal_entropy_of_equal_views_is_their_entropy():
    logits = torch.randn(1, 5, generator=torch.Generator().manual_seed(0))
    p = logits.softmax(-1)
    torch.testing.assert_close(marginal_entropy(logits.expand(7, 5)), -(p * p.log()).sum())
    certain = torch.tensor([[100.0, 0.0], [0.0, 100.0]])  # both views certain of another class: ln 2
    torch.testing.assert_close(marginal_entropy(certain), torch.tensor(2.0).log())


def test_memo_without_steps_is_no_adaptation():
    t, predict, model = deployed()
    x, _ = images(9)
    plain = NoAdapt().step(t, predict, model, {}, x, KEY)[0]
    torch.testing.assert_close(MEMO(steps=0).step(t, predict, model, {}, x, KEY)[0], plain, rtol=1e-5, atol=1e-5)


def test_memo_with_equal_views_is_entropy_minimisation(monkeypatch):
    monkeypatch.setattr(unlabelled, "augmix", lambda x, key, *, views: x.expand(views, *x.shape))
    t, predict, model = deployed()
    x, _ = images(5)
    got = MEMO(steps=2, views=3, opt=SGD(lr=0.1)).step(t, predict, model, {}, x, KEY)[0]
    for i in range(5):
        params = model["vars"]["params"]
        for _ in range(2):

            def entropy(p, i=i):
                q = t.apply({**model["vars"], "params": p}, x[i : i + 1]).logits.softmax(-1)
                return -(q * q.log()).sum()

            params = sgd_by_hand(entropy, params, 0.1)
        want = t.apply({**model["vars"], "params": params}, x[i : i + 1]).logits[0]
        torch.testing.assert_close(got[i], want, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("name", ["cnn-batch", "cnn-group"])
def test_memo_vectorised_equals_a_plain_loop_and_chunks_do_not_matter(name):
    t, predict, model = deployed(name)
    x, _ = images(7)
    want = []
    for i in range(7):
        params = model["vars"]["params"]  # reset
        for s in range(2):
            views = augmix(x[i], rng.fold(rng.rows(KEY, len(x))[i], s), views=6)

            def marginal(p, views=views):
                mean = t.apply({**model["vars"], "params": p}, views).logits.softmax(-1).mean(0)
                return -(mean * mean.log()).sum()

            params = sgd_by_hand(marginal, params, 0.2)
        want.append(t.apply({**model["vars"], "params": params}, x[i : i + 1]).logits[0])
    for chunk in (1, 3, 7, 50):
        adapter = MEMO(steps=2, views=6, opt=SGD(lr=0.2), chunk=chunk)
        got, state = adapter.step(t, predict, model, {}, x, KEY)
        torch.testing.assert_close(got, torch.stack(want), rtol=1e-4, atol=1e-5)
        assert state == {}
    assert (got - predict(model, x).logits).abs().max() > 1e-3


def test_memo_can_blend_batch_statistics_of_the_views():
    t, predict, model = deployed()
    x, _ = images(4)
    strong = MEMO(steps=1, views=4, prior=1e9).step(t, predict, model, {}, x, KEY)[0]
    plain = MEMO(steps=1, views=4).step(t, predict, model, {}, x, KEY)[0]
    torch.testing.assert_close(strong, plain, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(
        MEMO(steps=1, views=4, prior=4.0).step(t, predict, model, {}, x, KEY)[0], plain, atol=1e-3
    )


@cache
def trained(method, backend):
    """One round, for the tests of several adapters."""
    return fitted(method, backend, rounds=1)


def served(method, adapter, personal=None):
    out = []
    for backend in ("serial", "vmap"):
        worker, engine, state = trained(method, backend)
        models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, personal or NoPersonal())
        out.append(engine.serve(models, shards((5, 9, 6, 0, 8, 7), seed=1), adapter, Protocol(batch=4)))
    return out


def agree(a, b):
    return all(torch.allclose(a[k], b[k], rtol=1e-4, atol=1e-4) for k in ("accuracy", "loss", "n"))


@pytest.mark.parametrize("personal", [NoPersonal(), FineTune(work=SMALL)], ids=["global", "personal"])
def test_memo_serves_alike_on_serial_and_vmap(personal):
    a, b = served(FedAvg(work=SMALL), MEMO(steps=2, views=4, opt=SGD(lr=0.05), chunk=3), personal)
    assert agree(a, b)
    plain, _ = served(FedAvg(work=SMALL), NoAdapt(), personal)
    assert not torch.allclose(a["loss"], plain["loss"], atol=1e-4)


# --- TTT ------------------------------------------------------------------------------------------------------------


def test_quarter_turns():
    x, _ = images(4)
    out = turned(x, torch.arange(4))
    for q in range(4):
        assert torch.equal(out[q], torch.rot90(x[q], q, (-2, -1)))
    batched = vmap(turned)(x.expand(2, *x.shape), torch.tensor([[0, 1, 2, 3], [3, 2, 1, 0]]))
    assert torch.equal(batched[0], out)


@pytest.mark.parametrize("online", [True, False])
def test_ttt_without_steps_or_with_a_tiny_one_is_no_adaptation(online):
    t = task()
    _, predict, model = deployed(rotation=rotation_head(t))
    x, _ = images(6)
    plain = predict(model, x).logits
    for adapter in (TTT(online=online, steps=0), TTT(online=online, opt=SGD(lr=1e-9))):
        got = adapter.step(t, predict, model, adapter.init(t, model), x, KEY)[0]
        torch.testing.assert_close(got, plain, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("views", [None, 5])
@pytest.mark.parametrize("online", [True, False])
def test_ttt_equals_a_plain_loop(online, views):
    t = task()
    _, predict, model = deployed(rotation=rotation_head(t))
    x, _ = images(7)
    adapter = TTT(online=online, steps=2, opt=SGD(lr=0.1), views=views, chunk=3)
    got, state = [], adapter.init(t, model)
    for b, part in enumerate(x.split(4)):  # two batches: online carries its parameters over
        logits, state = adapter.step(t, predict, model, state, part, rng.fold(KEY, b))
        got.append(logits)
    want, params = [], model["vars"]["params"]
    head = model["rotation"]
    for n in range(7):
        if not online:
            params = model["vars"]["params"]
        for s in range(2):
            own = rng.fold(rng.rows(rng.fold(KEY, n // 4), 4)[n % 4], s)
            q = torch.arange(4) if views is None else rng.randint(own, 0, 4, views)
            copies = torch.stack([torch.rot90(x[n], int(k), (1, 2)) for k in q])

            def loss(p, copies=copies, q=q):
                z = t.apply({**model["vars"], "params": p}, copies).features
                return F.cross_entropy(z @ head["weight"].T + head["bias"], q)

            params = sgd_by_hand(loss, params, 0.1)
        want.append(t.apply({**model["vars"], "params": params}, x[n : n + 1]).logits[0])
    torch.testing.assert_close(torch.cat(got), torch.stack(want), rtol=1e-4, atol=1e-5)
    if online:
        assert not set(state["params"]) & t.head
        assert gap(state["params"], tree.drop(params, t.head)) < 1e-5
    else:
        assert state == {}


@pytest.mark.parametrize("online", [True, False])
def test_ttt_serves_alike_on_serial_and_vmap(online):
    a, b = served(FedTTT(work=SMALL, personal_work=SMALL), TTT(online=online, opt=SGD(lr=0.05)))
    assert agree(a, b)


def test_ttt_refuses_by_name():
    t, _, model = deployed()
    assert TTT().refusal(t, model) == (
        "TTT needs rotation in the deployed model, which has only vars; set method=fedttt"
    )
    oblong = Task(MODELS["cnn-plain"], (3, 10, 12), CLASSES)
    assert "square images" in (TTT().refusal(oblong, model) or "")
    with pytest.raises(ValueError, match="square images"):
        FedTTT().init_server(oblong, 2, KEY)


# --- FedTTT ---------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("model", ["cnn-batch", "mlp-dropout"])
def test_fedttt_with_weight_zero_is_fedavg_bit_for_bit(model):
    a = fitted(FedAvg(work=SMALL), rounds=2, model=model)[2]
    b = fitted(FedTTT(work=SMALL, weight=0.0), rounds=2, model=model)[2]
    assert equal(a.server["vars"], b.server["vars"])
    assert not equal(
        a.server["vars"], fitted(FedTTT(work=SMALL, personal_work=SMALL), rounds=2, model=model)[2].server["vars"]
    )


def test_fedttt_keeps_its_rotation_head_at_home_and_deploys_it():
    worker, _, state = fitted(FedTTT(work=SMALL, personal_work=SMALL), rounds=2, cohort=6)
    assert not [p for p in state.cost["message"] if "rotation" in p["name"]]
    assert set(state.mine) == {"rotation"}
    assert not torch.equal(state.mine["rotation"]["weight"][0], state.mine["rotation"]["weight"][1])
    live = worker.method.deploy(
        worker.task, worker.method.download(worker.task, state.server), tree.take(state.mine, 0)
    )
    assert TTT().refusal(worker.task, live) is None


def test_fedttt_turns_the_augmented_image_so_that_flips_do_not_spoil_labels():
    """With a flip after the turn, a left turn and a right turn of a symmetric world could not be told apart."""
    t = Task(MODELS["mlp-dropout"], (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3, augment=FlipCrop(pad=0))
    seen, forward = [], t.normalise
    t.normalise = lambda x: seen.append(x) or forward(x)
    x, y = images(8)
    FedTTT().loss(t, joined(t.init(KEY), {"rotation": rotation_head(t)}), {"x": x, "y": y}, KEY)
    flipped = t.augment.views(x, rng.fold(KEY, "augment"))
    upright, rotated = seen
    assert torch.equal(upright, flipped)
    assert torch.equal(rotated, turned(flipped, rng.randint(rng.fold(KEY, "turn"), 0, 4, 8)))


def test_fedttt_turned_pass_is_in_train_mode_but_for_dropout():
    t = task("cnn-batch")
    vars, (x, y) = t.init(KEY), images(8)
    quarters = rng.randint(rng.fold(KEY, "turn"), 0, 4, 8)
    z = t.apply(vars, turned(x, quarters), "train").features
    head = rotation_head(t)
    want = F.cross_entropy(z @ head["weight"].T + head["bias"], quarters)
    batch = {"x": x, "y": y}
    both, _ = FedTTT().loss(t, joined(vars, {"rotation": head}), batch, KEY)
    torch.testing.assert_close(both - t.loss(vars, batch, KEY)[0], want)


def test_fedttt_settles_on_a_personal_model_by_one_more_joint_phase():
    method = FedTTT(work=SMALL, personal_work=SMALL)
    t, own = task(), client_data(shards(), 0)
    down, mine = {"vars": t.init(rng.key(0))}, method.init_client(t, 0, rng.key(0))
    live = method.deploy(t, down, method.finish_personal(t, down, mine, own, KEY))
    up, new = method.client(t, down, mine, own, KEY)  # the same work, as personal_work = work here
    assert gap(live["vars"], tree.add(down["vars"], up["delta"])) < 1e-6
    assert equal(live["rotation"], new["rotation"])
    assert gap(live["vars"]["params"], down["vars"]["params"]) > 1e-3
    still = FedTTT(personal_work=Work(epochs=0))
    assert equal(still.deploy(t, down, still.finish_personal(t, down, mine, own, KEY)), {**down, **mine})
    unturned = FedTTT(weight=0.0, personal_work=SMALL)
    tuned = FineTune(opt=unturned.opt, work=SMALL)._tune(
        t, lambda m, x, mode, key: t.apply(m["vars"], x, mode, key), down, own, None, KEY
    )
    assert (
        gap(unturned.finish_personal(t, down, mine, own, KEY)["vars"], tuned["vars"]) < 1e-6
    )  # without the turns: FedAvg+FT


# --- TSA ------------------------------------------------------------------------------------------------------------


def own_head(t, seed=4):
    head = t.init(rng.key(seed))["params"]
    return {"weight": head[t.head_weight], "bias": head[t.head_bias]}


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_tsa_with_equal_heads_is_no_adaptation(per):
    t, predict, model = deployed()
    model["head"] = own_head(t, 0)
    x, _ = images(8)
    got = TSA(per=per).step(t, predict, model, {}, x, KEY)[0]
    torch.testing.assert_close(got, predict(model, x).logits, rtol=1e-4, atol=1e-5)


def test_tsa_without_steps_is_the_mean_of_both_heads_and_by_hand_with_one():
    t, predict, model = deployed()
    model["head"] = own_head(t)
    x, _ = images(8)
    out = predict(model, x)
    both = torch.stack((out.logits, out.features @ model["head"]["weight"].T + model["head"]["bias"]))
    torch.testing.assert_close(TSA(steps=0).step(t, predict, model, {}, x, KEY)[0], both.mean(0))
    one = TSA(steps=1, opt=SGD(lr=5.0))
    w = torch.zeros(2, requires_grad=True)
    mixes = []
    for i in range(2):
        seen = predict(model, one._view(x, rng.fold(KEY, i)))
        e = w.softmax(0)
        personal = seen.features @ model["head"]["weight"].T + model["head"]["bias"]
        mixes.append((e[0] * seen.logits + e[1] * personal).softmax(-1))
    (-F.cosine_similarity(*mixes, dim=-1).mean()).backward()
    e = (-5.0 * w.grad).softmax(0)
    got = one.step(t, predict, model, {}, x, KEY)[0]
    torch.testing.assert_close(got, e[0] * both[0] + e[1] * both[1], rtol=1e-4, atol=1e-5)


def test_tsa_prefers_the_head_that_the_views_do_not_move_and_stops_at_its_floor():
    t, predict, model = deployed()
    model["head"] = {"weight": torch.zeros(CLASSES, t.dim), "bias": torch.arange(5.0)}  # says the same of every view
    params = {**model["vars"]["params"], t.head_weight: 30 * model["vars"]["params"][t.head_weight]}
    model["vars"] = {**model["vars"], "params": params}
    x, _ = images(16)
    tsa = TSA(steps=200)
    first, second = (
        torch.stack((p.logits, model["head"]["bias"].expand(16, 5)))
        for p in (predict(model, tsa._view(x, rng.fold(KEY, i))) for i in range(2))
    )
    share = tsa._learn(first, second).softmax(-1)[0]
    assert float(share[1]) > 0.9
    assert 0.02 < float(share[0]) < 0.05  # the last update before it stopped went just below the floor
    singly = TSA(per="sample", steps=5)._learn(first, second)
    alone = torch.cat([TSA(steps=5)._learn(first[:, i : i + 1], second[:, i : i + 1]) for i in range(16)])
    torch.testing.assert_close(singly, alone, rtol=1e-3, atol=1e-4)  # one weight per sample is a batch of one


def test_tsa_under_vmap_and_views_stay_in_range():
    t, predict, model = deployed()
    model["head"] = own_head(t)
    x, _ = images(8)
    view = TSA()._view(x, KEY)
    assert float(view.min()) >= 0 and float(view.max()) <= 1
    keys = rng.fold(KEY, torch.arange(2))
    alone = torch.stack([TSA().step(t, predict, model, {}, x[4 * i : 4 * i + 4], keys[i])[0] for i in range(2)])
    both = vmap(lambda x, k: TSA().step(t, predict, model, {}, x, k)[0])(x.view(2, 4, 3, 10, 10), keys)
    torch.testing.assert_close(both, alone, rtol=1e-4, atol=1e-5)


# --- kNN-Per --------------------------------------------------------------------------------------------------------


def remembering(capacity=64):
    t, predict, model = deployed()
    own = client_data(shards(), 0)
    return t, predict, Memory(capacity).run(t, predict, model, own, KEY), own


def answered(adapter, t, predict, model, x):
    return adapter.step(t, predict, model, adapter.init(t, model), x, KEY)[0]


def test_memory_holds_the_clients_features_and_labels():
    t, predict, model, own = remembering()
    z = predict(model, own["x"][own["rows"]]).features
    memory, n = model["memory"], int(own["n"])
    assert int(memory["n"]) == n == 40
    assert memory["z"].shape == (64, t.dim)
    stored = {(int(y), *v.tolist()) for v, y in zip(memory["z"][:n], memory["y"][:n], strict=True)}
    near = [
        min(np.abs(np.array(s) - np.array((int(y), *v.tolist()))).max() for s in stored)
        for v, y in zip(z, own["y"][own["rows"]], strict=True)
    ]
    assert max(near) < 1e-4
    small = Memory(8).run(t, predict, {"vars": model["vars"]}, own, KEY)["memory"]
    assert int(small["n"]) == 8 and small["z"].shape == (8, t.dim)


def test_knn_with_lam_zero_is_the_model():
    t, predict, model, _ = remembering()
    x, _ = images(9, seed=3)
    got = answered(KNNPer(lam=0.0), t, predict, model, x)
    torch.testing.assert_close(got, predict(model, x).logits.log_softmax(-1), rtol=1e-4, atol=1e-5)


def test_one_neighbour_of_a_training_sample_is_itself():
    t, predict, model, own = remembering()
    x, y = own["x"][own["rows"]], own["y"][own["rows"]]
    got = answered(KNNPer(k=1, lam=1.0), t, predict, model, x)
    assert torch.equal(got.argmax(-1), y)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_knn_vote_by_hand(variant):
    t, predict, model, own = remembering()
    x, _ = images(3, seed=5)
    adapter = KNNPer(k=4, sigma=0.7, lam=0.3, variant=variant)
    got = answered(adapter, t, predict, model, x).exp()
    for i, out in enumerate(zip(*predict(model, x)[:2], strict=True)):
        logits, z = out
        pool = sorted(
            (float((z - m).norm()), int(y))
            for m, y in zip(model["memory"]["z"][:40], model["memory"]["y"][:40], strict=True)
        )[:4]
        vote = torch.zeros(CLASSES)
        for d, y in pool:
            vote[y] += np.exp(-d / 0.7) if variant == "paper" else np.exp(-d * d / (t.dim * 0.7))
        want = 0.3 * vote / vote.sum() + 0.7 * logits.softmax(-1)
        torch.testing.assert_close(got[i], want, rtol=1e-3, atol=1e-5)


def test_knn_with_few_or_no_memories_stays_finite():
    t, predict, model, own = remembering()
    x, _ = images(3)
    few = {**model, "memory": {**model["memory"], "n": torch.tensor(2)}}
    probs = answered(KNNPer(lam=1.0), t, predict, few, x).exp()
    torch.testing.assert_close(probs.sum(-1), torch.ones(3))
    none = {**model, "memory": {**model["memory"], "n": torch.tensor(0)}}
    got = answered(KNNPer(lam=1.0), t, predict, none, x)
    torch.testing.assert_close(got, predict(model, x).logits.log_softmax(-1), rtol=1e-4, atol=1e-5)


def left_out(t, predict, model, own, adapter, tune):
    """The best of the grid by plain loops: every one of the first stored examples, answered without itself."""
    z, y = model["memory"]["z"], model["memory"]["y"]
    n, right = int(model["memory"]["n"]), np.zeros(adapter.grid)
    inputs = own["x"][own["rows"]]
    features = predict(model, inputs).features
    for i in range(min(n, tune)):
        at = int((features - z[i]).norm(dim=-1).argmin())  # which of the client's examples this is
        logits = predict(model, inputs[at : at + 1]).logits[0]
        pool = sorted((float((z[i] - z[j]).norm()), int(y[j])) for j in range(n) if j != i)[: adapter.k]
        vote = torch.zeros(CLASSES)
        for d, label in pool:
            vote[label] += np.exp(-d / adapter.sigma)
        for g in range(adapter.grid):
            lam = g / (adapter.grid - 1)
            mixed = lam * vote / vote.sum() + (1 - lam) * logits.softmax(-1)
            right[g] += int(mixed.argmax()) == int(y[i])
    return int(right.argmax()) / (adapter.grid - 1), right


@pytest.mark.parametrize("tune", [12, 100])
def test_knn_tunes_its_weight_by_leaving_stored_examples_out(tune):
    worker, engine, state = fitted(FedAvg(work=SMALL), rounds=2)
    t, predict, model = worker.task, worker.predict(), {"vars": state.server["vars"]}
    own, adapter = client_data(engine.shards, 0), KNNPer(k=3, sigma=0.5, grid=11)
    model = Memory(64, tune).run(t, predict, model, own, KEY)
    want, right = left_out(t, predict, model, own, adapter, tune)
    assert len(set(right)) > 1 and 0 < want < 1  # the grid matters here
    torch.testing.assert_close(adapter.init(t, model)["lam"], torch.tensor(want))
    fixed = KNNPer(k=3, sigma=0.5, lam=want)
    x, _ = images(9, seed=3)
    assert torch.equal(answered(adapter, t, predict, model, x), answered(fixed, t, predict, model, x))


def test_knn_trusts_a_model_that_is_right_and_the_neighbours_of_one_that_is_not():
    t, _, model, _ = remembering()
    asked, n = model["memory"]["asked"], int(model["memory"]["n"])
    sure = 20.0 * F.one_hot(asked["y"], CLASSES)
    for logits, votes, lam in ((sure, asked["votes"], 0.0), (-sure, asked["y"][:, None].expand(-1, 10), 0.5)):
        memory = {**model["memory"], "asked": {**asked, "logits": logits.float(), "votes": votes}}
        got = float(KNNPer().init(t, {**model, "memory": memory})["lam"])
        assert got == lam if lam == 0 else 0 < got <= lam  # the smallest of the weights that are right
    alone = {**model["memory"], "n": torch.tensor(1)}
    assert n > 1 and float(KNNPer().init(t, {**model, "memory": alone})["lam"]) == 0.0


def test_memory_of_a_padded_client_is_that_of_an_unpadded_one():
    t, predict, model = deployed()
    data = shards()
    own = client_data(data, 2)
    wide = {**own, "rows": F.pad(own["rows"], (0, 9)), "ragged": torch.tensor(True)}
    a, b = (Memory(32, 20, 5).run(t, predict, model, d, KEY)["memory"] for d in (own, wide))
    n = int(own["n"])
    assert n == int(a["n"]) == int(b["n"]) == 16
    assert gap({k: a[k][:n] for k in "zy"}, {k: b[k][:n] for k in "zy"}) < 1e-6
    assert gap({k: v[:n] for k, v in a["asked"].items()}, {k: v[:n] for k, v in b["asked"].items()}) < 1e-6
    lams = [float(KNNPer(k=5).init(t, {**model, "memory": m})["lam"]) for m in (a, b)]
    assert lams[0] == lams[1]


def test_knn_serves_alike_on_serial_and_vmap_over_uneven_clients():
    a, b = served(FedAvg(work=SMALL), KNNPer(k=3), Memory(32))
    assert agree(a, b)
    assert KNNPer().refusal(*deployed()[::2]) == (
        "KNNPer needs memory in the deployed model, which has only vars; set personal=memory"
    )
    t, _, model, _ = remembering()
    assert "k=11" in KNNPer(k=11).refusal(t, model)
    assert KNNPer(k=11, lam=0.5).refusal(t, model) is None
