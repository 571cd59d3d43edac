"""The records equal torch.optim, step by step."""

from dataclasses import replace

import pytest
import torch
from torch.func import grad

from acclimate.core.optim import SGD, Adam, AdamW, Constant, Cosine, StepDecay
from acclimate.experiment import catalogue
from acclimate.methods import FedAvg

CASES = [
    (SGD(lr=0.1), torch.optim.SGD, {"lr": 0.1}),
    (SGD(lr=0.1, momentum=0.9, weight_decay=0.01), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "weight_decay": 0.01}),
    (SGD(lr=0.1, momentum=0.9, nesterov=True), torch.optim.SGD, {"lr": 0.1, "momentum": 0.9, "nesterov": True}),
    (Adam(lr=0.05, weight_decay=0.1), torch.optim.Adam, {"lr": 0.05, "weight_decay": 0.1}),
    (AdamW(lr=0.05, weight_decay=0.1), torch.optim.AdamW, {"lr": 0.05, "weight_decay": 0.1}),
]


def objective(p):
    return ((p["a"] - 3) ** 2).sum() + (p["b"].sin() * p["a"][0]).sum()


@pytest.mark.parametrize(("ours", "theirs", "options"), CASES)
def test_equals_torch(ours, theirs, options):
    start = {"a": torch.tensor([1.0, -2.0]), "b": torch.tensor([0.5, 0.1, 2.0])}
    params, state = start, ours.init(start)
    twins = {k: v.clone().requires_grad_() for k, v in start.items()}
    opt = theirs(twins.values(), **options)
    for _ in range(7):
        params, state = ours.update(grad(objective)(params), state, params)
        opt.zero_grad()
        objective(twins).backward()
        opt.step()
        for k in start:
            torch.testing.assert_close(params[k], twins[k].detach(), rtol=1e-5, atol=1e-6)


def test_schedules():
    time = torch.arange(0, 30)
    assert Constant().factor(time) == 1.0
    assert StepDecay(every=10, gamma=0.5).factor(time)[[0, 9, 10, 29]].tolist() == [1.0, 1.0, 0.5, 0.25]
    cosine = Cosine(total=20, floor=0.1).factor(time)
    assert cosine[[0, 10, 20, 29]].tolist() == pytest.approx([1.0, 0.55, 0.1, 0.1], abs=1e-6)


def test_a_schedule_scales_the_step():
    opt, p = SGD(lr=0.2, schedule=StepDecay(every=1, gamma=0.5)), {"a": torch.ones(1)}
    scale = opt.scale(torch.tensor(2), torch.tensor(9))
    new, _ = opt.update({"a": torch.ones(1)}, {}, p, scale)
    assert float(new["a"]) == pytest.approx(1 - 0.2 * 0.25)
    per_step = SGD(schedule=StepDecay(per="step", every=1, gamma=0.5))
    assert float(per_step.scale(torch.tensor(2), torch.tensor(1))) == 0.5


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: SGD(lr=0.0), "SGD: lr=0.0 must be a finite number above 0"),
        (lambda: SGD(lr=float("nan")), "lr=nan"),
        (lambda: SGD(momentum=1.5), "momentum=1.5 must be between 0.0 and 1.0"),
        (lambda: SGD(nesterov=True), "needs momentum"),
        (lambda: Adam(eps=0.0), "eps=0.0"),
        (lambda: StepDecay(every=0), "every=0"),
        (lambda: Cosine(per="week"), "per='week' must be one of 'round', 'step'"),
        (lambda: Adam(b1=1.0), "Adam: b1=1.0 must be below 1"),
        (lambda: AdamW(b2=1.0), "AdamW: b2=1.0 must be below 1"),
    ],
)
def test_bad_fields_are_named(make, says):
    with pytest.raises(ValueError, match=says.replace("(", r"\(")):
        make()


@pytest.mark.parametrize("name", ["tent", "tsa", "ttt", "the", "eata", "memo", "surgical"])
def test_a_schedule_is_refused_where_no_clock_runs(name):
    """It would be ignored."""
    with pytest.raises(ValueError, match=r"opt\.schedule=StepDecay.* must be Constant"):
        replace(catalogue.ADAPTERS[name], opt=SGD(schedule=StepDecay()))


def test_the_servers_optimiser_has_no_schedule_either():
    with pytest.raises(ValueError, match=r"server_opt\.schedule"):
        FedAvg(server_opt=SGD(schedule=StepDecay()))
    FedAvg(opt=SGD(schedule=StepDecay()))
