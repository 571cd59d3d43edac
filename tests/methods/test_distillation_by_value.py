"""FedTTA's losses and what HeteroFedTTA does with the public set, by value: in numpy, or with autograd alone."""

from dataclasses import replace

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from torch.func import grad

from acclimate.core import SGD, Task, Work, rng
from acclimate.methods.fedpcl import FedPCL
from acclimate.methods.fedtta import FedTTA
from acclimate.methods.heterofedtta import HeteroFedTTA
from acclimate.methods.public import divergence, public_logits, whole_step
from acclimate.models.frozen import Projection

KEY = rng.key(5)
X = torch.tensor([[1.0, 0.5, 0.2], [0.3, 0.9, 0.6], [0.7, 0.1, 0.8], [0.2, 0.4, 1.0], [0.6, 0.6, 0.1]])
Y = torch.tensor([0, 2, 0, 1, 1])
TASK = Task(Projection(width=2), (3,), 3, public=X)
BASE = {"project.weight": torch.tensor([[0.5, 0.2, 0.1], [0.1, 0.4, 0.3]])}
BASE["head.weight"] = torch.tensor([[0.3, -0.2], [0.1, 0.5], [-0.4, 0.2]])
OLD = {n: p + 0.3 for n, p in BASE.items()}
NET = {"0": {"weight": torch.tensor([[0.7, -0.3, 0.4]]), "bias": torch.tensor([0.2])}}
"""An adaptation net without hidden layers."""
HETERO = HeteroFedTTA(inner_lr=0.3, work=Work(iterations=1, batch=4, clip=None))
TEACHER = torch.tensor([[0.2, 1.0, -0.5], [0.0, 0.3, 0.9], [1.2, 0.1, 0.1], [-0.3, 0.8, 0.4], [0.5, 0.5, -1.0]])


def close(a, b):
    found, wanted = torch.as_tensor(a), torch.as_tensor(b, dtype=torch.float32)
    assert found.shape == wanted.shape and torch.allclose(found, wanted, rtol=1e-4, atol=1e-5), (found, wanted)


def answer(params, x=X):
    return (x @ params["project.weight"].T).relu() @ params["head.weight"].T


def score(net, z):
    return z @ net["0"]["weight"].T + net["0"]["bias"]


def kl(first, second):
    p, q = (np.exp(v - v.max(-1, keepdims=True)) for v in (first.detach().numpy(), second.detach().numpy()))
    p, q = p / p.sum(-1, keepdims=True), q / q.sum(-1, keepdims=True)
    return (p * np.log(p / q)).sum(-1).mean()


def leaves(params):
    return {n: p.clone().requires_grad_() for n, p in params.items()}


def stepped(base, net, lr, length=None, constant=False):
    """The parameters after the inner step, on the norm that `length` samples would have."""
    norm = score(net, answer(base)).norm() * ((length or len(X)) / len(X)) ** 0.5
    slopes = torch.autograd.grad(norm, list(base.values()), create_graph=not constant)
    return {n: p - lr * g for (n, p), g in zip(base.items(), slopes, strict=True)}


# FedTTA


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_fedttas_loss_adds_the_divergence_from_the_received_model(variant):
    method = FedTTA(inner_lr=0.3, mu=0.6, variant=variant)
    loss = method.objective(TASK, {"params": OLD, "buffers": {}}, torch.tensor(0))
    value, _ = loss({"params": {"base": BASE, "net": NET}, "buffers": {}}, {"x": X, "y": Y}, KEY)
    new, pair = stepped(leaves(BASE), NET, 0.3), (answer(BASE), answer(OLD))
    wanted = F.cross_entropy(answer(new), Y).detach() + 0.6 * kl(*(pair if variant == "paper" else pair[::-1]))
    close(value, wanted)


def test_in_first_order_the_divergence_still_holds_the_model_back():
    """The inner gradient is a constant; the base model's own logits in the divergence are not."""
    method = FedTTA(inner_lr=0.3, mu=0.6, order="first")
    loss = method.objective(TASK, {"params": OLD, "buffers": {}}, torch.tensor(0))
    batch = {"x": X, "y": Y}
    ours = grad(lambda p: loss({"params": {"base": p, "net": NET}, "buffers": {}}, batch, KEY)[0])(BASE)
    base = leaves(BASE)
    moved = {n: base[n] + (v - BASE[n]).detach() for n, v in stepped(leaves(BASE), NET, 0.3).items()}
    p, q = answer(base).softmax(-1), answer(OLD).softmax(-1)
    (F.cross_entropy(answer(moved), Y) + 0.6 * (p * (p / q).log()).sum(-1).mean()).backward()
    for name, leaf in base.items():
        close(ours[name], leaf.grad)


# HeteroFedTTA


def test_the_divergence_is_weighed_by_whoever_comes_first():
    student, teacher = answer(BASE), TEACHER
    close(divergence(student, teacher, "teacher"), kl(teacher, student))
    close(divergence(student, teacher, "student"), kl(student, teacher))


@pytest.mark.parametrize("weigh", ["teacher", "student"])
@pytest.mark.parametrize("lam", [0.0, 0.7])
def test_the_distillation_is_eq_14_to_the_last_constant(lam, weigh):
    method = replace(HETERO, lam=lam, kl=weigh)
    both, second = {"params": {"base": BASE, "net": NET}, "buffers": {}}, TEACHER.flip(0)
    value, _ = method.distillation(TASK, 0.3, both, {"x": X, "y": torch.stack([TEACHER, second], 1)}, KEY)
    new = stepped(leaves(BASE), NET, 0.3, length=4)

    def apart(student, teacher):
        return kl(teacher, student) if weigh == "teacher" else kl(student, teacher)

    close(value, apart(answer(new), TEACHER) + (lam * apart(answer(BASE), second) if lam else 0.0))


@pytest.mark.parametrize("batch", [5, 9, 100])
def test_a_batch_larger_than_the_public_set_is_the_set_once(batch):
    """One pass is then one step on the mean over all five samples, none of them counted twice."""
    method = replace(HETERO, lam=0.0, inner_lr=0.0, digest_batch=batch, join_epochs=1, opt=SGD(lr=0.5))
    down = {"logits": {"personalised": TEACHER}, "known": torch.tensor(1.0)}
    new = method.welcome(TASK, down, {"vars": {"params": BASE, "buffers": {}}}, KEY)
    hand = leaves(BASE)
    q = TEACHER.softmax(-1)
    (q * (q.log() - answer(hand).log_softmax(-1))).sum(-1).mean().backward()
    for name, leaf in hand.items():
        close(new["vars"]["params"][name], leaf.detach() - 0.5 * leaf.grad)


@pytest.mark.parametrize("batch", [2, 5, 8])
@pytest.mark.parametrize("base", [True, False])
def test_the_message_has_the_adapted_models_logits_and_the_base_ones_where_asked(batch, base):
    mine = {"vars": {"params": BASE, "buffers": {}}, "net": NET}
    up = public_logits(TASK, mine, batch, base, 0.3, HETERO.work)
    assert set(up) == ({"personalised", "base"} if base else {"personalised"})
    close(up["personalised"], answer(stepped(leaves(BASE), NET, 0.3, length=4)).detach())
    if base:
        close(up["base"], answer(BASE))
    plain = public_logits(TASK, {"vars": mine["vars"]}, batch, base, 0.3, HETERO.work)
    close(plain["personalised"], answer(BASE))


@pytest.mark.parametrize("base", [True, False])
def test_without_a_public_set_the_message_is_empty(base):
    task, mine = Task(Projection(width=2), (3,), 3), {"vars": {"params": BASE, "buffers": {}}, "net": NET}
    up = public_logits(task, mine, 4, base, 0.3, HETERO.work)
    nothing = {"logits": dict.fromkeys(HETERO.uplink, torch.zeros(0, 3)), "known": torch.tensor(1.0)}
    assert HETERO.welcome(task, nothing, mine, KEY) is mine
    assert {n: tuple(v.shape) for n, v in up.items()} == dict.fromkeys(
        ("personalised", "base") if base else ("personalised",), (0, 3)
    )


def test_a_batch_larger_than_the_set_counts_no_sample_twice_in_batch_statistics():
    task = Task(Projection(width=2, norm="batch"), (3,), 3, public=X)
    mine = {"vars": task.init(KEY), "net": NET}
    whole, larger = (public_logits(task, mine, batch, True, 0.3, HETERO.work) for batch in (5, 8))
    for name, logits in whole.items():
        close(larger[name], logits)


@pytest.mark.parametrize("batch", [1, 2, 3])
def test_a_step_on_a_set_of_three_by_hand(batch):
    """One parameter w, logits w x, scores 2 w x + 1: the norm counts as that of six samples."""
    net = {"0": {"weight": torch.tensor([[2.0]]), "bias": torch.tensor([1.0])}}
    x, w, lr = np.array([1.0, -0.5, 2.0], dtype=np.float32), 0.4, 0.1
    squares, slope = ((2 * w * x + 1) ** 2).sum(), (2 * (2 * w * x + 1) * 2 * x).sum()
    step = (6 / 3) * slope / (2 * np.sqrt(6 / 3 * squares))

    def logits(params, some):
        return some[:, None] * params["w"]

    start = {"w": torch.tensor([w])}
    close(whole_step(logits, net, start, torch.tensor(x), batch, lr, 6)["w"], [w - lr * step])
    close(whole_step(logits, net, start, torch.tensor(x), batch, lr, 6, clip=0.5)["w"], [w - lr * 0.5])


# FedPCL's answers


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_fedpcl_answers_by_the_inner_product_or_by_the_distance(variant):
    table = torch.tensor([[0.6, 0.8], [0.3, 0.1], [0.0, 0.5]])
    vars = {"params": {"project.weight": BASE["project.weight"], "head.weight": table}, "buffers": {}}
    model = {"vars": vars, "known": torch.ones(3)}
    z = X @ BASE["project.weight"].T
    z = z / z.norm(dim=-1, keepdim=True)
    if variant == "paper":
        wanted = z @ table.T / 0.5
    else:  # minus half of the squared distance, but for the half of |z|^2 = 1
        wanted = (0.5 - 0.5 * (z[:, None] - table).square().sum(-1)) / 0.5
    close(FedPCL(tau=0.5, variant=variant).predict(TASK, model, X).logits, wanted)
