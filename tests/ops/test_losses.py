"""Losses, counts and means over real rows, against plain numpy."""

import numpy as np
import pytest
import torch

from acclimate.core import SGD, Out, Work, rng, tree
from acclimate.core.optim import StepDecay
from acclimate.ops import losses, masks, nets, params, prototypes, unlabelled
from support import client_data, gap, shards, task

LOGITS = torch.tensor([[2.0, 0.0, -1.0], [0.5, 0.5, 3.0], [1.0, 1.0, 1.0]])


def softmax(z):
    z = np.asarray(z, dtype=float)
    e = np.exp(z - z.max(-1, keepdims=True))
    return e / e.sum(-1, keepdims=True)


def padded(client=5, pad=4):
    """A client's data with rows that are not real."""
    own = client_data(shards(), client)
    return own, {**own, "rows": torch.cat((own["rows"], own["rows"][:1].expand(pad)))}


def test_entropy_in_nats():
    p = softmax(LOGITS)
    np.testing.assert_allclose(losses.entropy(LOGITS), -(p * np.log(p)).sum(-1), rtol=1e-5)
    assert float(losses.entropy(LOGITS)[2]) == pytest.approx(np.log(3))


def test_counts_and_means_leave_padding_out():
    data = {"y": torch.tensor([0, 2, 2, 1, 3]), "rows": torch.tensor([1, 2, 3, 0, 0]), "n": torch.tensor(3)}
    assert losses.class_counts(data, 5).tolist() == [0, 1, 2, 0, 0]
    assert losses.class_counts(data, 5).dtype == torch.float32
    rows, real = torch.arange(12.0).reshape(4, 3), torch.tensor([True, False, True, False])
    assert masks.mean_of(rows, real).tolist() == [3.0, 4.0, 5.0]
    assert masks.mean_of(rows, real & False).tolist() == [0.0, 0.0, 0.0]
    assert masks.mean_of(rows, torch.arange(4) == 3).tolist() == [9.0, 10.0, 11.0]
    assert masks.real_rows(4, torch.tensor(2)).tolist() == [True, True, False, False]
    assert masks.own_share(torch.tensor([[1.0, 2.0], [3.0, 4.0]]), torch.tensor(1)).tolist() == [3.0, 4.0]


def test_a_mean_over_rows_does_not_look_at_others_that_are_no_numbers():
    rows, real = torch.tensor([[1.0, 2.0], [3.0, 6.0], [torch.nan, torch.inf]]), torch.tensor([True, True, False])
    assert masks.mean_of(rows, real).tolist() == [2.0, 4.0]
    slope = torch.func.grad(lambda r: masks.mean_of(r, real).sum())(rows)
    assert slope.tolist() == [[0.5, 0.5], [0.5, 0.5], [0.0, 0.0]]
    means, counts = prototypes.class_means(rows, torch.tensor([0, 1, 1]), torch.tensor(2), 2)
    assert means.tolist() == [[1.0, 2.0], [3.0, 6.0]] and counts.tolist() == [1.0, 1.0]


def test_balanced_softmax_by_hand():
    counts, y = torch.tensor([0.0, 9.0, 3.0]), torch.tensor([0, 1, 2])
    p = softmax(LOGITS.numpy() + np.log([1, 10, 4]))
    want = -np.log([p[0, 0], p[1, 1], p[2, 2]]).mean()
    assert float(losses.balanced_softmax(LOGITS, y, counts)) == pytest.approx(want, rel=1e-5)


def test_the_local_loss_is_the_tasks_or_balanced_in_train_mode():
    t, (own, _) = task("mlp-dropout"), padded()
    vars, key = t.init(rng.key(0)), rng.key(3)
    batch = {"x": own["x"][own["rows"]], "y": own["y"][own["rows"]]}
    assert losses.local_loss(t, own, False) == t.loss
    value, buffers = losses.local_loss(t, own, True)(vars, batch, key)
    out = t.apply(vars, batch["x"], "train", key)
    want = losses.balanced_softmax(out.logits, batch["y"], losses.class_counts(own, t.num_classes))
    assert torch.equal(value, want) and gap(buffers, out.buffers) == 0 and gap(buffers, vars["buffers"]) > 0


def test_a_proximal_term_is_half_the_weighted_squared_distance():
    def plain(vars, batch, key):
        return torch.tensor(5.0), {"b": 1}

    a = {"params": {"w": torch.tensor([1.0, 4.0]), "v": torch.tensor(2.0)}}
    b = {"params": {"w": torch.tensor([0.0, 1.0]), "v": torch.tensor(0.0)}}
    value, buffers = losses.proximal(plain, b, 0.6)(a, {}, rng.key(0))
    assert float(value) == pytest.approx(5 + 0.3 * (1 + 9 + 4)) and buffers == {"b": 1}


@pytest.mark.parametrize("chunk", [256, 4, 1])
def test_the_local_risk_is_the_mean_over_real_rows_in_eval_mode(chunk):
    t, (own, wide) = task("cnn-batch"), padded()
    vars = t.init(rng.key(0))
    logits, y = t.apply(vars, own["x"][own["rows"]]).logits.numpy(), own["y"][own["rows"]].numpy()
    want = -np.log(softmax(logits)[np.arange(len(y)), y]).mean()
    for data in (own, wide):
        assert float(losses.local_risk(t, vars, data, chunk)) == pytest.approx(want, rel=1e-5)


def test_a_sharp_loss_is_the_loss_uphill_and_its_gradient_the_one_there():
    def bowl(vars, batch, key):
        return 0.5 * (vars["params"]["w"] ** 2 * torch.tensor([1.0, 4.0])).sum(), {"seen": vars["params"]["w"]}

    w, rho = np.array([3.0, 1.0]), 0.5
    slope = w * [1, 4]
    there = w + rho * slope / np.linalg.norm(slope)
    vars = {"params": {"w": torch.tensor(w, dtype=torch.float32)}, "buffers": {}}
    value, buffers = losses.sharp(bowl, rho)(vars, {}, rng.key(0))
    assert float(value) == pytest.approx(0.5 * (there**2 * [1, 4]).sum(), rel=1e-5)
    assert buffers["seen"].tolist() == w.tolist()
    grads = torch.func.grad(lambda p: losses.sharp(bowl, rho)({"params": p, "buffers": {}}, {}, rng.key(0))[0])
    np.testing.assert_allclose(grads(vars["params"])["w"], there * [1, 4], rtol=1e-5)


# small networks


def test_a_layer_is_drawn_within_one_over_the_root_of_its_inputs():
    net = nets.init(rng.key(0), (400, 300, 2))
    assert {k: tuple(v["weight"].shape) for k, v in net.items()} == {"0": (300, 400), "1": (2, 300)}
    for name, inputs in (("0", 400), ("1", 300)):
        for kind, tight in (("weight", 0.05), ("bias", 0.9 if name == "1" else 0.1)):
            bound, drawn = inputs**-0.5, net[name][kind]
            assert drawn.abs().max() <= bound and drawn.abs().max() > bound * (1 - tight)
    assert net["0"]["weight"].min() < 0 < net["0"]["weight"].max()
    assert float(net["0"]["weight"].std()) == pytest.approx(400**-0.5 / 3**0.5, rel=0.02)
    assert not torch.equal(net["0"]["weight"][0, :300], net["0"]["bias"])


def test_relu_lies_between_layers_and_nowhere_else():
    g = torch.Generator().manual_seed(0)
    sizes = (3, 4, 4, 2)
    net = {
        str(i): {"weight": torch.randn(b, a, generator=g), "bias": torch.randn(b, generator=g)}
        for i, (a, b) in enumerate(zip(sizes, sizes[1:], strict=False))
    }
    x = torch.randn(5, 3, generator=g)
    want = x.numpy()
    for i in range(3):
        want = (np.maximum(want, 0) if i else want) @ net[str(i)]["weight"].numpy().T + net[str(i)]["bias"].numpy()
    np.testing.assert_allclose(nets.apply(net, x), want, rtol=1e-4, atol=1e-5)
    assert torch.equal(nets.linear({"weight": net["0"]["weight"]}, x), x @ net["0"]["weight"].T)


def test_a_head_is_taken_out_and_put_back():
    t = task("cnn-batch")
    vars = t.init(rng.key(0))
    head = nets.head_of(t, vars)
    assert head["weight"] is vars["params"][t.head_weight] and head["bias"] is vars["params"][t.head_bias]
    other = tree.scale(head, 2.0)
    changed = nets.with_head(t, vars, other)
    assert gap(nets.head_of(t, changed), other) == 0
    rest = {k for k in vars["params"] if k not in (t.head_weight, t.head_bias)}
    assert gap(tree.pick(changed["params"], rest), tree.pick(vars["params"], rest)) == 0
    bare = {**vars, "params": tree.drop(vars["params"], (t.head_bias,))}
    assert list(nets.head_of(t, bare)) == ["weight"]


@pytest.mark.parametrize("chunk", [256, 4])
def test_features_of_all_rows_in_eval_mode(chunk):
    t, (own, wide) = task("mlp-dropout"), padded()
    vars = t.init(rng.key(0))
    vars = {**vars, "params": {k: p.clone().requires_grad_() for k, p in vars["params"].items()}}
    got = nets.features_of(t, vars, wide, chunk)
    torch.testing.assert_close(got, t.apply(vars, wide["x"][wide["rows"]]).features.detach())
    assert not got.requires_grad
    n = int(own["n"])
    torch.testing.assert_close(nets.mean_feature(got, own["n"]), got[:n].mean(0))
    data = nets.on_features(wide, got)
    assert data["x"] is got and torch.equal(data["y"], wide["y"][wide["rows"]])
    assert data["rows"].tolist() == list(range(n + 4)) and data["n"] is wide["n"]


def test_a_head_is_fitted_by_gradient_steps_on_features():
    own, _ = padded()
    g, n = torch.Generator().manual_seed(1), int(own["n"])
    features, head = torch.randn(n, 3, generator=g), {"weight": torch.zeros(5, 3), "bias": torch.zeros(5)}
    got = nets.fit_head(head, features, own, SGD(lr=0.5), Work(iterations=1, batch=n), rng.key(0))
    y = np.eye(5)[own["y"][own["rows"]].numpy()]
    slope = softmax(np.zeros((n, 5))) - y
    np.testing.assert_allclose(got["weight"], -0.5 * slope.T @ features.numpy() / n, atol=1e-5)
    np.testing.assert_allclose(got["bias"], -0.5 * slope.mean(0), atol=1e-5)


# parameters in groups


def test_each_group_has_its_own_rate_schedule_and_bound():
    start = {"a": {"w": torch.tensor([1.0, 2.0])}, "b": {"w": torch.tensor([3.0])}}
    grads = {"a": {"w": torch.tensor([3.0, 4.0])}, "b": {"w": torch.tensor([0.5])}}
    opt = params.PerGroup(groups=(("a", SGD(lr=0.1)), ("b", SGD(lr=1.0))), clip=1.0)
    new, state = opt.update(grads, opt.init(start), start, torch.tensor([2.0, 3.0]))
    np.testing.assert_allclose(new["a"]["w"], [1 - 0.2 * 0.6, 2 - 0.2 * 0.8], rtol=1e-5)
    np.testing.assert_allclose(new["b"]["w"], [3 - 3 * 0.5], rtol=1e-5)  # within the bound
    assert set(state) == {"a", "b"}
    free = params.PerGroup(groups=opt.groups)
    assert free.update(grads, free.init(start), start)[0]["a"]["w"].tolist() == pytest.approx([0.7, 1.6])
    decay = SGD(schedule=StepDecay(per="step", every=1, gamma=0.5))
    scale = params.PerGroup(groups=(("a", SGD()), ("b", decay))).scale(torch.tensor(9), torch.arange(3))
    assert scale.tolist() == [[1.0, 1.0, 1.0], [1.0, 0.5, 0.25]]
    assert opt.scale(torch.tensor(0), torch.arange(4)).dtype == torch.float32


def test_nets_beside_a_model_are_trained_with_it_and_bounded_each_for_itself():
    own, _ = padded()
    n = int(own["n"])
    model = {"params": {"w": torch.tensor([1.0, 0.0])}, "buffers": {"b": torch.tensor(7.0)}}
    nets_ = {"vars": model, "net": {"v": torch.tensor([2.0])}}

    def loss(vars, batch, key):
        p = vars["params"]
        return 30.0 * p["model"]["w"].sum() + 0.5 * p["net"]["v"].sum(), vars["buffers"]

    work = Work(iterations=1, batch=n, clip=2.0)
    rates = {"model": SGD(lr=1.0), "net": SGD(lr=0.1)}
    each = params.train_jointly(loss, nets_, own, rates, work, rng.key(0))
    np.testing.assert_allclose(each["vars"]["params"]["w"], [1 - 2**0.5, -(2**0.5)], rtol=1e-4)
    np.testing.assert_allclose(each["net"]["v"], [2 - 0.05], rtol=1e-5)
    assert each["vars"]["buffers"]["b"].item() == 7.0 and set(each) == {"vars", "net"}
    both = params.train_jointly(loss, nets_, own, SGD(lr=1.0), work, rng.key(0))
    size = (2 * 30.0**2 + 0.5**2) ** 0.5
    np.testing.assert_allclose(both["net"]["v"], [2 - 2 * 0.5 / size], rtol=1e-5)


def test_variables_are_split_and_merged_by_name():
    vars = {"params": {"a": 1, "b": 2}, "buffers": {"c": 3, "d": 4}}
    names = frozenset({"b", "c"})
    assert params.shared(vars, names) == {"params": {"a": 1}, "buffers": {"d": 4}}
    assert params.private(vars, names) == {"params": {"b": 2}, "buffers": {"c": 3}}
    assert params.merge(params.shared(vars, names), params.private(vars, names)) == vars
    assert params.with_params({"vars": vars, "x": 5}, {"b": 9}) == {
        "vars": {"params": {"a": 1, "b": 9}, "buffers": {"c": 3, "d": 4}},
        "x": 5,
    }


# without labels


def answering(weight, mode_seen):
    def predict(model, x, mode="eval", key=None):
        mode_seen.append(mode)
        return Out(x @ model["vars"]["params"]["w"], x, {})

    return predict, {"vars": {"params": {"w": weight}, "buffers": {}}}


def test_entropy_descent_by_hand_answers_before_the_last_step():
    modes, g = [], torch.Generator().manual_seed(0)
    w, x = torch.randn(4, 3, generator=g), torch.randn(6, 4, generator=g)
    predict, model = answering(w, modes)

    def down(w, lr=0.5):
        p = softmax(x.numpy() @ w)
        h = -(p * np.log(p)).sum(-1, keepdims=True)
        return w - lr * x.numpy().T @ (-p * (np.log(p) + h)) / len(p)

    once, opt = down(w.double().numpy()), SGD(lr=0.5)
    state = {"params": {"w": w}, "opt": opt.init({"w": w})}
    logits, new = unlabelled.descend(predict, model, state, x, opt.update, 2)
    np.testing.assert_allclose(new["params"]["w"], down(once), atol=1e-5)
    np.testing.assert_allclose(logits, x.numpy() @ once, atol=1e-5)
    assert set(modes) == {"still"}


def test_what_is_tuned_is_the_norm_layers_or_all():
    t = task("cnn-batch")
    model = {"vars": t.init(rng.key(0))}
    assert set(unlabelled.tuned_of(t, model, "norm")) == t.norm & set(t.params) != set()
    assert set(unlabelled.tuned_of(t, model, "all")) == set(t.params)


def test_marginal_entropy_is_that_of_the_mean_prediction():
    p = softmax(LOGITS[:2]).mean(0)
    assert float(unlabelled.marginal_entropy(LOGITS[:2])) == pytest.approx(-(p * np.log(p)).sum(), rel=1e-5)


def test_a_whole_stream_is_answered_in_chunks():
    predict, model = answering(torch.eye(3), [])
    x = torch.randn(7, 3, generator=torch.Generator().manual_seed(0))
    for chunk in (256, 3):
        features, logits = unlabelled.answers(predict, model, x, chunk)
        assert torch.equal(features, x) and torch.equal(logits, x @ torch.eye(3))


def test_a_stream_is_tuned_on_over_its_real_rows():
    x = torch.tensor([[1.0], [3.0], [100.0]])
    real = torch.tensor([True, True, False])
    vars = {"params": {"w": torch.tensor([0.0])}, "buffers": {}}
    marks = torch.tensor([10, 20, 30])
    met = []

    def loss(vars, batch, key):
        met.append(sorted(batch["y"].tolist()))
        return (batch["x"][:, 0] * vars["params"]["w"]).mean(), {}

    once = marks, SGD(lr=1.0), Work(iterations=1, batch=2), rng.key(0)
    got = unlabelled.tune(loss, vars, x, real, *once)
    assert got["params"]["w"].tolist() == [-2.0] and met == [[10, 20]]
    one = unlabelled.tune(loss, vars, x, real & (marks < 15), *once)
    assert one["params"]["w"].tolist() == [-1.0]
    later = SGD(lr=1.0, schedule=StepDecay(every=1, gamma=0.5))  # a stream is served in the first round, so to speak
    assert unlabelled.tune(loss, vars, x, real, marks, later, *once[2:])["params"]["w"].tolist() == [-2.0]
