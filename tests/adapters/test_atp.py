"""ATP: no adaptation at zero rates, the online mean, and rates that descend the loss after adaptation."""

from dataclasses import replace

import pytest
import torch
import torch.nn.functional as F

from acclimate.adapters import NoAdapt
from acclimate.adapters.atp import ATP
from acclimate.core import Work, Worker, rng, tree
from acclimate.core.local import batch_of
from acclimate.methods.fedatp import FedATP
from acclimate.ops.atp import directions, moved
from acclimate.ops.losses import entropy
from acclimate.ops.masks import held_out
from support import SMALL, client_data, fitted, gap, shards, task

QUICK = FedATP(work=SMALL, rate_work=Work(epochs=1, batch=4), pretrain=2)


@pytest.fixture(scope="module", params=["cnn-plain", "cnn-batch"])
def live(request):
    worker, _, state = fitted(QUICK, model=request.param, rounds=4, cohort=6)
    return worker, worker.method.deploy(worker.task, state.server, {})


@pytest.mark.parametrize("online", [False, True])
def test_zero_rates_adapt_nothing(live, online):
    worker, model = live
    still = {**model, "rates": tree.zeros(model["rates"])}
    adapter, x = ATP(online=online), shards(seed=4).x[:8]
    logits, _ = adapter.step(worker.task, worker.predict(), still, adapter.init(worker.task, still), x, rng.key(0))
    plain, _ = NoAdapt().step(worker.task, worker.predict(), still, {}, x, rng.key(0))
    assert torch.equal(logits, plain)


def test_directions_and_steps_by_hand(live):
    worker, model = live
    vars, x = model["vars"], shards(seed=4).x[:8]
    way = directions(worker.predict(), model, x, worker.task.norm_momentum)
    leaves = {n: p.clone().requires_grad_() for n, p in vars["params"].items()}
    entropy(worker.task.apply({**vars, "params": leaves}, x).logits).mean().backward()
    assert gap(way["params"], {n: p.grad for n, p in leaves.items()}) < 1e-6
    for name, direction in way["buffers"].items():  # running less batch, whatever was running before
        batch = vars["buffers"][name] - direction
        other = {**model, "vars": {**vars, "buffers": tree.map(lambda b: 2 * b + 1, vars["buffers"])}}
        again = (
            other["vars"]["buffers"][name]
            - directions(worker.predict(), other, x, worker.task.norm_momentum)["buffers"][name]
        )
        assert gap({"b": batch}, {"b": again}) < 1e-4
    rates = tree.map(lambda r: r * 0 + 0.5, model["rates"])
    new = moved(vars, rates, way)
    assert gap(new, tree.map(lambda v, d: v - 0.5 * d, vars, way)) < 1e-6
    far = moved(vars, tree.map(lambda r: r * 0 - 1e3, rates), way)
    assert all(b.min() >= 0 for n, b in far["buffers"].items() if n.endswith("running_var"))


def test_statistics_are_pulled_to_the_batch_however_slowly_they_follow():
    pulls = []
    for momentum in (0.1, 0.02):
        t = task("cnn-batch")
        for skeleton in t._skeletons.values():
            for module in skeleton.modules():
                if hasattr(module, "momentum"):
                    module.momentum = momentum
        t.norm_momentum = dict.fromkeys(t.norm_momentum, momentum)
        worker = Worker(t, QUICK)
        pulls.append(directions(worker.predict(), {"vars": t.init(rng.key(0))}, shards(seed=4).x[:8], t.norm_momentum))
    assert t.norm_momentum and gap(pulls[0]["buffers"], pulls[1]["buffers"]) < 1e-4


def test_online_answers_with_the_mean_of_the_adapted_models(live):
    worker, model = live
    model = {**model, "rates": tree.map(lambda r: r * 0 + 0.1, model["rates"])}
    x, adapter = shards(seed=4).x, ATP(online=True)
    state, each = adapter.init(worker.task, model), []
    for t in range(3):
        batch = x[8 * t : 8 * t + 8]
        logits, state = adapter.step(worker.task, worker.predict(), model, state, batch, rng.key(t))
        each.append(
            moved(model["vars"], model["rates"], directions(worker.predict(), model, batch, worker.task.norm_momentum))
        )
    mean = tree.map(lambda *vs: sum(vs) / 3, *each)
    assert gap(state["vars"], mean) < 1e-5
    assert gap({"l": logits}, {"l": worker.task.apply(mean, batch).logits}) < 1e-4


def test_rates_descend_the_loss_after_adaptation(live):
    """The change of a rate is minus the derivative of the loss by it (a difference here), over the root of the size."""
    worker, model = live
    t, own = worker.task, client_data(shards(), 0)
    batch = {k: v.double() if v.is_floating_point() else v for k, v in batch_of(own, torch.arange(8)).items()}
    vars, rates = (tree.map(torch.Tensor.double, model[k]) for k in ("vars", "rates"))
    rates = tree.map(lambda r: r * 0 + 0.01, rates)
    x = batch["x"].double() / 255
    way = directions(worker.predict(), {"vars": vars}, x, worker.task.norm_momentum)

    def loss(rates):
        return float(F.cross_entropy(t.apply(moved(vars, rates, way), x).logits, batch["y"]))

    data = {**own, "x": x, "y": batch["y"], "rows": torch.arange(8), "n": torch.tensor(8)}
    once = replace(QUICK, rate_work=Work(epochs=1, batch=8))
    new = once.learned(t, vars, rates, data, rng.key(0))
    for kind, name in ((k, n) for k in rates for n in rates[k]):
        either = [{**rates, kind: {**rates[kind], name: rates[kind][name] + h}} for h in (1e-5, -1e-5)]
        slope = (loss(either[0]) - loss(either[1])) / 2e-5
        expected = 0.01 - QUICK.rate_lr * slope / vars[kind][name].numel() ** 0.5
        assert float(new[kind][name]) == pytest.approx(expected, abs=1e-6), name
    assert max(abs(float(r) - 0.01) for r in tree.leaves(new)) > 1e-4


def test_the_model_is_learned_first_and_the_rates_after_it():
    t, own = task(), client_data(shards(), 0)
    down = QUICK.init_server(t, 6, rng.key(0))
    for round in (1, 2):  # the last of two that train the model, and the first that learns rates
        up, _ = QUICK.client(t, down, {}, {**own, "round": torch.tensor(round)}, rng.key(1))
        assert bool(tree.norm(up["delta"]) > 0) == (round < 2)
        assert bool(tree.norm(up["rates"]) > 0) == (round == 2)


def test_rates_are_learned_on_examples_that_the_model_did_not_see():
    own = client_data(shards(), 0)
    fitted_on, judged = held_out(own, QUICK.parts)
    seen = set(fitted_on["rows"][: int(fitted_on["n"])].tolist())
    kept = set(judged["rows"][: int(judged["n"])].tolist())
    assert len(seen) == 32 and len(kept) == 8 and not seen & kept
    assert seen | kept == set(own["rows"].tolist())
    one = {**own, "n": torch.tensor(1)}
    assert [int(d["n"]) for d in held_out(one, QUICK.parts)] == [1, 1]


def test_atp_needs_its_rates(live):
    worker, model = live
    assert "ATP needs rates" in ATP().refusal(worker.task, {"vars": model["vars"]})
    with pytest.raises(ValueError, match="parts=1"):
        FedATP(parts=1)


def test_a_bound_on_rates_scales_the_step_of_all_together():
    model, data, key = task(), client_data(shards((12,)), 0), rng.key(3)
    vars, one = model.init(rng.key(1)), Work(iterations=1, batch=4)
    still = tree.map(lambda v: v.new_zeros(()), vars)
    free, bound = (
        replace(QUICK, rate_work=replace(one, clip=clip)).learned(model, vars, still, data, key)
        for clip in (None, 1e-3)
    )
    assert float(tree.norm(free)) > 2e-4  # the bound times rate_lr is 1e-4
    assert float(tree.norm(bound)) == pytest.approx(1e-4, rel=2e-3)
    assert gap(tree.scale(free, tree.norm(bound) / tree.norm(free)), bound) < 1e-7
