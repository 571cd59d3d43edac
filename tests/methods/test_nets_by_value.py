"""Methods that train or exchange more than one net: losses, mixtures and messages, by value."""

from dataclasses import replace

import numpy as np
import pytest
import torch
from torch.func import grad

from acclimate.core import SGD, StepDecay, Task, Work, rng, tree
from acclimate.methods.apfl import APFL
from acclimate.methods.ditto import Ditto
from acclimate.methods.fedadg import FedADG
from acclimate.methods.fedicon import FedICON
from acclimate.methods.fednova import FedNova
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedrep import FedRep
from acclimate.methods.fedrod import FedRoD
from acclimate.methods.fedspl import restyled
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.gma import GMA
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.odpfl import ODPFL
from acclimate.methods.rsc import RSC
from acclimate.models import MLP
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
    softmax,
    tensor,
    variables,
)

OWN = HEAD + np.array([[0.2, 0.1], [0.0, -0.3], [0.1, 0.1]])


def sigmoid(v):
    return 1 / (1 + np.exp(-v))


# FedADG


def adversaries():
    """Generator and discriminator of one noise and two hidden units: for torch, and for numpy."""
    nets = FedADG(noise=1, hidden=2).init_server(TASK, 2, KEY)["adversary"]
    return nets, tree.map(lambda v: v.double().numpy(), nets)


def through(net, x):
    for i in range(len(net)):
        x = (np.maximum(x, 0.0) if i else x) @ net[str(i)]["weight"].T + net[str(i)]["bias"]
    return x


def test_fedadgs_loss_is_the_sum_of_its_three():
    nets, plain = adversaries()
    assert plain["generator"]["1"]["weight"].shape == (2, 2) and plain["discriminator"]["1"]["weight"].shape == (1, 2)
    both = {"params": {"model": VARS["params"], "adversary": nets}, "buffers": {}}
    value, _ = FedADG(weight=0.3, noise=1, hidden=2).objective(TASK)(both, BATCH, KEY)
    label = np.eye(3)[Y]
    noise = rng.uniform(rng.fold(KEY, "noise"), 4, 1).double().numpy()
    drawn = through(plain["generator"], np.concatenate([noise, label], -1))

    def judged(features):
        return sigmoid(through(plain["discriminator"], np.concatenate([features, label], -1))[:, 0])

    model = 0.7 * ce(F @ HEAD.T) + 0.3 * ((1 - judged(F)) ** 2).mean()
    apart = (judged(drawn) ** 2 + (1 - judged(F)) ** 2).mean()
    close(value, model + ((1 - judged(drawn)) ** 2).mean() - apart)


def test_each_net_of_fedadg_follows_its_own_loss():
    """By differences: the model's loss for the model, and for the discriminator minus the third loss alone."""
    nets, plain = adversaries()
    loss, label = FedADG(weight=0.3, noise=1, hidden=2).objective(TASK), np.eye(3)[Y]

    def whole(params):
        return loss({"params": params, "buffers": {}}, BATCH, KEY)[0]

    slopes = grad(whole)({"model": VARS["params"], "adversary": nets})
    noise = rng.uniform(rng.fold(KEY, "noise"), 4, 1).double().numpy()
    drawn = through(plain["generator"], np.concatenate([noise, label], -1))

    def judged(features, shift=0.0):
        return sigmoid(through(plain["discriminator"], np.concatenate([features, label], -1))[:, 0] + shift)

    def apart(shift):
        return (judged(drawn, shift) ** 2 + (1 - judged(F, shift)) ** 2).mean()

    def model(shift):
        body = BODY.copy()
        body[1, 2] += shift
        f = X @ body.T
        return 0.7 * ce(f @ HEAD.T) + 0.3 * ((1 - judged(f)) ** 2).mean()

    def generator(shift):
        return ((1 - judged(drawn + np.array([shift, 0.0]))) ** 2).mean()

    step = 1e-4
    bias = slopes["adversary"]["discriminator"]["1"]["bias"]
    close(bias, [-(apart(step) - apart(-step)) / (2 * step)])
    close(slopes["model"]["project.weight"][1, 2], (model(step) - model(-step)) / (2 * step))
    close(slopes["adversary"]["generator"]["1"]["bias"][0], (generator(step) - generator(-step)) / (2 * step))


# Mixtures and masks


def test_apfls_weight_and_models_after_one_step():
    """In the third round of a rate of 2 that is halved in every round: 0.5."""
    method = APFL(alpha=0.4, opt=SGD(lr=2.0, schedule=StepDecay("round", 1, 0.5)), work=ONCE)
    data = {**DATA, "round": torch.tensor(2)}
    mine = {"vars": variables(OWN), "alpha": tensor(0.4), "seen": tensor(0.0)}
    up, new = method.client(TASK, DOWN, mine, data, KEY)
    mixed = 0.4 * OWN + 0.6 * HEAD
    alpha = 0.4 - 0.5 * ((OWN - HEAD) * both_layers(BODY, mixed)[1]).sum()  # both have the same body
    close(new["alpha"], alpha)
    mixed = alpha * OWN + (1 - alpha) * HEAD
    close(new["vars"]["params"]["head.weight"], OWN - 0.5 * alpha * both_layers(BODY, mixed)[1])
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])
    assert float(new["seen"]) == 1.0
    live = method.deploy(TASK, DOWN, {**mine, "seen": tensor(1.0)})["vars"]["params"]
    close(live["head.weight"], 0.4 * OWN + 0.6 * HEAD)
    close(method.deploy(TASK, DOWN, mine)["vars"]["params"]["head.weight"], HEAD)
    still = replace(method, adapt_alpha=False).client(TASK, DOWN, mine, data, KEY)[1]
    close(still["alpha"], 0.4)


@pytest.mark.parametrize(("lr", "wanted"), [(1e4, None), (1e-9, 0.4)])
def test_apfls_weight_stays_between_zero_and_one(lr, wanted):
    own = {"vars": variables(OWN), "alpha": tensor(0.4), "seen": tensor(0.0)}
    slope = ((OWN - HEAD) * both_layers(BODY, 0.4 * OWN + 0.6 * HEAD)[1]).sum()
    alpha = APFL(opt=SGD(lr=lr), work=ONCE)._adapted(TASK, VARS, own, DATA, KEY)
    close(alpha, wanted if wanted is not None else float(slope < 0))


def test_dittos_live_model_is_its_own_where_it_took_part():
    for seen, head in ((1.0, OWN), (0.0, HEAD)):
        live = Ditto().deploy(TASK, DOWN, {"vars": variables(OWN), "seen": tensor(seen)})
        close(live["vars"]["params"]["head.weight"], head)


def test_fedrod_answers_with_the_sum_of_both_heads():
    out = FedRoD().predict(TASK, {**DOWN, "head": {"weight": tensor(OWN)}}, BATCH["x"])
    close(out.logits, F @ (HEAD + OWN).T)


def test_gmas_server_keeps_agreed_coordinates_and_shrinks_others():
    server = {"vars": {"params": {"w": torch.zeros(4)}, "buffers": {}}}
    total = {"delta": {"params": {"w": tensor([1.0, 1.0, 1.0, 1.0])}, "buffers": {}}}
    total["sign"] = {"w": tensor([1.0, -0.5, 0.25, 0.0])}
    new = GMA(tau=0.5, server_lr=2.0).server(TASK, server, total, KEY)
    close(new["vars"]["params"]["w"], [2.0, 2.0, 0.5, 0.0])


def test_fedreps_head_and_body_are_trained_one_after_the_other():
    method = FedRep(opt=SGD(lr=0.5), work=ONCE)
    mine = {"vars": {"params": {"head.weight": tensor(HEAD)}, "buffers": {}}}
    down = {"vars": {"params": {"project.weight": tensor(BODY)}, "buffers": {}}}
    up, new = method.client(TASK, down, mine, DATA, KEY)
    head = np.asarray(new["vars"]["params"]["head.weight"], dtype=np.float64)
    close(up["delta"]["params"]["project.weight"], -0.5 * both_layers(BODY, head)[0])
    assert set(up["delta"]["params"]) == {"project.weight"} and set(new["vars"]["params"]) == {"head.weight"}


# Local steps


def test_fednovas_client_sends_its_mean_step():
    up, _ = FedNova(opt=SGD(lr=0.5, momentum=0.5), work=replace(ONCE, iterations=1)).client(TASK, DOWN, {}, DATA, KEY)
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])
    body, head = BODY, HEAD
    for _ in range(2):
        slopes = both_layers(body, head)
        body, head = body - 0.5 * slopes[0], head - 0.5 * slopes[1]
    up, _ = FedNova(opt=SGD(lr=0.5), work=Work(iterations=2, batch=4)).client(TASK, DOWN, {}, DATA, KEY)
    close(up["delta"]["params"]["head.weight"], (head - HEAD) / 2)
    close(up["steps"], 2.0)


def test_rscs_client_learns_from_what_is_left():
    """Half of two features of every sample are muted: the larger weight of its class."""
    method = RSC(features=0.5, samples=1.0, opt=SGD(lr=0.5), work=ONCE)
    keep = np.ones((4, 2))
    keep[np.arange(4), HEAD[Y].argmax(-1)] = 0.0
    error = (softmax((F * keep) @ HEAD.T) - np.eye(3)[Y]) / 4
    up, _ = method.client(TASK, DOWN, {}, DATA, KEY)
    close(up["delta"]["params"]["head.weight"], -0.5 * error.T @ (F * keep))
    close(up["delta"]["params"]["project.weight"], -0.5 * ((error @ HEAD) * keep).T @ X)


def test_fedpcls_first_round_changes_no_weight_and_later_ones_do():
    method = FedPCL(opt=SGD(lr=0.5, weight_decay=0.1), work=ONCE)
    mine = {"vars": VARS, "prototypes": torch.zeros(3, 2), "counts": torch.zeros(3)}
    table = torch.tensor([[1.0, 0.0], [0.0, 1.0], [0.6, 0.8]])
    down = {"global": table, "known": torch.ones(3), "sets": table[None].repeat(2, 1, 1)}
    for seen, still in ((torch.zeros(2), True), (tensor([0.0, 1.0]), False), (tensor([0.0, 0.5]), False)):
        up, new = method.client(TASK, {**down, "seen": seen}, mine, DATA, KEY)
        assert torch.equal(new["vars"]["params"]["project.weight"], VARS["params"]["project.weight"]) == still
        assert up["counts"].tolist() == [2, 1, 1] and int(up["id"]) == 1
    unit = F / np.linalg.norm(F, axis=-1, keepdims=True)
    fresh = method.finish_personal(TASK, down, mine, DATA, KEY)
    close(fresh["prototypes"], [unit[c == Y].mean(0) for c in range(3)])


def test_a_map_takes_all_its_values_from_its_partner_in_its_own_order():
    """Orders are those of whole maps and not of their rows; the gradient is that of the map itself."""
    x = tensor([[[[5.0, 1.0], [7.0, 3.0]]], [[[20.0, 80.0], [40.0, 10.0]]]])
    order = rng.permutation(rng.fold(KEY, "shuffle"), 2)
    swapped = [[[[40.0, 10.0], [80.0, 20.0]]], [[[3.0, 7.0], [5.0, 1.0]]]]
    close(restyled(x, KEY), swapped if order.tolist() == [1, 0] else x)
    keys = (rng.key(s) for s in range(20))
    other = next(k for k in keys if rng.permutation(rng.fold(k, "shuffle"), 2).tolist() == [1, 0])
    close(restyled(x, other), swapped)
    close(grad(lambda v: (restyled(v, other) * x).sum())(x), x)


# Architectures, descriptions and switches


def test_adaptation_nets_end_in_one_number():
    task = Task(MLP(hidden=(3,)), (1, 6, 6), 4)
    net = FedTTA(hidden=(5,)).init_server(task, 2, KEY)["net"]
    assert [tuple(layer["weight"].shape) for layer in net.values()] == [(5, 4), (1, 5)]
    method = HeteroFedTTA(widths=(8, 16, 24))
    assert [method.for_model(n).widths for n in (0, 1, 2, 3, 7)] == [(8,), (16,), (24,), (8,), (16,)]
    server = {"logits": {}, "known": torch.tensor(2.0)}
    assert float(method.server(task, server, {"personalised": torch.ones(1)}, KEY)["known"]) == 3.0


def test_odpfls_server_keeps_the_mean_description_and_deploys_it_to_strangers():
    method = ODPFL(size=2, hidden=3, encoder_opt=SGD(lr=0.5), hyper_opt=SGD(lr=0.5))
    server = method.init_server(TASK, 2, KEY)
    total = {"encoder": tree.map(torch.ones_like, server["encoder"]), "buffers": {}}
    total["missed"] = {n: torch.zeros(2, *p.shape) for n, p in VARS["params"].items()}
    total["description"] = tensor([[1.0, 4.0], [3.0, 0.0]])
    new = method.server(TASK, server, total, KEY)
    close(new["description"], [2.0, 2.0])
    for now, old in zip(tree.leaves(new["encoder"]), tree.leaves(server["encoder"]), strict=True):
        close(now, old.numpy() - 0.5)
    down = method.download(TASK, new)
    assert "opt" not in down
    mean, told = (method.deploy(TASK, down, mine) for mine in ({}, {"description": tensor([2.0, 2.0])}))
    close(mean["vars"]["params"]["head.weight"], told["vars"]["params"]["head.weight"].numpy())
    away = method.deploy(TASK, down, {"description": tensor([-5.0, 9.0])})["vars"]["params"]["head.weight"]
    assert not torch.allclose(away, told["vars"]["params"]["head.weight"])


def test_fedicons_switches_say_what_is_sent_and_kept():
    alone, plain = FedICON(share=False), FedICON(extract=False, opt=SGD(lr=0.5), work=ONCE)
    assert set(FedICON().uplink) == {"delta", "n"} and dict(alone.uplink) == {}
    task = Task(MLP(hidden=(3,)), (1, 6, 6), 4)
    assert set(FedICON().init_server(task, 2, KEY)) == {"vars"} and FedICON().init_mine(task, KEY) == {}
    assert alone.init_server(task, 2, KEY) == {} and set(alone.init_mine(task, KEY)) == {"vars"}
    with pytest.raises(ValueError, match="FedICON"):
        FedICON().init_server(TASK, 2, KEY)
    assert set(plain.init_server(TASK, 2, KEY)) == {"vars"}
    up, mine = plain.client(TASK, DOWN, {}, DATA, KEY)
    close(up["delta"]["params"]["head.weight"], -0.5 * both_layers(BODY, HEAD)[1])
    assert mine == {} and plain.finish_personal(TASK, DOWN, {}, DATA, KEY) == {}
    up, mine = replace(plain, share=False).client(TASK, {}, DOWN, DATA, KEY)
    close(mine["vars"]["params"]["head.weight"], HEAD - 0.5 * both_layers(BODY, HEAD)[1])
    assert up == {} and alone.server(TASK, {}, {}, KEY) == {}
