"""Each paper's defining equalities, worked out by hand."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from acclimate.adapters import T3A, BNStats, NoAdapt, Tent
from acclimate.core import SGD, Adam, Protocol, Work, rng, tree
from acclimate.methods import SCAFFOLD, FedAvg, FedProx, Local, PerFedAvg
from acclimate.personal import FineTune, NoPersonal
from support import SMALL, client_data, equal, fitted, gap, images, shards, task

ONE_STEP = Work(iterations=1, batch=8)


def deployed(name="cnn-batch", seed=0):
    t = task(name)
    model = {"vars": t.init(rng.key(seed))}

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    return t, predict, model


# --- methods --------------------------------------------------------------------------------------------------------


def test_fedavg_is_the_sample_weighted_mean_of_local_models():
    worker, engine, state = fitted(FedAvg(work=SMALL), rounds=1, cohort=6)
    data, t = shards(), worker.task
    start = t.init(worker.key("init"))
    models = []
    for c in range(6):
        up, _ = worker.method.client(t, {"vars": start}, {}, client_data(data, c), worker.key("train", 0, c))
        models.append(tree.add(start, up["delta"]))
    weights = data.n.double() / data.n.sum()
    mean = tree.map(lambda *xs: sum(w * x.double() for w, x in zip(weights, xs, strict=True)), *models)
    assert gap(state.server["vars"], mean) < 1e-5


@pytest.mark.parametrize(
    "method", [FedAvg(work=SMALL, weights="uniform"), PerFedAvg(work=SMALL)], ids=["fedavg", "perfedavg"]
)
def test_every_client_counts_as_one(method):
    worker, _, state = fitted(method, rounds=1, cohort=6)
    start, data = worker.task.init(worker.key("init")), shards()
    ups = [
        method.client(worker.task, {"vars": start}, {}, client_data(data, c), worker.key("train", 0, c))[0]["delta"]
        for c in range(6)
    ]
    assert gap(state.server["vars"], tree.map(lambda s, *d: s + sum(d) / 6, start, *ups)) < 1e-5


def test_fedper_and_fedbn_keep_their_part_at_home():
    for role in ("head", "norm"):
        worker, _, state = fitted(FedAvg(work=SMALL, private=(role,)), rounds=2, cohort=6)
        names = worker.task.select(role)
        sent = {part["name"].split("/", 1)[-1] for part in state.cost["message"] if part["group"] == "delta"}
        assert not sent & names
        assert not set(tree.flatten(state.server["vars"])) & {f"params/{n}" for n in names}
        kept = state.mine["vars"]
        assert set(kept["params"]) | set(kept["buffers"]) == names
        first = next(iter(kept["params"].values()))
        assert not torch.equal(first[0], first[1])  # clients differ in it
        start = worker.task.init(worker.key("init"))  # and started from the common model
        fresh = worker.start(3)["vars"]["params"]
        assert all(torch.equal(fresh[n], start["params"][n]) for n in fresh)


def test_fedavgm_by_hand_over_two_rounds():
    plain = FedAvg(work=SMALL)
    heavy = replace(plain, server_opt=SGD(lr=0.5, momentum=0.9))
    server = heavy.init_server(task(), 3, rng.key(0))
    x0 = server["vars"]["params"]
    deltas = [tree.map(lambda p, s=s: torch.full_like(p, s), x0) for s in (1.0, 2.0)]
    for d in deltas:
        zero = tree.zeros(server["vars"]["buffers"])
        server = heavy.server(task(), server, {"delta": {"params": d, "buffers": zero}}, rng.key(0))
    # velocities 1 and 2 + 0.9; the step is lr times each
    assert gap(server["vars"]["params"], tree.map(lambda p: p + 0.5 * (1.0 + 2.9), x0)) < 1e-5


def test_fedadam_first_step_is_the_sign_of_the_difference():
    method = FedAvg(server_opt=Adam(lr=0.1, eps=1e-12))
    server = method.init_server(task("cnn-plain"), 3, rng.key(0))
    x0 = server["vars"]["params"]
    d = tree.map(lambda p: torch.where(p > 0, 0.3, -0.7), x0)
    new = method.server(task("cnn-plain"), server, {"delta": {"params": d, "buffers": {}}}, rng.key(0))
    assert gap(new["vars"]["params"], tree.map(lambda p, d: p + 0.1 * d.sign(), x0, d)) < 1e-5


@pytest.mark.parametrize("weights", ["samples", "uniform"])
def test_fedprox_with_mu_zero_is_fedavg_bit_for_bit(weights):
    a = fitted(FedAvg(work=SMALL, weights=weights), rounds=2)[2]
    b = fitted(FedProx(mu=0.0, work=SMALL, weights=weights), rounds=2)[2]
    assert equal(a.server["vars"], b.server["vars"])


def test_fedprox_gradient_is_that_of_the_proximal_problem():
    t, own, mu, lr = task("cnn-plain"), client_data(shards(), 0), 0.7, 0.1
    start, key = t.init(rng.key(0)), rng.key(9)
    two = Work(iterations=2, batch=8)
    up, _ = FedProx(mu=mu, opt=SGD(lr=lr), work=two).client(t, {"vars": start}, {}, own, key)
    positions, _ = two.plan(own, rng.fold(key, "plan"))
    w = start["params"]
    for p in positions:
        rows = own["rows"][p]

        def ce(q, rows=rows):
            return F.cross_entropy(t.apply({**start, "params": q}, own["x"][rows]).logits, own["y"][rows])

        g = grad(ce)(w)
        w = tree.map(lambda q, g, s: q - lr * (g + mu * (q - s)), w, g, start["params"])
    assert gap(up["delta"]["params"], tree.sub(w, start["params"])) < 1e-6


def test_scaffold_first_round_is_uniform_fedavg():
    a = fitted(FedAvg(work=SMALL, weights="uniform"), rounds=1)[2]
    b = fitted(SCAFFOLD(work=SMALL), rounds=1)[2]
    assert gap(a.server["vars"], b.server["vars"]) < 1e-6


def test_scaffold_control_variate_is_the_mean_gradient_and_the_server_keeps_their_mean():
    worker, _, state = fitted(SCAFFOLD(opt=SGD(lr=0.1), work=ONE_STEP), rounds=1, cohort=6)
    t, data, start = worker.task, shards(), worker.task.init(worker.key("init"))
    for c in (0, 5):
        own, key = client_data(data, c), worker.key("train", 0, c)
        positions, _ = ONE_STEP.plan(own, rng.fold(key, "plan"))
        rows = own["rows"][positions[0]]
        g = grad(
            lambda q, rows=rows: t.loss({**start, "params": q}, {"x": data.x[rows], "y": data.y[rows]}, rng.key(0))[0]
        )(start["params"])
        assert gap(tree.take(state.mine["control"], c), g) < 1e-5
    assert gap(state.server["control"], tree.map(lambda c: c.mean(0), state.mine["control"])) < 1e-6


def test_scaffold_corrections_cancel_over_the_clients():
    """With full participation, the corrections c - c_i add up to nothing (Sec. 4)."""
    _, _, state = fitted(SCAFFOLD(work=SMALL), rounds=3, cohort=6)
    total = tree.map(lambda c, s: (s - c).sum(0), state.mine["control"], state.server["control"])
    assert gap(total, tree.zeros(total)) < 1e-4


def test_scaffold_refuses_what_its_algebra_does_not_cover():
    with pytest.raises(ValueError, match="must be plain SGD"):
        SCAFFOLD(opt=SGD(momentum=0.9))


def test_local_sends_nothing_and_learns():
    _, _, state = fitted(Local(work=Work(epochs=5, batch=8)), model="mlp-dropout", rounds=2, cohort=6)
    assert state.cost["up"] == state.cost["down"] == 0
    assert state.history[-1]["val_accuracy"] > 0.5


def test_federated_methods_learn_the_small_world():
    for method in (FedAvg(), FedProx(), SCAFFOLD()):
        method = replace(method, work=Work(epochs=5, batch=8))
        history = fitted(method, model="mlp-dropout", rounds=2, cohort=6)[2].history
        assert history[-1]["val_accuracy"] > 0.85, method


# --- personalisers --------------------------------------------------------------------------------------------------


def test_linear_probing_moves_only_the_head_and_lpft_goes_on_from_there():
    t, predict, model = deployed()
    own, key = client_data(shards(), 0), rng.key(3)
    probed = FineTune(parts="head", work=SMALL).run(t, predict, model, own, key)
    for n, p in probed["vars"]["params"].items():
        assert torch.equal(p, model["vars"]["params"][n]) == (n not in t.head)
    assert equal(probed["vars"]["buffers"], model["vars"]["buffers"])
    both = FineTune(parts="head-then-all", work=SMALL).run(t, predict, model, own, key)
    second = FineTune(parts="all", work=SMALL)._tune(t, predict, probed, own, None, rng.fold(key, 1))
    assert equal(both, second)


def test_fine_tuning_with_no_work_changes_nothing():
    t, predict, model = deployed()
    same = FineTune(work=Work(epochs=0)).run(t, predict, model, client_data(shards(), 0), rng.key(0))
    assert equal(same, model)


def test_balanced_fine_tuning_is_local_training_with_balanced_softmax():
    t, predict, model = deployed()
    own, key = client_data(shards(), 1), rng.key(3)
    tuned = FineTune(work=SMALL, balanced=True).run(t, predict, model, own, key)["vars"]
    up, _ = FedAvg(opt=SGD(lr=0.01), work=SMALL, balanced=True).client(t, model, {}, own, rng.fold(key, 0))
    assert gap(tuned, tree.add(model["vars"], up["delta"])) < 1e-6
    assert gap(tuned, FineTune(work=SMALL).run(t, predict, model, own, key)["vars"]) > 1e-4


def test_fine_tuning_all_is_local_training_of_the_received_model():
    t, predict, model = deployed()
    own, key = client_data(shards(), 2), rng.key(5)
    tuned = FineTune(opt=SGD(lr=0.05), work=SMALL).run(t, predict, model, own, key)
    _, mine = Local(opt=SGD(lr=0.05), work=SMALL).client(t, {}, model, own, rng.fold(key, 0))
    assert gap(tuned["vars"], mine["vars"]) < 1e-6


# --- adapters -------------------------------------------------------------------------------------------------------


def test_tent_answers_before_its_update_so_one_episodic_step_is_batch_statistics():
    t, predict, model = deployed()
    x, _ = images(16)
    tent, bn = Tent(), BNStats()
    first, state = tent.step(t, predict, model, tent.init(t, model), x, rng.key(0))
    torch.testing.assert_close(first, bn.step(t, predict, model, {}, x, rng.key(0))[0])
    second, _ = tent.step(t, predict, model, state, x, rng.key(0))
    assert not torch.allclose(first, second)


def test_tent_update_equals_autograd_on_the_affine_parameters_only():
    t, predict, model = deployed()
    x, _ = images(16)
    tent = Tent(opt=SGD(lr=0.1))
    _, state = tent.step(t, predict, model, tent.init(t, model), x, rng.key(0))
    params = {k: p.clone().requires_grad_(k in t.norm) for k, p in model["vars"]["params"].items()}
    logits = t.apply({**model["vars"], "params": params}, x, "adapt").logits
    p = logits.softmax(-1)
    (-(p * p.log()).sum(-1).mean()).backward()
    assert (
        set(state["params"])
        == {k for k in params if k in t.norm}
        == {"body.1.weight", "body.1.bias", "body.5.weight", "body.5.bias"}
    )
    for k, new in state["params"].items():
        torch.testing.assert_close(new, (params[k] - 0.1 * params[k].grad).detach(), rtol=1e-4, atol=1e-6)


def test_tent_lowers_entropy_on_a_repeated_batch_and_tunes_all_parameters_when_told():
    t, predict, model = deployed("cnn-plain")
    x, _ = images(24)
    tent = Tent(params="all", opt=SGD(lr=0.5))
    state, seen = tent.init(t, model), []
    assert set(state["params"]) == set(model["vars"]["params"])
    for _ in range(8):
        logits, state = tent.step(t, predict, model, state, x, rng.key(0))
        p = logits.softmax(-1)
        seen.append(float(-(p * p.clamp_min(1e-12).log()).sum(-1).mean()))
    assert seen[-1] < seen[0] - 0.01
    assert "this model has none" in (Tent().refusal(t, model) or "")


@pytest.mark.parametrize("keep", [2, 5, -1])
@pytest.mark.parametrize(("per", "batch"), [("batch", 1), ("sample", 1), ("sample", 7), ("sample", 3), ("batch", 3)])
def test_t3a_by_hand(keep, per, batch):
    """K keeps so many least uncertain supports per class, -1 all; a sample, or its batch, joins before the answer."""
    t, predict, model = deployed("cnn-plain")
    x, _ = images(7)
    adapter = T3A(keep=keep, per=per)
    state, answers = adapter.init(t, model), []
    rows, bias = model["vars"]["params"]["head.weight"], model["vars"]["params"]["head.bias"]

    def h(z):
        p = (z @ rows.T + bias).softmax(-1)
        return float(-(p * p.log()).sum())

    support = {c: [] for c in range(5)}
    for r in rows:
        support[int((r @ rows.T + bias).argmax())].append((h(r), r))
    for part in x.split(batch):
        logits, state = adapter.step(t, predict, model, state, part, rng.key(0))
        answers += list(logits)
    for part in x.split(1 if per == "sample" else batch):
        features = t.apply(model["vars"], part).features
        for z in features:
            support[int((z @ rows.T + bias).argmax())].append((h(z), z))
        support = {c: sorted(s, key=lambda e: e[0])[: keep if keep > 0 else None] for c, s in support.items()}
        centre = torch.stack(
            [F.normalize(sum((F.normalize(v, dim=0) for _, v in support[c]), torch.zeros(8)), dim=0) for c in range(5)]
        )
        for z in features:
            torch.testing.assert_close(answers.pop(0), centre @ z, rtol=1e-4, atol=1e-5)


def test_t3a_keeps_all_by_none_as_by_minus_one_and_no_other_negative_number():
    t, predict, model = deployed("cnn-plain")
    x, _ = images(9)
    a, b = (s.step(t, predict, model, s.init(t, model), x, rng.key(0))[0] for s in (T3A(keep=None), T3A(keep=-1)))
    assert torch.equal(a, b)
    for keep in (0, -2):
        with pytest.raises(ValueError, match=f"keep={keep} must be at least 1, or -1"):
            T3A(keep=keep)


def test_t3a_that_keeps_all_equals_a_filter_that_never_bites_once_every_class_owns_its_row():
    t, predict, model = deployed("cnn-plain", seed=3)
    params = {**model["vars"]["params"], "head.weight": torch.eye(5, 8) * 4, "head.bias": torch.zeros(5)}
    model = {"vars": {**model["vars"], "params": params}}
    x, _ = images(12)
    outs = []
    for adapter in (T3A(keep=None), T3A(keep=100)):
        state = adapter.init(t, model)
        for part in x.split(4):
            logits, state = adapter.step(t, predict, model, state, part, rng.key(0))
        outs.append(logits)
    torch.testing.assert_close(outs[0], outs[1], rtol=1e-4, atol=1e-5)


def test_bn_with_a_strong_prior_is_no_adaptation():
    t, predict, model = deployed()
    x, _ = images(16)
    plain = NoAdapt().step(t, predict, model, {}, x, rng.key(0))[0]
    torch.testing.assert_close(
        BNStats(prior=1e9).step(t, predict, model, {}, x, rng.key(0))[0], plain, rtol=1e-4, atol=1e-5
    )
    assert not torch.allclose(BNStats().step(t, predict, model, {}, x, rng.key(0))[0], plain, atol=1e-3)


def test_adaptation_repairs_a_shift_that_batch_statistics_can_see():
    """A brightness change: the deployed batch-norm model suffers, its test-time statistics do not."""
    worker, engine, state = fitted(FedAvg(work=Work(epochs=5, batch=8)), rounds=6, cohort=6)
    models = engine.deploy(worker.method.download(worker.task, state.server), state.mine, NoPersonal())
    test = shards((30,) * 6, seed=8)
    dark = type(test)((test.x * 0.25).to(torch.uint8), test.y, test.rows, test.n)
    plain = float(engine.serve(models, dark, NoAdapt(), Protocol())["accuracy"].mean())
    adapted = float(engine.serve(models, dark, BNStats(), Protocol())["accuracy"].mean())
    assert adapted > plain + 0.2
