"""The baselines of FedTTA's comparison: each by the equalities of its own paper."""

import itertools
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.distributions import Normal, kl_divergence
from torch.func import grad

from acclimate.adapters.odpfl import ODPFL as Describe
from acclimate.core import SGD, Protocol, Work, rng, tree
from acclimate.methods import FedAvg
from acclimate.methods.afl import AFL, project
from acclimate.methods.fedadg import FedADG
from acclimate.methods.fedsr import FedSR, divergence
from acclimate.methods.odpfl import ODPFL
from acclimate.methods.pfl import PFL
from acclimate.ops import hyper, nets
from acclimate.ops.losses import local_risk
from support import SMALL, client_data, equal, fitted, gap, images, shards, task

KEY = rng.key(5)
LEAST, LEARNED = AFL(work=SMALL), ODPFL(work=SMALL, hidden=8, size=4)


# AFL


@pytest.mark.parametrize("seed", range(4))
def test_the_projection_is_the_nearest_point_of_the_simplex(seed):
    v = 2 * rng.normal(rng.key(seed), 5)
    ours = project(v)
    assert float(ours.sum()) == pytest.approx(1.0, abs=1e-6) and bool((ours >= 0).all())
    grid = torch.tensor([p for p in itertools.product(range(11), repeat=5) if sum(p) == 10]) / 10.0
    assert float((ours - v).norm()) <= float((grid - v).norm(dim=1).min()) + 1e-6
    assert gap(project(ours), ours) < 1e-6


def test_without_mixture_steps_it_is_the_uniform_mean():
    a, b = fitted(replace(LEAST, lambda_lr=0.0))[2], fitted(FedAvg(work=SMALL, weights="uniform"))[2]
    assert gap(a.server["vars"], b.server["vars"]) < 1e-5


def test_weight_moves_to_the_client_with_the_largest_loss():
    method, t = replace(LEAST, lambda_lr=0.3), task("cnn-plain")
    server = method.init_server(t, 3, rng.key(0))
    total = {"delta": tree.zeros(server["vars"]), "loss": torch.tensor([0.2, 1.2]), "id": torch.tensor([2, 0])}
    new = method.server(t, server, total, KEY)["mixture"]
    # two of three clients: losses count 3/2; 1/3 + 0.3 * 1.5 * (1.2, 0, 0.2) = (0.8733, 0.3333, 0.4233), less 0.21 each
    assert new.tolist() == pytest.approx([0.6633, 0.1233, 0.2133], abs=1e-4)
    up = method.client(t, method.download(t, {**server, "mixture": new}), {}, client_data(shards(), 1), KEY)[0]
    assert float(up["share"]) == pytest.approx(float(new[1]))


def test_a_clients_risk_is_its_mean_loss_without_padding():
    t, data = task("cnn-plain"), shards()
    vars, own = t.init(rng.key(0)), client_data(data, 2)
    rows = data.own(2)
    expected = F.cross_entropy(t.apply(vars, data.x[rows]).logits, data.y[rows])
    assert float(local_risk(t, vars, own, chunk=5)) == pytest.approx(float(expected), abs=1e-6)
    padded = {**own, "rows": torch.cat([own["rows"], own["rows"][:7]])}
    assert float(local_risk(t, vars, padded)) == pytest.approx(float(expected), abs=1e-6)


# FedSR


def test_the_divergence_is_that_of_two_gaussians():
    a, b, m = (rng.normal(rng.key(s), 4, 6) for s in range(3))
    sigma, other = a.exp(), F.softplus(b) + 1e-6
    expected = kl_divergence(Normal(m, sigma), Normal(a, other)).sum(-1)
    assert gap(divergence(m, sigma, a, b), expected) < 1e-4


def test_fedsr_is_fedavg_where_the_representation_is_certain_and_free():
    method, t = FedSR(l2=0.0, cmi=0.0, work=SMALL), task("cnn-plain")
    down = method.init_server(t, 1, rng.key(0))
    down["extra"]["sigma"] = {
        "weight": tree.zeros(down["extra"]["sigma"]["weight"]),
        "bias": torch.full((t.dim,), -40.0),
    }
    data = client_data(shards(), 0)
    ours = method.client(t, down, {}, data, KEY)[0]["delta"]
    plain = FedAvg(work=SMALL).client(t, {"vars": down["vars"]}, {}, data, KEY)[0]["delta"]
    assert gap(ours, plain) < 1e-4


def test_fedsrs_penalties_shrink_and_gather_the_representation():
    x, y = images(40)

    def looked(method):
        worker, _, state = fitted(replace(method, work=Work(epochs=3, batch=8)), model="cnn-plain", rounds=4, cohort=6)
        return worker.task.apply(state.server["vars"], x).features

    plain, short = looked(FedSR(l2=0.0, cmi=0.0)), looked(FedSR(l2=0.1, cmi=0.0))
    assert float(short.norm(dim=1).mean()) < 0.8 * float(plain.norm(dim=1).mean())


# FedADG


def test_each_of_fedadgs_losses_moves_its_own_net_alone():
    method, t = FedADG(weight=1.0, hidden=8), task("cnn-plain")
    down = method.init_server(t, 1, rng.key(0))
    both = {"params": {"model": down["vars"]["params"], "adversary": down["adversary"]}, "buffers": {}}
    x, y = images(6)
    batch = {"x": x, "y": y}
    ours = grad(lambda p: method.objective(t)({**both, "params": p}, batch, KEY)[0])(both["params"])
    label = F.one_hot(y, t.num_classes).float()
    noise = rng.uniform(rng.fold(KEY, "noise"), 6, 10)
    judge, maker = down["adversary"]["discriminator"], down["adversary"]["generator"]

    def d(judge, features):
        return nets.apply(judge, torch.cat([features, label], -1))[:, 0].sigmoid()

    def f(params):
        return t.apply({"params": params, "buffers": {}}, x, "train").features

    def g(maker):
        return nets.apply(maker, torch.cat([noise, label], -1))

    model = grad(lambda p: ((1 - d(judge, f(p))) ** 2).mean())(down["vars"]["params"])
    generator = grad(lambda m: ((1 - d(judge, g(m))) ** 2).mean())(maker)
    real, made = f(down["vars"]["params"]), g(maker)
    discriminator = grad(lambda j: -(d(j, made) ** 2 + (1 - d(j, real)) ** 2).mean())(judge)
    assert gap(ours["model"], model) < 1e-6
    assert gap(ours["adversary"], {"generator": generator, "discriminator": discriminator}) < 1e-6


def test_fedadg_without_its_adversary_is_fedavg():
    a = fitted(FedADG(weight=0.0, work=SMALL), rounds=2)[2]
    b = fitted(FedAvg(work=SMALL), rounds=2)[2]
    assert gap(a.server["vars"], b.server["vars"]) < 1e-5


# PFL-Sampled and PFL-Ensemble


def heads(state):
    return state.server["heads"]


@pytest.mark.parametrize(
    ("joins", "weights"), [("sampled", "samples"), ("ensemble", "samples"), ("ensemble", "uniform")]
)
def test_pfl_trains_as_fedper_does(joins, weights):
    worker, engine, state = fitted(PFL(joins, work=SMALL, weights=weights), cohort=6)
    _, other, fedper = fitted(FedAvg(private=("head",), work=SMALL, weights=weights), cohort=6)
    assert gap(state.server["vars"], fedper.server["vars"]) < 1e-5
    assert [h["val_accuracy"] for h in state.history] == pytest.approx([h["val_accuracy"] for h in fedper.history])
    assert gap(heads(state), state.mine["head"]) < 1e-6  # the server's copies are the clients' own


def test_the_ensembles_newcomer_answers_with_the_mean_of_all_logits():
    worker, engine, state = fitted(PFL("ensemble", work=SMALL), cohort=6)
    down = worker.method.download(worker.task, state.server)
    live = engine.join(down, 1)[0]
    x, _ = images(7, seed=3)
    each = []
    for c in range(6):
        params = {**state.server["vars"]["params"], **tree.take(heads(state), c)}
        each.append(worker.task.apply({**state.server["vars"], "params": params}, x).logits)
    assert gap(worker.predict()(live, x).logits, torch.stack(each).mean(0)) < 1e-5


def test_a_sampled_newcomer_holds_the_head_of_one_client_that_trained():
    worker, engine, state = fitted(PFL("sampled", work=SMALL), rounds=1, cohort=3)
    down = worker.method.download(worker.task, state.server)
    trained = [c for c in range(6) if float(state.server["seen"][c])]
    assert len(trained) == 3
    names = worker.task.head
    drawn = set()
    for live in engine.join(down, 20):
        own = tree.pick(live["vars"]["params"], names)
        drawn |= {c for c in range(6) if gap(own, tree.take(heads(state), c)) == 0}
    assert drawn == set(trained)


# ODPFL-HN


def test_the_description_knows_no_order_and_no_padding():
    t = task("cnn-plain")
    encoder = nets.init(rng.key(1), (hyper.inputs(t), 8, 4))
    x, _ = images(9)
    whole = hyper.describe(encoder, t, x)
    assert gap(hyper.describe(encoder, t, x.flip(0)), whole) < 1e-6
    assert gap(hyper.describe(encoder, t, torch.cat([x, x[:4]]), torch.arange(13) < 9), whole) < 1e-6


def test_the_gradients_are_those_of_the_two_exchanges():
    """Server-side backward of the difference through the hypernetwork, then client-side through the encoder."""
    method, t, data = LEARNED, task("cnn-plain"), client_data(shards(), 0)
    down = method.download(t, method.init_server(t, 1, rng.key(0)))
    up, _ = method.client(t, down, {}, data, KEY)
    pull = hyper.pull(down["hyper"], up["description"][None], tree.map(lambda m: m[None], up["missed"]))
    encoder, hypernet = (tree.map(lambda p: p.clone().requires_grad_(), down[n]) for n in ("encoder", "hyper"))
    sent = hyper.describe(encoder, t, data["x"][data["rows"]])
    received = sent.detach().requires_grad_()
    params = hyper.generate(hypernet, received)
    start = {"params": tree.map(lambda p: p.detach(), params), "buffers": down["buffers"]}
    trained = FedAvg(opt=method.opt, work=SMALL).client(t, {"vars": start}, {}, data, KEY)[0]["delta"]["params"]
    names = list(params)
    torch.autograd.backward([params[n] for n in names], [-trained[n] for n in names])
    sent.backward(received.grad)
    assert gap(pull, tree.map(lambda p: p.grad, hypernet)) < 1e-6
    assert gap(up["encoder"], tree.map(lambda p: p.grad, encoder)) < 1e-6


def test_the_hypernetwork_is_pulled_by_the_mean_of_all():
    hypernet = hyper.init(rng.key(1), {"w": torch.randn(3, 2), "b": torch.randn(3)}, 4, 5)
    descriptions, missed = torch.randn(6, 4), {"w": torch.randn(6, 3, 2), "b": torch.randn(6, 3)}
    each = [hyper.pull(hypernet, descriptions[[i]], tree.take(missed, torch.tensor([i]))) for i in range(6)]
    assert gap(hyper.pull(hypernet, descriptions, missed), tree.map(lambda *g: torch.stack(g).mean(0), *each)) < 1e-6


def test_a_bound_holds_for_each_makers_gradient_too():
    t, data, limit = task("cnn-plain"), client_data(shards(), 0), 0.01
    method = replace(LEARNED, work=replace(SMALL, clip=limit), opt=SGD(lr=1e4))  # steps as long as 100
    method = replace(method, encoder_opt=SGD(lr=1.0), hyper_opt=SGD(lr=1.0))
    server = method.init_server(t, 1, rng.key(0))
    up = method.client(t, method.download(t, server), {}, data, KEY)[0]
    total = {k: tree.map(lambda v: v[None], v) if k in ("missed", "description") else v for k, v in up.items()}
    new = method.server(t, server, total, KEY)
    for name in ("encoder", "hyper"):
        assert abs(float(tree.norm(tree.sub(new[name], server[name]))) - limit) < 1e-3 * limit


@pytest.mark.parametrize(("clip", "steps"), [("default", (0.1 * 10, 0.5 * 10)), (None, (0.1 * 1e6, None))])
def test_makers_that_miss_by_far_take_bounded_steps_by_default(clip, steps):
    method, t = ODPFL(hidden=8, size=4), task("cnn-plain")
    method = method if clip == "default" else replace(method, work=replace(method.work, clip=clip))
    server = method.init_server(t, 1, rng.key(0))
    zero = tree.zeros(server["encoder"])
    far = {**zero, "0": {**zero["0"], "bias": torch.tensor([1e6, *[0.0] * 7])}}
    missed = {n: torch.full((1, *p.shape), 1e5) for n, p in t.init(rng.key(0))["params"].items()}
    total = {"encoder": far, "missed": missed, "description": torch.ones(1, 4), "buffers": {}}
    new = method.server(t, server, total, KEY)
    encoder, hypernet = (float(tree.norm(tree.sub(new[n], server[n]))) for n in ("encoder", "hyper"))
    assert encoder == pytest.approx(steps[0], rel=1e-3)
    assert hypernet == pytest.approx(steps[1], rel=1e-3) if steps[1] else hypernet > 1e5


def test_a_step_moves_a_model_the_further_the_longer_the_hidden_layer():
    """By the rate times 1 + |h|^2, where the trunk stays: this is what a bound holds together."""
    hypernet = hyper.init(rng.key(1), {"w": torch.randn(3, 2)}, 4, 5)
    described, missed = 3.0 * torch.randn(1, 4), {"w": torch.randn(1, 3, 2)}
    heads = tree.add(hypernet["heads"], hyper.pull(hypernet, described, missed)["heads"], -0.5)
    moved = (
        hyper.generate({**hypernet, "heads": heads}, described[0])["w"] - hyper.generate(hypernet, described[0])["w"]
    )
    h = nets.linear(hypernet["trunk"], described[0]).relu()
    assert gap(moved, -0.5 * (1 + h @ h) * missed["w"][0]) < 1e-4


def test_a_newcomer_gets_a_model_made_for_its_samples():
    method = replace(LEARNED, hyper_opt=SGD(lr=0.1), encoder_opt=SGD(lr=0.1))
    worker, engine, state = fitted(method, model="cnn-plain", rounds=3, cohort=6)
    down = worker.method.download(worker.task, state.server)
    live, adapter, (x, _) = engine.join(down, 1)[0], Describe(), images(12, seed=4)
    made = adapter.prepare(
        worker.task, worker.predict(), live, adapter.init(worker.task, live), x, torch.ones(12, dtype=torch.bool), KEY
    )
    described = hyper.describe(down["encoder"], worker.task, x)
    assert gap(made["params"], hyper.generate(down["hyper"], described)) < 1e-6
    assert gap(made["params"], live["vars"]["params"]) > 0
    test = shards((9, 12, 8), seed=2)
    for engine_models in (engine.join(down, 3),):
        scores = engine.serve(engine_models, test, adapter, Protocol(batch=4))
        assert scores["n"].tolist() == [9.0, 12.0, 8.0]
    assert equal(adapter.init(worker.task, live)["params"], live["vars"]["params"])
