"""FedTTA's equalities: against autograd's own double backward, by hand, and against each other."""

import math
import re
from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch import nn
from torch.func import grad, vmap

import acclimate as ac
from acclimate.adapters.fedtta import FedTTA as Adapt
from acclimate.core import SGD, StepDecay, Task, Work, rng, tree
from acclimate.methods.fedtta import FedTTA
from acclimate.ops import nets
from acclimate.ops.learned import learned_loss, scores
from acclimate.ops.losses import entropy
from support import CLASSES, SMALL, client_data, equal, fitted, gap, images, shards, task

KEY = rng.key(5)
METHOD = FedTTA(inner_lr=0.3, work=SMALL)


def double(vars):
    return tree.map(lambda v: v.double(), vars)


def labelled(count, seed=0):
    x, y = images(count, seed)
    return {"x": x.double() / 255.0, "y": y}


def both(method, t, seed=0):
    down = double(method.init_server(t, 1, rng.key(seed)))
    return {"params": {"base": down["vars"]["params"], "net": down["net"]}, "buffers": down["vars"]["buffers"]}


def meta_gradient(method, t, start, batch, received=None):
    received = received or {"params": start["params"]["base"], "buffers": start["buffers"]}
    loss = method.objective(t, received, torch.zeros(()))
    return grad(lambda p: loss({**start, "params": p}, batch, KEY)[0])(start["params"])


def by_autograd(t, start, batch, lr, mu=0.0, received=None, released=False):
    """The same with an nn.Sequential, torch.norm and autograd's create_graph."""
    leaves = tree.map(lambda p: p.clone().requires_grad_(), start["params"])
    names, net = list(leaves["base"]), leaves["net"]

    def g(z):
        for i in range(len(net)):
            z = F.linear(torch.relu(z) if i else z, net[str(i)]["weight"], net[str(i)]["bias"])
        return z

    def forward(params):
        return t.apply({"params": params, "buffers": start["buffers"]}, batch["x"], "train").logits

    logits = forward(leaves["base"])
    inner = torch.autograd.grad(torch.norm(g(logits)), list(leaves["base"].values()), create_graph=True)
    adapted = {n: leaves["base"][n] - lr * d for n, d in zip(names, inner, strict=True)}
    loss = F.cross_entropy(forward(adapted), batch["y"])
    if mu:
        p, q = logits.softmax(-1), t.apply(received, batch["x"], "train").logits.softmax(-1)
        p, q = (q, p) if released else (p, q)
        loss = loss + mu * (p * (p / q).log()).sum(-1).mean()
    loss.backward()
    return tree.map(lambda p: p.grad, leaves)


@pytest.mark.parametrize("model", ["cnn-plain", "cnn-group"])
@pytest.mark.parametrize("mu", [0.0, 0.7])
def test_the_meta_gradient_is_that_of_a_double_backward(model, mu):
    t, batch = task(model), labelled(8)
    start, received = both(METHOD, t), double(t.init(rng.key(9)))
    ours = meta_gradient(replace(METHOD, mu=mu), t, start, batch, received)
    theirs = by_autograd(t, start, batch, METHOD.inner_lr, mu, received)
    assert gap(ours, theirs) < 1e-6
    assert gap(theirs["net"], tree.zeros(theirs["net"])) > 1e-4


def test_the_released_divergence_is_the_other_way_round():
    t, batch = task("cnn-plain"), labelled(8)
    start, received = both(METHOD, t), double(t.init(rng.key(9)))
    ours = meta_gradient(replace(METHOD, mu=0.7, variant="released"), t, start, batch, received)
    theirs = by_autograd(t, start, batch, METHOD.inner_lr, 0.7, received, released=True)
    assert gap(ours, theirs) < 1e-6
    assert gap(ours["base"], meta_gradient(replace(METHOD, mu=0.7), t, start, batch, received)["base"]) > 1e-4


def test_the_inner_rate_falls_by_rounds_and_newcomers_take_the_last_ones():
    """0.99 every ten rounds: 0.3 * 0.99 ** 2 in round 20 (from 0), and at test time after it."""
    falling, then = replace(METHOD, inner_schedule=StepDecay(every=10, gamma=0.99)), 0.3 * 0.9801
    t, data = task("cnn-plain"), client_data(shards(), 0)
    down = falling.init_server(t, 1, rng.key(0))
    late = {**data, "round": torch.tensor(20)}
    constant = replace(METHOD, inner_lr=then)
    assert (
        gap(
            falling.client(t, down, {}, late, KEY)[0],
            constant.client(t, METHOD.init_server(t, 1, rng.key(0)), {}, data, KEY)[0],
        )
        < 1e-6
    )
    nothing = {"delta": tree.zeros(down["vars"]), "net": tree.zeros(down["net"])}
    for done, rate in ((0, 0.3), (10, 0.3), (11, 0.297), (21, then)):
        state = down
        for _ in range(done):
            state = falling.server(t, state, nothing, KEY)
        model = falling.deploy(t, falling.download(t, state), {})
        assert float(model["inner"]["lr"]) == pytest.approx(rate, rel=1e-6)
        assert set(model) == {"vars", "net", "inner"}
    assert "rounds" not in METHOD.init_server(t, 1, rng.key(0))  # the state of earlier checkpoints
    with pytest.raises(ValueError, match=r"FedTTA: inner_schedule=StepDecay.* must count rounds, per='round'"):
        FedTTA(inner_schedule=StepDecay(per="step"))


def test_gradients_are_bounded_by_ten_by_default_in_training_and_at_test_time():
    assert FedTTA().work.clip == Adapt().clip == 10.0
    assert FedTTA() == FedTTA(work=Work(iterations=20, batch=64, clip=10.0))


def test_with_default_settings_an_mlp_stays_finite_on_the_embedded_world():
    """Training, the clients' validation losses, and what the default adapter answers with."""
    fit = ac.train(ac.Experiment(method=FedTTA(), model=ac.models.MLP(), rounds=2, eval_every=1))
    assert bool(tree.finite(fit.state.server))
    losses = [row["val_loss"] for row in fit.history]
    table = ac.evaluate(fit, adapters=[Adapt()], streams=[ac.shifts.Original()])
    losses += [row["loss"] for row in table.rows]
    assert len(losses) >= 3 and all(math.isfinite(loss) for loss in losses)


def test_the_default_bound_keeps_an_mlp_finite_where_gradients_are_large():
    """Inputs twenty times as large: without a bound the first round ends in values that are not finite."""
    t, data = Task(ac.models.MLP(), (3, 10, 10), CLASSES), client_data(shards(), 0)
    far, default = {**data, "x": 20 * (data["x"] / 255)}, FedTTA()
    free = replace(default, work=replace(default.work, clip=None))
    down = default.init_server(t, 1, rng.key(0))
    assert bool(tree.finite(default.client(t, down, {}, far, KEY)[0]))
    assert not bool(tree.finite(free.client(t, down, {}, far, KEY)[0]))


@pytest.mark.parametrize("mu", [0.0, 0.5])
def test_first_order_moves_the_model_otherwise_and_the_net_alike(mu):
    t, batch, received = task("cnn-plain"), labelled(8), double(task("cnn-plain").init(rng.key(9)))
    start = both(METHOD, t)
    second = meta_gradient(replace(METHOD, mu=mu), t, start, batch, received)
    first = meta_gradient(replace(METHOD, mu=mu, order="first"), t, start, batch, received)
    assert gap(second["base"], first["base"]) > 1e-4
    assert gap(second["net"], first["net"]) < 1e-12


def test_without_an_inner_step_it_is_plain_training():
    t, batch = task("cnn-plain"), labelled(8)
    start = both(METHOD, t)
    ours = meta_gradient(replace(METHOD, inner_lr=0.0), t, start, batch)
    base = {"params": start["params"]["base"], "buffers": start["buffers"]}
    plain = grad(lambda p: t.loss({**base, "params": p}, batch, KEY)[0])(base["params"])
    assert gap(ours["base"], plain) < 1e-12
    assert gap(ours["net"], tree.zeros(ours["net"])) == 0


def test_mu_zero_is_fedtta_and_mu_holds_the_model_back():
    plain, zero, prox = (fitted(replace(METHOD, **c), rounds=1)[2].server for c in ({}, {"mu": 0.0}, {"mu": 50.0}))
    assert equal(plain, zero)
    t = task("cnn-plain")
    data, down = client_data(shards(), 0), METHOD.init_server(t, 1, rng.key(0))
    far, near = (
        replace(METHOD, mu=mu, opt=SGD(lr=0.02)).client(t, down, {}, data, KEY)[0]["delta"]["params"]
        for mu in (0.0, 5.0)
    )
    assert tree.norm(near) < tree.norm(far)
    assert gap(plain, prox) > 1e-3


def test_the_learned_loss_is_a_norm_over_samples_in_any_order():
    net = nets.init(rng.key(1), (5, 32, 32, 32, 1))
    z = rng.normal(rng.key(2), 12, 5)
    widths = [nn.Linear(5, 32), nn.Linear(32, 32), nn.Linear(32, 32), nn.Linear(32, 1)]
    for i, layer in enumerate(widths):
        layer.load_state_dict(net[str(i)])
    module = nn.Sequential(widths[0], *[part for layer in widths[1:] for part in (nn.ReLU(), layer)])
    assert learned_loss(net, z) == pytest.approx(float(torch.norm(module(z).detach())), abs=1e-6)
    shuffled = z[rng.permutation(rng.key(3), 12)]
    assert learned_loss(net, shuffled) == pytest.approx(float(learned_loss(net, z)), abs=1e-6)
    twice, real = torch.cat([z, z[:5] + 3]), torch.arange(17) < 12
    assert learned_loss(net, twice, real) == pytest.approx(float(learned_loss(net, z)), abs=1e-6)
    six = learned_loss(net, z, batch=torch.tensor(6.0))
    assert six == pytest.approx(float((6 * (scores(net, z) ** 2).mean()).sqrt()), abs=1e-6)
    zeros = tree.zeros(net)
    assert bool(tree.finite(grad(lambda n: learned_loss(n, z))(zeros)))  # also where every output is zero


def test_both_nets_are_averaged_and_each_has_its_rate():
    method = replace(METHOD, work=Work(iterations=1, batch=8), opt=SGD(lr=0.1), net_opt=SGD(lr=0.02))
    t, data = task("cnn-plain"), shards()
    down = method.init_server(t, 6, rng.key(0))
    ups = [method.client(t, down, {}, client_data(data, c), rng.fold(KEY, c))[0] for c in range(2)]
    drawn = method.work.plan(client_data(data, 0), rng.fold(rng.fold(KEY, 0), "plan"))[0][0]
    rows = client_data(data, 0)["rows"][drawn]
    start = {"params": {"base": down["vars"]["params"], "net": down["net"]}, "buffers": down["vars"]["buffers"]}
    loss = method.objective(t, down["vars"], torch.zeros(()))
    g = grad(lambda p: loss({**start, "params": p}, {"x": data.x[rows], "y": data.y[rows]}, KEY)[0])(start["params"])
    assert gap(ups[0]["delta"]["params"], tree.scale(g["base"], -0.1)) < 1e-6
    assert gap(ups[0]["net"], tree.scale(g["net"], -0.02)) < 1e-6
    total = {k: tree.scale(tree.add(ups[0][k], ups[1][k]), 0.5) for k in ("delta", "net")}
    new = method.server(t, down, total, KEY)
    assert gap(new["net"], tree.add(down["net"], total["net"])) < 1e-7
    assert set(method.uplink) == {"delta", "net"}
    assert set(replace(method, weights="samples").uplink) == {"delta", "net", "n"}


def test_clipping_bounds_each_net_on_its_own():
    method = replace(METHOD, work=Work(iterations=1, batch=8, clip=1e-3), opt=SGD(lr=1.0), net_opt=SGD(lr=1.0))
    t = task("cnn-plain")
    up, _ = method.client(t, method.init_server(t, 1, rng.key(0)), {}, client_data(shards(), 0), KEY)
    assert float(tree.norm(up["delta"]["params"])) == pytest.approx(1e-3, rel=1e-2)
    assert float(tree.norm(up["net"])) <= 1.01e-3


def test_serial_and_vmap_agree_where_mu_holds_a_model_with_batch_norm():
    """The smaller model, and the one that nothing holds, are among those of test_contract.py."""
    a, b = (fitted(replace(METHOD, mu=0.1), backend, "cnn-batch", rounds=2) for backend in ("serial", "vmap"))
    assert gap(a[2].server, b[2].server) < 1e-5


# the test half


@pytest.fixture(scope="module")
def live():
    """A trained model as a newcomer gets it, its predict, and unlabelled samples of two classes."""
    worker, engine, state = fitted(replace(METHOD, opt=SGD(lr=0.1)), model="cnn-plain", rounds=6, cohort=6)
    model = engine.model_of(engine.join(worker.method.download(worker.task, state.server), 1), 0)
    x, y = images(60, seed=8)
    return worker.task, worker.predict(), model, x[(y == 1) | (y == 3)]


def prepared(live, adapter, x=None, real=None):
    t, predict, model, own = live
    x = own if x is None else x
    real = torch.ones(len(x), dtype=torch.bool) if real is None else real
    return adapter.prepare(t, predict, model, adapter.init(t, model), x, real, KEY)


def by_loop(live, adapter, x):
    """Algorithm 1's test half as a plain loop that stops: the chosen parameters, the chosen step, the steps taken."""
    _, predict, model, _ = live
    params, best, least, stale = model["vars"]["params"], None, torch.inf, 0

    def logits(p):
        return predict({**model, "vars": {**model["vars"], "params": p}}, x, "adapt").logits

    for step in range(1, adapter.steps + 1):
        g = grad(lambda p: learned_loss(model["net"], logits(p), None, model["inner"]["batch"]))(params)
        params = tree.add(params, g, -(adapter.lr or model["inner"]["lr"]))
        value = float(entropy(logits(params)).mean())
        if value < least:
            best, least, stale, chosen = params, value, 0, step
        else:
            stale += 1
            if stale == adapter.patience:
                break
    return best, chosen, step


def test_one_step_is_the_gradient_step_of_training_and_of_fedtta_plus_with_one_step(live):
    _, predict, model, x = live
    x = x[: METHOD.work.batch]  # as many as a training batch: both norms are then one

    def loss(p):
        return learned_loss(model["net"], predict({**model, "vars": {**model["vars"], "params": p}}, x).logits)

    g = grad(loss)(model["vars"]["params"])
    by_hand = tree.add(model["vars"]["params"], g, -METHOD.inner_lr)
    for adapter in (Adapt(), Adapt(norm="set"), Adapt(steps=1, patience=3)):
        state = prepared(live, adapter, x)
        assert gap(state["params"], by_hand) < 1e-6
        assert (state["record"]["chosen_step"], state["record"]["steps_taken"]) == (1, 1)
    assert gap(by_hand, model["vars"]["params"]) > 1e-4


@pytest.mark.parametrize("adapter", [Adapt(steps=3), Adapt(steps=3, patience=2)], ids=["fedtta", "fedtta-plus"])
def test_the_state_before_adaptation_has_the_shape_of_the_one_after(live, adapter):
    """With patience the model after the last step is judged too, so its curves are one number longer."""
    t, _, model, _ = live
    before, after = adapter.init(t, model)["record"], prepared(live, adapter)["record"]
    assert {k: v.shape for k, v in before.items()} == {k: v.shape for k, v in after.items()}
    assert len(before["entropy"]) == (3 if adapter.patience is None else 4)


@pytest.mark.parametrize("norm", ["batch", "set"])
def test_adaptation_does_not_depend_on_the_order_of_samples(live, norm):
    x, adapter = live[3], Adapt(steps=5, patience=2, norm=norm)
    a, b = prepared(live, adapter), prepared(live, adapter, x[rng.permutation(rng.key(4), len(x))])
    assert gap(a["params"], b["params"]) < 1e-5


def test_with_the_norm_of_a_batch_the_step_does_not_grow_with_the_set(live):
    x = live[3]
    once, twice = prepared(live, Adapt()), prepared(live, Adapt(), torch.cat([x, x]))
    assert gap(once["params"], twice["params"]) < 1e-6
    grown = [prepared(live, Adapt(norm="set"), some) for some in (x, torch.cat([x, x]))]
    way = [tree.norm(tree.sub(s["params"], live[2]["vars"]["params"])) for s in grown]
    assert float(way[1] / way[0]) == pytest.approx(2**0.5, rel=1e-3)


@pytest.mark.parametrize("lr", [0.05, 0.5, 3.0])
@pytest.mark.parametrize("patience", [1, 3])
def test_early_stopping_equals_the_loop_that_stops(live, lr, patience):
    adapter = Adapt(steps=8, patience=patience, lr=lr)
    state = prepared(live, adapter)
    params, chosen, taken = by_loop(live, adapter, live[3])
    assert gap(state["params"], params) < 1e-5
    assert (int(state["record"]["chosen_step"]), int(state["record"]["steps_taken"])) == (chosen, taken)
    kept = state["record"]["entropy"][1 : taken + 1]
    assert int(kept.argmin()) + 1 == chosen


def test_steps_at_test_time_are_bounded(live):
    _, predict, model, x = live
    x = x[: METHOD.work.batch]
    state = prepared(live, Adapt(clip=1e-3), x)
    moved = tree.norm(tree.sub(state["params"], model["vars"]["params"]))
    assert float(moved) == pytest.approx(METHOD.inner_lr * 1e-3, rel=1e-2)


def test_the_default_bound_of_a_step_at_test_time_is_ten(live):
    t, predict, model, x = live
    *_, last = model["net"]
    steep = {**model["net"], last: tree.scale(model["net"][last], 1e5)}

    def gradient(adapter):
        state = prepared((t, predict, {**model, "net": steep}, x), adapter)
        return float(tree.norm(tree.sub(state["params"], model["vars"]["params"]))) / METHOD.inner_lr

    assert gradient(Adapt()) == pytest.approx(10.0, rel=1e-4)
    assert gradient(Adapt(clip=None)) > 100


def test_clients_that_stop_at_different_steps_run_together(live):
    t, predict, model, _ = live
    adapter = Adapt(steps=8, patience=1, lr=2.0)
    sets, sizes = [], (12, 7, 9, 12, 5, 10)
    for c, n in enumerate(sizes):
        x, y = images(80, seed=20 + c)
        own = x[(y == c % 5) | (y == (c + 2) % 5)][:n]
        sets.append(own[torch.arange(12) % n])  # wrapped around, as the stream loop pads
    real = torch.arange(12) < torch.tensor(sizes)[:, None]

    def one(x, real):
        return adapter.prepare(t, predict, model, adapter.init(t, model), x, real, KEY)

    together = vmap(one)(torch.stack(sets), real)
    loops = [by_loop(live, adapter, x[:n]) for x, n in zip(sets, sizes, strict=True)]
    assert gap(together["params"], tree.stack([p for p, _, _ in loops])) < 1e-5
    assert together["record"]["chosen_step"].tolist() == [c for _, c, _ in loops]
    assert len({taken for _, _, taken in loops}) > 1


def test_the_released_early_stopping_never_adapts(live):
    state = prepared(live, Adapt(steps=8, patience=3, variant="released"))
    assert equal(state["params"], live[2]["vars"]["params"])
    assert (state["record"]["chosen_step"], state["record"]["steps_taken"]) == (0, 3)


def test_traces_tell_what_was_done_and_answer_as_step_does(live):
    t, predict, model, x = live
    adapter = Adapt(steps=4, patience=4)
    state = prepared(live, adapter)
    logits, _ = adapter.step(t, predict, model, state, x, KEY)
    same, _, told = adapter.trace(t, predict, model, state, x, KEY)
    assert equal(logits, same) and set(told) == set(adapter.traces)
    assert all(v.shape == (len(x),) for v in told.values())
    record = state["record"]
    assert float(told["entropy"].mean()) == pytest.approx(
        float(record["entropy"][int(record["chosen_step"])]), abs=1e-5
    )


@pytest.mark.parametrize(
    ("record", "field", "value"),
    [
        (FedTTA, "mu", -1.0),
        (FedTTA, "order", "third"),
        (FedTTA, "hidden", (0,)),
        (Adapt, "steps", 0),
        (Adapt, "patience", 0),
        (Adapt, "norm", "all"),
    ],
)
def test_fields_out_of_range_are_named(record, field, value):
    with pytest.raises(ValueError, match=re.escape(f"FedTTA: {field}={value!r}")):
        record(**{field: value})


def test_a_model_without_an_adaptation_net_is_refused(live):
    assert Adapt().refusal(live[0], {"vars": live[2]["vars"]}) == (
        "FedTTA needs net, inner in the deployed model, which has only vars; set method=fedtta"
    )
