"""What clients compute, on the linear model of linear.py: every loss and step written out in numpy."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import grad

from acclimate.core import SGD, StepDecay, Task, Work, rng, tree
from acclimate.methods.ditto import Ditto
from acclimate.methods.elcfs import moved
from acclimate.methods.fedatp import FedATP
from acclimate.methods.fedproto import FedProto
from acclimate.methods.fedrod import FedRoD
from acclimate.methods.fedspl import matched, mixed
from acclimate.methods.fedsr import FedSR, divergence
from acclimate.methods.fedthe import FedTHE
from acclimate.methods.fedttt import FedTTT
from acclimate.methods.ga import GA
from acclimate.methods.perfedavg import PerFedAvg
from acclimate.methods.pfedme import PFedMe
from acclimate.methods.rsc import RSC, _sure
from acclimate.methods.scaffold import SCAFFOLD
from acclimate.models.frozen import Projection
from acclimate.ops.masks import held_out
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


def test_the_numbers_here_are_those_of_the_model():
    close(TASK.apply(VARS, BATCH["x"]).features, F)
    ours = grad(lambda p: TASK.loss({**VARS, "params": p}, BATCH, KEY)[0])(VARS["params"])
    for name, wanted in zip(("project.weight", "head.weight"), both_layers(BODY, HEAD), strict=True):
        close(ours[name], wanted)


# Personal heads and models


def test_fedrods_last_head_corrects_the_sum_of_both():
    own = np.array([[0.2, 0.1], [0.0, -0.3], [0.1, 0.1]])
    method = FedRoD(opt=SGD(lr=0.5), personal_work=ONCE)
    new = method.finish_personal(TASK, DOWN, {"head": {"weight": tensor(own)}}, DATA, KEY)
    close(new["head"]["weight"], own - 0.5 * regression(F @ (HEAD + own).T))


@pytest.mark.parametrize("balanced", [True, False])
def test_fedrods_loss_is_the_balanced_one_plus_that_of_the_sum(balanced):
    own = np.array([[0.2, 0.1], [0.0, -0.3], [0.1, 0.1]])
    nets = {"params": {"generic": VARS["params"], "head": {"weight": tensor(own)}}, "buffers": {}}
    prior = np.log(np.array([2, 1, 1]) + 1.0) if balanced else 0.0
    value, _ = FedRoD(balanced=balanced).loss(TASK, DATA)(nets, BATCH, KEY)
    close(value, ce(F @ HEAD.T + prior) + ce(F @ (HEAD + own).T))


def test_fedthes_personal_head_and_descriptor():
    own = np.array([[0.2, 0.1], [0.0, -0.3], [0.1, 0.1]])
    method = FedTHE(head_opt=SGD(lr=0.5, weight_decay=0.1), head_work=ONCE, opt=SGD(lr=0.5), work=ONCE, balanced=False)
    mine = {"head": {"weight": tensor(own)}, "descriptor": torch.zeros(2)}
    up, new = method.client(TASK, DOWN, mine, DATA, KEY)
    close(new["head"]["weight"], own - 0.5 * (regression(F @ own.T) + 0.1 * own))
    for descriptor in (new["descriptor"], up["descriptor"]):
        close(descriptor, F.mean(0))
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])


def test_perfedavgs_live_model_is_so_many_inner_steps_away():
    body, head = BODY, HEAD
    for steps in (1, 2):
        down, up = both_layers(body, head)
        body, head = body - 0.3 * down, head - 0.3 * up
        live = PerFedAvg(alpha=0.3, steps=steps, work=Work(epochs=7, batch=4)).finish_personal(
            TASK, DOWN, {}, DATA, KEY
        )
        close(live["vars"]["params"]["head.weight"], head)
        close(live["vars"]["params"]["project.weight"], body)


def test_pfedmes_models_by_hand():
    """Two batches of all examples, two personal steps each: gradient plus lam (theta - w), then w follows. With a
    schedule that counts steps, the personal steps of one batch have one rate, and those of the next another."""
    method = PFedMe(opt=SGD(lr=0.1), work=Work(iterations=2, batch=4), lam=2.0, steps=2, eta=0.05)
    by_steps = replace(method, opt=SGD(lr=0.1, schedule=StepDecay("step", 1, 0.5)))
    for own, rates in ((method, (0.1, 0.1)), (by_steps, (0.1, 0.05))):
        w = theta = (BODY, HEAD)
        for rate in rates:
            for _ in range(2):
                slopes = both_layers(*theta)
                theta = tuple(t - rate * (g + 2.0 * (t - v)) for t, g, v in zip(theta, slopes, w, strict=True))
            w = tuple(v - 0.05 * 2.0 * (v - t) for v, t in zip(w, theta, strict=True))
        up, mine = own.client(TASK, DOWN, {}, DATA, KEY)
        close(mine["vars"]["params"]["head.weight"], theta[1])
        close(up["delta"]["params"]["project.weight"], w[0] - BODY)
        late = own.finish_personal(TASK, DOWN, {}, {**DATA, "round": torch.tensor(3)}, KEY)
        close(late["vars"]["params"]["project.weight"], theta[0])


def test_dittos_own_model_is_tied_to_the_received_one():
    own = HEAD + 0.2
    mine = {"vars": variables(own), "seen": torch.zeros(())}
    up, new = Ditto(lam=0.8, opt=SGD(lr=0.5), work=ONCE, personal_work=ONCE).client(TASK, DOWN, mine, DATA, KEY)
    close(new["vars"]["params"]["head.weight"], own - 0.5 * (both_layers(BODY, own)[1] + 0.8 * (own - HEAD)))
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])
    assert float(new["seen"]) == 1.0


def test_scaffolds_client_walks_along_the_corrected_gradient_and_notes_the_mean_one():
    """Option II after one step: the control is the gradient itself, whatever the correction was."""
    control, own = {n: torch.full_like(p, 0.3) for n, p in VARS["params"].items()}, {}
    own = {"control": {n: torch.full_like(p, 0.1) for n, p in VARS["params"].items()}}
    up, mine = SCAFFOLD(opt=SGD(lr=0.5), work=ONCE).client(TASK, {**DOWN, "control": control}, own, DATA, KEY)
    slope = both_layers(BODY, HEAD)[1]
    close(up["delta"]["params"]["head.weight"], -0.5 * (slope + 0.3 - 0.1))
    close(mine["control"]["head.weight"], slope)
    close(up["control"]["head.weight"], slope - 0.1)


def test_scaffolds_corrected_gradient_is_bounded_by_default():
    """A control that has gone wrong: the step is as long as the rate times ten, along the corrected gradient."""
    control = {n: torch.full_like(p, 1e6) for n, p in VARS["params"].items()}
    own = {"control": tree.zeros(VARS["params"])}
    once = replace(SCAFFOLD().work, iterations=1)
    up, _ = SCAFFOLD(opt=SGD(lr=0.5), work=once).client(TASK, {**DOWN, "control": control}, own, DATA, KEY)
    count = sum(p.numel() for p in VARS["params"].values())
    close(up["delta"]["params"]["head.weight"], np.full_like(HEAD, -0.5 * 10.0 / count**0.5))


# Losses


def test_fedprotos_client_is_pulled_to_known_prototypes():
    table, known = np.array([[1.0, 0.0], [0.5, 0.5], [0.2, 0.1]]), np.array([1.0, 1.0, 0.0])
    method = FedProto(opt=SGD(lr=0.5), work=ONCE, weight=0.7)
    down = {"prototypes": tensor(table), "known": tensor(known)}
    up, mine = method.client(TASK, down, {"vars": VARS}, DATA, KEY)
    body, head = both_layers(BODY, HEAD)
    pull = 0.7 * (known[Y][:, None] * (F - table[Y])).T @ X / 4  # the mean of the squares of two features: 2 / 2
    close(mine["vars"]["params"]["head.weight"], HEAD - 0.5 * head)
    close(mine["vars"]["params"]["project.weight"], BODY - 0.5 * (body + pull))
    trained = X @ (BODY - 0.5 * (body + pull)).T
    close(up["prototypes"], [trained[c == Y].mean(0) for c in range(3)])
    assert up["counts"].tolist() == [2, 1, 1]


def test_fedsrs_divergence_is_the_closed_form():
    mean, sigma = np.array([[0.5, -1.0]]), np.array([[0.3, 2.0]])
    other, spread = np.array([[0.1, 0.4]]), np.array([[0.2, 1.5]])
    wide = np.log1p(np.exp(spread))
    wanted = (np.log(wide / sigma) + (sigma**2 + (mean - other) ** 2) / (2 * wide**2) - 0.5).sum(-1)
    close(divergence(*map(tensor, (mean, sigma, other, spread))), wanted)


def test_fedsrs_spreads_stay_above_zero_where_a_softplus_vanishes():
    close(divergence(*map(tensor, ([[0.0]], [[1e-6]], [[0.0]], [[-200.0]]))), [0.0])
    nowhere = {"weight": torch.zeros(2, 2), "bias": torch.full((2,), -200.0)}
    extra = {"sigma": nowhere, "classes": {"mean": torch.zeros(3, 2), "spread": torch.zeros(3, 2)}}
    both = {"params": {"model": VARS["params"], "extra": extra}, "buffers": {}}
    value, _ = FedSR(l2=0.0, cmi=1.0).objective(TASK)(both, BATCH, KEY)
    apart = (np.log(np.log(2) / 1e-6) + F**2 / (2 * np.log(2) ** 2) - 0.5).sum(-1)
    close(value, ce(F @ HEAD.T) + apart.mean())


def test_fedsrs_loss_has_means_over_the_batch():
    method, sigma = (
        FedSR(l2=0.2, cmi=0.3),
        {"weight": np.array([[0.2, -0.1], [0.4, 0.3]]), "bias": np.array([-1.0, 0.5])},
    )
    classes = {"mean": np.array([[0.1, 0.2], [0.3, 0.1], [0.0, 0.4]]), "spread": np.array([[1.0, 0.5]] * 3)}
    extra = {"sigma": {k: tensor(v) for k, v in sigma.items()}, "classes": {k: tensor(v) for k, v in classes.items()}}
    value, _ = method.objective(TASK)({"params": {"model": VARS["params"], "extra": extra}, "buffers": {}}, BATCH, KEY)
    width = np.log1p(np.exp(F @ sigma["weight"].T + sigma["bias"]))
    z = F + width * rng.normal(rng.fold(KEY, "representation"), 4, 2).numpy()
    wide = np.log1p(np.exp(classes["spread"][Y]))
    apart = (np.log(wide / width) + (width**2 + (F - classes["mean"][Y]) ** 2) / (2 * wide**2) - 0.5).sum(-1)
    close(value, ce(z @ HEAD.T) + 0.2 * (z**2).sum(-1).mean() + 0.3 * apart.mean())


def test_fedttt_adds_the_loss_of_the_turns():
    """With enough images that all four turns are drawn, none included."""
    task = Task(Projection(width=2), (1, 2, 2), 3)
    images = np.random.default_rng(0).uniform(0.1, 1.0, (12, 1, 2, 2))
    y, body = np.arange(12) % 3, np.array([[0.5, 0.2, 0.1, 0.3], [0.1, 0.4, 0.3, 0.6]])
    rotation = {"weight": np.array([[0.3, -0.2], [0.1, 0.5], [-0.4, 0.2], [0.7, 0.1]]), "bias": np.arange(4) / 4}
    model = {"project.weight": tensor(body), "head.weight": tensor(HEAD)}
    both = {"params": {"model": model, "rotation": {k: tensor(v) for k, v in rotation.items()}}, "buffers": {}}
    batch = {"x": tensor(images), "y": torch.tensor(y)}
    value, _ = FedTTT(weight=0.6).loss(task, both, batch, KEY)
    turns = np.floor(4 * rng.uniform(rng.fold(KEY, "turn"), 12).double().numpy()).astype(int)
    turned = np.stack([np.rot90(image, q, (-2, -1)) for image, q in zip(images, turns, strict=True)])
    features = turned.reshape(12, 4) @ body.T
    plain = ce(images.reshape(12, 4) @ body.T @ HEAD.T, y)
    assert set(turns) == {0, 1, 2, 3}
    close(value, plain + 0.6 * ce(features @ rotation["weight"].T + rotation["bias"], turns))


def test_rsc_mutes_shares_of_features_and_of_samples():
    head = np.array([[1.0, 2.0, 3.0, -1.0], [0.5, -2.0, 0.0, 4.0]])
    features = np.array([[1.0, 1.0, 1.0, 0.0], [0.1, 0.2, 0.1, 0.3], [2.0, 0.1, 1.0, 1.0], [1.0, 1.0, 0.0, 0.5]])
    y, muted = np.array([0, 1, 0, 1]), np.ones((4, 4))
    for i in range(4):
        muted[i, np.argsort(head[y[i]])[-2:]] = 0.0  # half of four features
    sure = [softmax(f @ head.T)[np.arange(4), y] for f in (features, features * muted)]
    lost = np.argsort(sure[0] - sure[1])[-2:]
    wanted = np.ones((4, 4))
    wanted[lost] = muted[lost]
    keep = RSC(features=0.5, samples=0.5).challenge({"weight": tensor(head)}, tensor(features), torch.tensor(y))
    close(keep, wanted)
    close(_sure(tensor(F @ HEAD.T), torch.tensor(Y)), softmax(F @ HEAD.T)[np.arange(4), Y])


def test_gas_client_sends_its_gap_and_keeps_its_loss():
    down, method = {**DOWN, "weights": tensor([0.1, 0.6, 0.3])}, GA(opt=SGD(lr=0.5), work=ONCE)
    up, mine = method.client(TASK, down, {"loss": tensor(0.4), "seen": tensor(1.0)}, DATA, KEY)
    close(up["gap"], ce(F @ HEAD.T) - 0.4)
    close(up["share"], 0.6)
    body, head = both_layers(BODY, HEAD)
    close(mine["loss"], ce(X @ (BODY - 0.5 * body).T @ (HEAD - 0.5 * head).T))
    first, _ = method.client(TASK, down, {"loss": tensor(0.0), "seen": tensor(0.0)}, DATA, KEY)
    assert float(first["gap"]) == 0.0 and float(mine["seen"]) == 1.0


# Exchanges of amplitudes and of values


def test_elcfs_moves_low_frequencies_part_of_the_way_to_another_clients():
    """Client 0 has one other to draw from. Amplitudes of 3 x 3 low frequencies change, and no phases."""
    x, others = (np.random.default_rng(s).uniform(0.4, 0.6, (3, 2, 5, 5)).astype(np.float32) for s in (1, 2))
    spectra = np.fft.fftshift(np.abs(np.fft.fft2(0.8 * others, norm="ortho")), (-2, -1))
    bank = spectra[:, None, :, 1:4, 1:4]
    down = {"bank": tensor(bank), "filled": tensor([1.0, 0.0, 1.0])}
    out = np.fft.fft2(moved(tensor(x), down, torch.tensor(0), KEY).numpy(), norm="ortho")
    was, weight = np.fft.fft2(x, norm="ortho"), rng.uniform(rng.fold(KEY, "weight"), 3).numpy()
    wanted = np.fft.fftshift(np.abs(was), (-2, -1))
    wanted[..., 1:4, 1:4] += weight[:, None, None, None] * (bank[2, 0] - wanted[..., 1:4, 1:4])
    assert np.abs(np.abs(out) - np.fft.ifftshift(wanted, (-2, -1))).max() < 5e-3  # faint ones are not painted in full
    assert np.abs(np.abs(out) - np.abs(was)).max() > 0.1 and np.abs(np.angle(out / was)).max() < 1e-2


def test_equal_contents_keep_the_order_of_their_places():
    """A map with two values only, long enough that an unstable sort would mix the places of equal ones."""
    content = torch.tensor([1.0, 0.0] * 300)
    style = torch.arange(600.0).flip(0)
    places = sorted(range(600), key=lambda i: (float(content[i]), i))
    wanted = [0.0] * 600
    for value, place in enumerate(places):
        wanted[place] = float(value)
    assert matched(content, style).tolist() == wanted


def test_a_mixed_map_is_so_much_its_own():
    x = torch.arange(12.0).view(2, 1, 2, 3) ** 2
    key = next(k for k in map(rng.key, range(20)) if rng.permutation(rng.fold(k, "shuffle"), 2).tolist() == [1, 0])
    own = rng.dirichlet(rng.fold(key, "weight"), 2.0, 2, 2)[:, 0].view(2, 1, 1, 1)
    close(mixed(x, key, chance=1.0, beta=2.0), own * x.double() + (1 - own) * x.flip(0).double())  # all maps ascend
    close(mixed(x, key, chance=0.0, beta=2.0), x)


# FedATP


@pytest.mark.parametrize(("n", "held"), [(7, 2), (4, 1), (2, 1), (1, 1)])
def test_fedatp_holds_the_last_part_of_a_clients_rows(n, held):
    rows = torch.tensor([10, 11, 12, 13, 14, 15, 16, 17])
    fitted, judged = held_out({"rows": rows, "n": torch.tensor(n), "round": torch.tensor(0)}, parts=3)
    assert int(fitted["n"]) == max(n - held, 1) and torch.equal(fitted["rows"], rows)
    assert int(judged["n"]) == held
    assert judged["rows"][:held].tolist() == list(range(10 + n - held, 10 + n))


def test_fedatps_rates_rise_where_entropy_and_loss_fall_together():
    """One batch: r + rate_lr <d loss, d entropy> / sqrt(size), at the model that the old rates lead to."""
    method = FedATP(rate_lr=0.2, rate_work=Work(epochs=1, batch=4))
    p = softmax(F @ HEAD.T)
    entropy = -(p * np.log(p)).sum(-1, keepdims=True)
    by_logits = -p * (np.log(p) + entropy) / 4
    way = {"project.weight": (by_logits @ HEAD).T @ X, "head.weight": by_logits.T @ F}
    rates = {"params": {"project.weight": tensor(0.3), "head.weight": tensor(-0.5)}, "buffers": {}}
    there = BODY - 0.3 * way["project.weight"], HEAD + 0.5 * way["head.weight"]
    slopes = dict(zip(way, both_layers(*there), strict=True))
    padded = {**DATA, "rows": torch.arange(4).repeat(2)}  # room for a second batch, which is undone
    new = method.learned(TASK, VARS, rates, padded, KEY)["params"]
    for name, old in (("project.weight", 0.3), ("head.weight", -0.5)):
        close(new[name], old + 0.2 * (slopes[name] * way[name]).sum() / np.sqrt(6))


@pytest.mark.parametrize(("round", "still"), [(1, "rates"), (2, "delta")])
def test_fedatp_trains_the_model_first_and_the_rates_later(round, still):
    method = FedATP(pretrain=2, work=ONCE, rate_work=replace(ONCE, batch=1))
    zero = {"params": {n: torch.zeros(()) for n in VARS["params"]}, "buffers": {}}
    up, _ = method.client(TASK, {**DOWN, "rates": zero}, {}, {**DATA, "round": torch.tensor(round)}, KEY)
    for group in ("delta", "rates"):
        assert any(bool(v.any()) for v in up[group]["params"].values()) == (group != still)


@pytest.mark.parametrize("round", [0, 99])
def test_fedatp_does_both_in_every_round_by_default(round):
    """A fixed number of rounds left the model as it was after the fifth of a hundred."""
    zero = {"params": {n: torch.zeros(()) for n in VARS["params"]}, "buffers": {}}
    down, own = {**DOWN, "rates": zero}, {**DATA, "round": torch.tensor(round)}
    both = FedATP(work=ONCE, rate_work=replace(ONCE, batch=1))
    first, later = (replace(both, pretrain=p).client(TASK, down, {}, own, KEY)[0] for p in (100, 0))
    up, _ = both.client(TASK, down, {}, own, KEY)
    for name in VARS["params"]:
        close(up["delta"]["params"][name], first["delta"]["params"][name].numpy())
        close(up["rates"]["params"][name], later["rates"]["params"][name].numpy())
        assert bool(first["delta"]["params"][name].any()) and bool(later["rates"]["params"][name].any())
