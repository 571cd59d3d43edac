"""Methods that are FedAvg with another local loss or another part that stays: FedDyn, MOON, FedBABU, LG-FedAvg, FedLC,
FedNTD and FedDecorr, by their equalities and by value on the linear model of linear.py."""

from dataclasses import replace
from functools import cache

import numpy as np
import pytest
import torch

from acclimate.core import SGD, Work, tree
from acclimate.core.limits import Within
from acclimate.experiment import catalogue
from acclimate.methods import MOON, FedAvg, FedDecorr, FedDyn, FedLC, FedNTD
from acclimate.methods.feddecorr import correlation
from acclimate.methods.fedntd import not_true_divergence
from acclimate.methods.moon import contrast
from acclimate.personal import FineTune
from by_hand import slope
from linear import BODY, DATA, DOWN, HEAD, KEY, ONCE, TASK, F, X, Y, both_layers, close, regression, tensor, variables
from support import SMALL, equal, fitted, gap

TWICE = Work(iterations=2, batch=4)
NAMES = ("project.weight", "head.weight")


@cache
def trained(method, rounds=2):
    """The server's model after some rounds of the cheapest federation."""
    return fitted(method, model="mlp-dropout", rounds=rounds)[2].server["vars"]


@pytest.mark.parametrize(
    ("method", "weights"),
    [
        (FedDyn(alpha=0.0, work=SMALL), "uniform"),
        (MOON(mu=0.0, work=SMALL), "samples"),
        (FedNTD(beta=0.0, work=SMALL), "samples"),
        (FedLC(tau=0.0, work=SMALL), "samples"),
        (FedDecorr(beta=0.0, work=SMALL), "samples"),
        (replace(catalogue.METHODS["lg-fedavg"], private=(), work=SMALL), "samples"),
        (replace(catalogue.METHODS["fedbabu"], private=(), frozen=(), work=SMALL), "samples"),
    ],
    ids=lambda v: v if isinstance(v, str) else type(v).__name__,
)
def test_without_its_term_it_is_fedavg(method, weights):
    assert gap(trained(method), trained(FedAvg(work=SMALL, weights=weights))) < 1e-6


# FedDyn


def test_feddyns_steps_by_value():
    alpha, lr, rng_ = 0.3, 0.5, np.random.default_rng(0)
    g = [rng_.normal(size=BODY.shape) * 0.1, rng_.normal(size=HEAD.shape) * 0.1]
    mine = {"g": dict(zip(NAMES, map(tensor, g), strict=True))}
    method = FedDyn(alpha=alpha, opt=SGD(lr=lr), work=TWICE)
    up, new = method.client(TASK, DOWN, mine, DATA, KEY)
    w = start = [BODY, HEAD]
    for _ in range(2):
        slopes = both_layers(*w)
        w = [p - lr * (s - own + alpha * (p - q)) for p, s, own, q in zip(w, slopes, g, start, strict=True)]
    for name, p, q, own in zip(NAMES, w, start, g, strict=True):
        close(up["delta"]["params"][name], p - q)
        close(new["g"][name], own - alpha * (p - q))
    assert int(up["present"]) == 1


def test_a_client_of_feddyn_counts_as_present_once_at_most():
    assert FedDyn().limits["present"] == Within(0.0, 1.0)


def test_feddyns_server_by_value():
    method, step = FedDyn(alpha=0.2), {"params": dict.fromkeys(NAMES), "buffers": {}}
    server = method.init_server(TASK, 10, KEY)
    start, h = server["vars"]["params"], 0.0
    w = {n: start[n].numpy() for n in NAMES}
    for size, present in ((1.0, 4), (-0.5, 5)):
        step = {"params": {n: torch.full_like(start[n], size) for n in NAMES}, "buffers": {}}
        server = method.server(TASK, server, {"delta": step, "present": torch.tensor(present)}, KEY)
        h = h - 0.2 * present / 10 * size  # h <- h - alpha / N sum
        w = {n: w[n] + size - h / 0.2 for n in NAMES}
    for name in NAMES:
        close(server["vars"]["params"][name], w[name])
        close(server["h"][name], np.full_like(w[name], h))


def test_feddyns_clients_are_fedavgs_where_alpha_goes_to_zero_and_the_server_adds_what_went_before():
    worker, _, state = fitted(FedDyn(alpha=1e-7, work=SMALL), model="mlp-dropout", rounds=1, cohort=6)
    dyn = state.server
    avg = fitted(FedAvg(work=SMALL, weights="uniform"), model="mlp-dropout", rounds=1, cohort=6)[2].server
    start = FedAvg().init_server(worker.task, 6, worker.key("init"))["vars"]["params"]
    mean = tree.add(dyn["vars"]["params"], dyn["h"], 1e7)
    assert gap(mean, avg["vars"]["params"]) < 1e-5  # the clients' mean model
    twice = tree.add(avg["vars"]["params"], tree.sub(avg["vars"]["params"], start))
    assert gap(dyn["vars"]["params"], twice) < 1e-5


# MOON


def cosine(a, b):
    return (a * b).sum(-1) / np.sqrt((a * a).sum(-1) * (b * b).sum(-1))


def test_moons_term_by_value():
    draw = np.random.default_rng(1)
    z, near, far = (draw.normal(size=(4, 5)) for _ in range(3))
    towards, away = np.exp(cosine(z, near) / 0.5), np.exp(cosine(z, far) / 0.5)
    close(contrast(tensor(z), tensor(near), tensor(far), 0.5), -np.log(towards / (towards + away)).mean())


def test_moons_step_is_that_of_both_terms_and_its_last_model_is_kept():
    draw, lr, mu, step = np.random.default_rng(2), 0.5, 2.0, 1e-5
    last = np.abs(draw.normal(size=BODY.shape))
    before = {"params": {"project.weight": tensor(last), "head.weight": tensor(HEAD)}, "buffers": {}}
    method = MOON(mu=mu, tau=0.7, opt=SGD(lr=lr), work=ONCE)
    up, new = method.client(TASK, DOWN, {"vars": before, "seen": torch.ones(())}, DATA, KEY)
    z_near, z_far = F, X @ last.T

    def term(body):
        z = X @ body.T
        return np.log1p(np.exp((cosine(z, z_far) - cosine(z, z_near)) / 0.7)).mean()

    away = slope(term, BODY, step)
    assert np.abs(away).max() > 1e-2
    of_body, of_head = both_layers(BODY, HEAD)
    close(up["delta"]["params"]["project.weight"], -lr * (of_body + mu * away))
    close(up["delta"]["params"]["head.weight"], -lr * of_head)
    assert equal(new["vars"], tree.add(DOWN["vars"], up["delta"])) and float(new["seen"]) == 1.0


def test_moons_first_round_is_fedavg():
    fresh = {"vars": variables(-HEAD), "seen": MOON().init_mine(TASK, KEY)["seen"]}
    fresh["vars"]["params"]["project.weight"] = tensor(BODY[::-1].copy())
    up, _ = MOON(opt=SGD(lr=0.5), work=ONCE).client(TASK, DOWN, fresh, DATA, KEY)  # whenever that round is
    close(up["delta"]["params"]["project.weight"], -0.5 * both_layers(BODY, HEAD)[0])
    moon, plain = MOON(work=SMALL), FedAvg(work=SMALL)
    assert gap(trained(moon, 1), trained(plain, 1)) < 1e-5
    assert gap(trained(moon, 3), trained(plain, 3)) > 1e-3


# FedBABU, LG-FedAvg


def test_fedbabu_is_fedavg_on_the_body_under_the_common_head():
    method = replace(catalogue.METHODS["fedbabu"], work=SMALL)
    worker, engine, state = fitted(method, model="mlp-dropout", rounds=2)
    kept = fitted(FedAvg(work=SMALL, frozen=("head",)), model="mlp-dropout", rounds=2)[2].server[
        "vars"
    ]  # the same head, sent along
    start = worker.task.init(worker.key("init"))["params"]
    for name in worker.task.head:
        assert torch.equal(kept["params"][name], start[name]) and name not in state.server["vars"]["params"]
        assert all(torch.equal(row, start[name]) for row in state.mine["vars"]["params"][name])
    assert gap(state.server["vars"], {k: tree.drop(v, worker.task.head) for k, v in kept.items()}) < 1e-6
    tuned = engine.model_of(engine.deploy(state.server, state.mine, FineTune(work=SMALL)), 0)["vars"]["params"]
    assert all(not torch.equal(tuned[name], start[name]) for name in worker.task.head)


def test_fedbabus_step_leaves_the_head():
    up, _ = FedAvg(frozen=("head",), opt=SGD(lr=0.5), work=ONCE).client(TASK, DOWN, {}, DATA, KEY)
    close(up["delta"]["params"]["project.weight"], -0.5 * both_layers(BODY, HEAD)[0])
    close(up["delta"]["params"]["head.weight"], np.zeros_like(HEAD))


def test_lg_fedavg_sends_the_head_alone():
    worker, _, state = fitted(
        replace(catalogue.METHODS["lg-fedavg"], work=SMALL), model="mlp-dropout", rounds=2, cohort=6
    )
    sent = {p["name"].split("/", 1)[-1] for p in state.cost["message"] if p["group"] == "delta"}
    assert sent == worker.task.head == set(state.server["vars"]["params"])
    assert not state.server["vars"]["buffers"]
    kept = state.mine["vars"]
    assert {*kept["params"], *kept["buffers"]} == worker.task.select("body")
    assert all(not torch.equal(p[0], p[1]) for name, p in kept["params"].items() if name.endswith("weight"))


# FedLC


def test_fedlcs_step_has_margins_by_class_counts():
    few = np.array([0, 1, 0, 0])
    data = {**DATA, "y": torch.tensor(few)}
    counts = np.array([3.0, 1.0, 1e-8])
    up, _ = FedLC(tau=0.8, opt=SGD(lr=0.5), work=ONCE).client(TASK, DOWN, {}, data, KEY)
    z = F @ HEAD.T - 0.8 * counts**-0.25
    close(up["delta"]["params"]["head.weight"], -0.5 * regression(z, few))
    assert float(up["delta"]["params"]["head.weight"][2].abs().max()) == 0.0  # a class that nobody holds is left alone


# FedNTD


def test_fedntds_divergence_leaves_the_true_class_out():
    draw = np.random.default_rng(3)
    z, teacher, wanted = draw.normal(size=(4, 3)) * 2, draw.normal(size=(4, 3)) * 2, []
    for i, y in enumerate(Y):
        rest = [c for c in range(3) if c != y]
        p, q = (np.exp(v[i, rest] / 2.0) / np.exp(v[i, rest] / 2.0).sum() for v in (teacher, z))
        wanted.append((p * np.log(p / q)).sum())
    close(not_true_divergence(tensor(z), tensor(teacher), torch.tensor(Y), 2.0), np.mean(wanted))


def test_fedntds_second_step_is_drawn_back_to_the_received_answers():
    beta, tau, lr = 3.0, 2.0, 0.5
    up, _ = FedNTD(beta=beta, tau=tau, opt=SGD(lr=lr), work=TWICE).client(TASK, DOWN, {}, DATA, KEY)
    w, teacher = [BODY, HEAD], F @ HEAD.T
    for _ in range(2):
        z, rest = X @ w[0].T @ w[1].T, 1.0 - np.eye(3)[Y]
        p, q = (np.exp(v / tau) * rest for v in (teacher, z))
        p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
        error = beta * tau**2 * (q - p) / tau / len(Y)  # of the divergence, by the logits
        more = [(error @ w[1]).T @ X, error.T @ (X @ w[0].T)]
        w = [v - lr * (a + b) for v, a, b in zip(w, both_layers(*w), more, strict=True)]
    close(up["delta"]["params"]["project.weight"], w[0] - BODY)
    close(up["delta"]["params"]["head.weight"], w[1] - HEAD)


# FedDecorr


def test_feddecorrs_term_is_that_of_numpys_correlations():
    z = np.random.default_rng(4).normal(size=(9, 4)) @ np.random.default_rng(5).normal(size=(4, 4))
    among = np.corrcoef(z.T)
    close(correlation(tensor(z)), ((among**2).sum() - 4) / 16)
    still = correlation(torch.ones(3, 4))  # rectified units may be silent for a whole batch
    assert float(still) == 0.0


def test_feddecorrs_loss_adds_beta_times_the_term():
    lr, beta, step = 0.5, 2.0, 1e-4
    up, _ = FedDecorr(beta=beta, opt=SGD(lr=lr), work=ONCE).client(TASK, DOWN, {}, DATA, KEY)

    def term(body):
        z = X @ body.T
        apart = z - z.mean(0)
        among = (apart / np.sqrt(apart.var(0) + 1e-5)).T @ (apart / np.sqrt(apart.var(0) + 1e-5)) / len(z)
        return 2 * among[0, 1] ** 2 / 4

    away = slope(term, BODY, step)
    assert np.abs(away).max() > 1e-2
    close(up["delta"]["params"]["project.weight"], -lr * (both_layers(BODY, HEAD)[0] + beta * away))


@pytest.mark.parametrize(
    ("make", "field"),
    [
        (lambda: FedDyn(alpha=-0.1), "alpha"),
        (lambda: MOON(mu=-1.0), "mu"),
        (lambda: MOON(tau=0.0), "tau"),
        (lambda: FedNTD(beta=-1.0), "beta"),
        (lambda: FedNTD(tau=0.0), "tau"),
        (lambda: FedLC(tau=-1.0), "tau"),
        (lambda: FedDecorr(beta=-1.0), "beta"),
        (lambda: FedLC(weights="none"), "weights"),
    ],
)
def test_bad_settings_are_refused_by_name(make, field):
    with pytest.raises(ValueError, match=f"{field}="):
        make()
