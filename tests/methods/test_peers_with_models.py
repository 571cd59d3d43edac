"""Methods with several models or with parts that each client has for itself: IFCA, FedEM, FedALA and FedAS, by their
equalities and by value on the linear model of linear.py."""

from dataclasses import dataclass
from functools import cache

import numpy as np
import pytest
import torch

from acclimate.core import SGD, Mean, Normaliser, Sum, Work, rng, tree
from acclimate.methods import IFCA, FedALA, FedAS, FedAvg, FedEM
from acclimate.ops.losses import fisher_trace
from acclimate.ops.nets import head_of
from linear import (
    BATCH,
    BODY,
    DATA,
    DOWN,
    HEAD,
    KEY,
    ONCE,
    TASK,
    VARS,
    F,
    X,
    Y,
    both_layers,
    ce,
    close,
    regression,
    softmax,
    tensor,
    variables,
)
from support import SMALL, client_data, equal, fitted, gap, shards, task

OTHER = np.array([[-0.2, 0.4], [0.3, -0.1], [0.2, 0.6]])
BOTH = tree.stack([variables(OTHER), VARS])


@cache
def trained(method, rounds=2, cohort=4):
    return fitted(method, model="mlp-dropout", rounds=rounds, cohort=cohort)


def test_one_cluster_or_one_learner_is_fedavg():
    plain = trained(FedAvg(work=SMALL))[2].server["vars"]
    one = trained(IFCA(clusters=1, work=SMALL))[2].server["models"]
    assert gap(tree.take(one, 0), plain) < 1e-6
    lone = trained(FedEM(learners=1, work=SMALL))[2].server["models"]["0"]
    assert gap(lone, plain) < 1e-6


# IFCA


def test_ifca_takes_the_model_of_least_loss_and_moves_it_alone():
    losses = [ce(F @ OTHER.T), ce(F @ HEAD.T)]
    assert losses[1] < losses[0]
    method = IFCA(clusters=2, opt=SGD(lr=0.5), work=ONCE)
    up, mine = method.client(TASK, {"models": BOTH, "votes": torch.zeros(2)}, {"choice": torch.tensor(-1)}, DATA, KEY)
    assert int(mine["choice"]) == 1 and up["votes"].tolist() == [0.0, 4.0]
    for name, slope in zip(("project.weight", "head.weight"), both_layers(BODY, HEAD), strict=True):
        close(up["delta"]["params"][name], np.stack([0 * slope, -0.5 * slope]))
    assert IFCA(weights="uniform").client(TASK, {"models": BOTH}, mine, DATA, KEY)[0]["votes"].tolist() == [0.0, 1.0]
    assert dict(method.uplink) == {"delta": Mean("votes"), "votes": Sum()}


def test_ifcas_models_are_the_means_of_those_who_chose_them():
    method = IFCA(clusters=2, work=SMALL)
    worker, _, state = trained(method, 1, 6)
    data, t = shards(), worker.task
    start = method.init_server(t, 6, worker.key("init"))
    first = t.init(worker.key("init"))
    assert equal(tree.take(start["models"], 0), first) and gap(tree.take(start["models"], 1), first) > 1e-2
    ups = [method.client(t, start, {}, client_data(data, c), worker.key("train", 0, c)) for c in range(6)]
    votes = torch.stack([u["votes"] for u, _ in ups])
    assert gap(state.server["votes"], votes.sum(0)) == 0.0
    for j in range(2):
        if votes[:, j].sum() > 0:
            share = votes[:, j] / votes[:, j].sum()
            mean = tree.map(
                lambda *d, s=share, j=j: sum(a * x[j] for a, x in zip(s, d, strict=True)), *(u["delta"] for u, _ in ups)
            )
            assert gap(tree.take(state.server["models"], j), tree.add(tree.take(start["models"], j), mean)) < 1e-5


def test_ifcas_clients_go_live_with_their_choice_and_newcomers_with_the_one_most_voted_for():
    down = {"models": BOTH, "votes": torch.tensor([3.0, 1.0])}
    chosen = IFCA().finish_personal(TASK, down, {"choice": torch.tensor(0)}, DATA, KEY)
    assert equal(IFCA().deploy(TASK, down, chosen)["vars"], VARS)
    newcomer = IFCA().init_mine(TASK, KEY)
    assert equal(IFCA().deploy(TASK, down, newcomer)["vars"], variables(OTHER))
    other = {**down, "votes": torch.tensor([1.0, 3.0])}
    assert equal(IFCA().deploy(TASK, other, newcomer)["vars"], VARS)


# FedEM

PI = np.array([0.7, 0.3])
MODELS = {"models": {"0": VARS, "1": variables(OTHER)}}


def expectation():
    p = [softmax(F @ h.T)[np.arange(4), Y] for h in (HEAD, OTHER)]
    q = PI[:, None] * np.stack(p)
    return q / q.sum(0)


def test_fedems_step_by_value():
    method, q = FedEM(learners=2, opt=SGD(lr=0.5), work=ONCE), expectation()
    up, mine = method.client(TASK, MODELS, {"pi": tensor(PI)}, DATA, KEY)
    close(mine["pi"], q.mean(1))
    close(method.finish_personal(TASK, MODELS, {"pi": tensor(PI)}, DATA, KEY)["pi"], q.mean(1))
    for m, head in enumerate((HEAD, OTHER)):
        error = q[m][:, None] * (softmax(F @ head.T) - np.eye(3)[Y])
        close(up["delta"][str(m)]["params"]["head.weight"], -0.5 * error.T @ F / 4)


def test_fedems_weights_are_those_of_the_rows_of_a_batch():
    """Two batches of two: each example must meet its own weight."""
    method, q = FedEM(learners=2, opt=SGD(lr=0.5), work=Work(epochs=1, batch=2)), expectation()
    moved = {**DATA, "rows": torch.tensor([2, 0, 3, 1])}
    up, _ = method.client(TASK, MODELS, {"pi": tensor(PI)}, moved, KEY)
    positions, _ = method.work.plan(moved, rng.fold(KEY, "plan"))
    w = [BODY, OTHER]
    for rows in (moved["rows"][p].numpy() for p in positions):
        f = X[rows] @ w[0].T
        error = q[1][rows][:, None] * (softmax(f @ w[1].T) - np.eye(3)[Y[rows]]) / 2
        w = [w[0] - 0.5 * (error @ w[1]).T @ X[rows], w[1] - 0.5 * error.T @ f]
    close(up["delta"]["1"]["params"]["head.weight"], w[1] - OTHER)


@pytest.mark.parametrize("pi", [[0.7, 0.3], [0.2, 0.8]])
def test_fedem_answers_with_the_mixture(pi):
    method = FedEM(learners=2)
    model = method.deploy(TASK, MODELS, {"pi": tensor(pi)})
    out = method.predict(TASK, model, BATCH["x"])
    close(out.logits.softmax(-1), pi[0] * softmax(F @ HEAD.T) + pi[1] * softmax(F @ OTHER.T))
    assert equal(model["vars"], MODELS["models"][str(int(np.argmax(pi)))])


@dataclass(frozen=True)
class Doubled(Normaliser):
    """Batch norm that only doubles its input."""

    def normalise(self, layer, input):
        return 2.0 * input


def test_fedems_other_learners_stay_as_they_are_where_an_adapter_normalises():
    t, method = task("mlp-dropout"), FedEM(learners=2)
    model = method.deploy(t, method.init_server(t, 3, KEY), {"pi": tensor([0.6, 0.4])})
    x = shards().x[:5]
    out = method.predict(t, model, x, Doubled())
    main, other = t.apply(model["vars"], x, Doubled()).logits, t.apply(model["others"]["1"], x).logits
    close(out.logits.softmax(-1), 0.6 * main.softmax(-1) + 0.4 * other.softmax(-1))
    train = method.predict(t, model, x, "train", KEY).logits
    both = [t.apply(v, x, "train", KEY).logits.softmax(-1) for v in (model["vars"], model["others"]["1"])]
    close(train.softmax(-1), 0.6 * both[0] + 0.4 * both[1])


def test_fedems_learners_start_apart_and_weights_alike():
    server = FedEM().init_server(TASK, 5, KEY)["models"]
    assert equal(server["0"], TASK.init(KEY)) and len(server) == 3
    assert gap(server["1"], server["2"]) > 1e-2 and gap(server["0"], server["1"]) > 1e-2
    close(FedEM().init_mine(TASK, KEY)["pi"], [1 / 3] * 3)


# FedALA


@pytest.mark.parametrize(("share", "n", "kept"), [(0.6, 25, 15), (0.3, 100, 30), (0.8, 7, 6), (0.0, 3, 1), (1.0, 5, 5)])
def test_fedala_takes_the_share_rounded_up_and_no_more(share, n, kept):
    """0.6 times 25 is 15.000001 in single precision."""
    data = {"rows": torch.arange(n), "n": torch.tensor(n), "round": torch.tensor(0)}
    assert int(FedALA(share=share).sampled(data, rng.key(1))["n"]) == kept


def test_fedala_without_mixing_steps_is_fedavg():
    a = trained(FedALA(mix_work=Work(epochs=0), work=SMALL))[2].server["vars"]
    assert gap(a, trained(FedAvg(work=SMALL))[2].server["vars"]) < 1e-6


def test_fedalas_mixing_weights_by_value():
    old, lr, a = OTHER, 30.0, np.full_like(HEAD, 0.6)
    method = FedALA(mix_lr=lr, mix_work=Work(iterations=2, batch=4), share=1.0)
    mine = {"head": {"weight": tensor(old)}, "mix": {"weight": tensor(a)}, "seen": torch.ones(())}
    new = method.finish_personal(TASK, DOWN, mine, DATA, KEY)
    for _ in range(2):
        w = old + (HEAD - old) * a
        a = np.clip(a - lr * regression(F @ w.T) * (HEAD - old), 0.0, 1.0)
    assert a.min() == 0.0 and a.max() == 1.0 and ((a > 0) & (a < 1)).any()
    close(new["mix"]["weight"], a)
    close(new["head"]["weight"], old + (HEAD - old) * a)
    close(method.deploy(TASK, DOWN, new)["vars"]["params"]["head.weight"], old + (HEAD - old) * a)


def test_fedala_trains_from_the_mixed_head_and_keeps_its_own():
    mine = {"head": {"weight": tensor(OTHER)}, "mix": {"weight": torch.full((3, 2), 0.5)}, "seen": torch.ones(())}
    method = FedALA(mix_work=Work(epochs=0), opt=SGD(lr=0.5), work=ONCE)
    up, new = method.client(TASK, DOWN, mine, DATA, KEY)
    start = (OTHER + HEAD) / 2
    body, head = both_layers(BODY, start)
    close(up["delta"]["params"]["project.weight"], -0.5 * body)
    close(up["delta"]["params"]["head.weight"], start - 0.5 * head - HEAD)
    close(new["head"]["weight"], start - 0.5 * head)


def test_fedalas_newcomers_and_first_rounds_take_the_received_head():
    fresh = FedALA().init_mine(TASK, KEY)
    assert equal(FedALA().deploy(TASK, DOWN, fresh)["vars"], VARS)
    met = FedALA().finish_personal(TASK, DOWN, fresh, DATA, KEY)
    assert equal(met["head"], head_of(TASK, VARS)) and float(met["mix"]["weight"].min()) == 1.0


def test_fedala_mixes_on_a_random_share_of_the_examples():
    some = FedALA(share=0.5).sampled({**DATA, "n": torch.tensor(3)}, KEY)
    assert int(some["n"]) == 2 and sorted(some["rows"][:3].tolist()) == [0, 1, 2]
    drawn = {tuple(sorted(FedALA(share=0.5).sampled(DATA, rng.key(k))["rows"][:2].tolist())) for k in range(30)}
    assert len(drawn) == 6
    assert int(FedALA(share=0.0).sampled(DATA, KEY)["n"]) == 1


# FedAS


def test_fedas_aligns_class_means_then_trains():
    last = {"params": {"project.weight": tensor(BODY[::-1].copy()), "head.weight": tensor(OTHER)}, "buffers": {}}
    down = {"vars": {"params": {"project.weight": tensor(BODY)}, "buffers": {}}}
    method = FedAS(align_opt=SGD(lr=0.5), align_work=ONCE, opt=SGD(lr=0.3), work=ONCE)
    up, mine = method.client(TASK, down, {"vars": last, "seen": torch.ones(())}, DATA, KEY)
    means = np.stack([X[c == Y].mean(0) for c in range(3)])  # of inputs: features are linear in them
    apart = means @ BODY.T - means @ BODY[::-1].T
    body = BODY - 0.5 * 2 * apart.T @ means / (2 * 3)
    assert np.abs(body - BODY).max() > 1e-2
    of_body, of_head = both_layers(body, OTHER)
    new = [body - 0.3 * of_body, OTHER - 0.3 * of_head]
    close(mine["vars"]["params"]["project.weight"], new[0])
    close(mine["vars"]["params"]["head.weight"], new[1])
    close(up["delta"]["params"]["project.weight"], new[0] - BODY)
    assert set(up["delta"]["params"]) == {"project.weight"}
    slopes = both_layers(*new)
    close(up["fisher"], sum((s * s).sum() for s in slopes))
    assert equal(method.deploy(TASK, down, mine)["vars"], mine["vars"])


def test_fedas_alignment_leaves_out_the_classes_that_a_batch_lacks():
    last = {"params": {"project.weight": tensor(BODY[::-1].copy()), "head.weight": tensor(OTHER)}, "buffers": {}}
    down, rows = {"vars": {"params": {"project.weight": tensor(BODY)}, "buffers": {}}}, [0, 2]  # both of class 0
    data = {**DATA, "rows": torch.tensor(rows), "n": torch.tensor(2)}
    method = FedAS(align_opt=SGD(lr=0.5), align_work=Work(iterations=1, batch=2))
    new = method.aligned(TASK, down, {"vars": last, "seen": torch.ones(())}, data, KEY)
    mean = X[rows].mean(0)
    apart = mean @ BODY.T - mean @ BODY[::-1].T
    close(new["params"]["project.weight"], BODY - 0.5 * 2 * np.outer(apart, mean) / 2)


def test_fedas_alignment_leaves_the_head_alone():
    """Its loss has no gradient for the head, but weight decay needs none."""
    last = {"params": {"project.weight": tensor(BODY[::-1].copy()), "head.weight": tensor(OTHER)}, "buffers": {}}
    down = {"vars": {"params": {"project.weight": tensor(BODY)}, "buffers": {}}}
    method = FedAS(align_opt=SGD(lr=0.5, weight_decay=0.1), align_work=ONCE)
    new = method.aligned(TASK, down, {"vars": last, "seen": torch.ones(())}, DATA, KEY)["params"]
    assert torch.equal(new["head.weight"], tensor(OTHER)) and gap(new["project.weight"], tensor(BODY)) > 1e-2


def test_fedas_skips_the_alignment_at_first_and_newcomers_take_the_body():
    fresh = FedAS().init_mine(TASK, KEY)
    down = {"vars": {"params": {"project.weight": tensor(BODY)}, "buffers": {}}}
    start = FedAS(align_work=ONCE).aligned(TASK, down, fresh, DATA, KEY)
    close(start["params"]["project.weight"], BODY)
    live = FedAS().deploy(TASK, down, fresh)["vars"]["params"]
    close(live["project.weight"], BODY)
    assert torch.equal(live["head.weight"], fresh["vars"]["params"]["head.weight"])


def test_fedas_fisher_trace_is_the_mean_over_batches():
    method = FedAS(work=Work(epochs=7, batch=2))
    positions, _ = Work(epochs=1, batch=2).plan(DATA, rng.fold(KEY, "plan"))
    batches = [both_layers(BODY, HEAD, X[p], Y[p]) for p in positions.numpy()]
    close(fisher_trace(TASK, VARS, DATA, method.work, KEY), np.mean([sum((s * s).sum() for s in b) for b in batches]))
    assert dict(method.uplink) == {"delta": Mean("fisher"), "fisher": Sum()}


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: IFCA(clusters=0), "clusters"),
        (lambda: IFCA(weights="none"), "weights"),
        (lambda: FedEM(learners=0), "learners"),
        (lambda: FedEM(weights="none"), "weights"),
        (lambda: FedALA(mix_lr=0.0), "mix_lr"),
        (lambda: FedALA(share=1.5), "share"),
        (lambda: FedALA(weights="none"), "weights"),
    ],
)
def test_bad_settings_are_refused_by_name(make, field):
    with pytest.raises(ValueError, match=f"{field}="):
        make()
