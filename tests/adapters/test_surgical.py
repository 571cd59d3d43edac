"""Surgical: Tent over all layers where all are chosen, and no other layer's business where not."""

import pytest
import torch

from acclimate.adapters import Tent
from acclimate.adapters.surgical import Surgical, relative_norms
from acclimate.core import Adam, rng, tree
from acclimate.methods import FedAvg
from support import SMALL, fitted, gap, shards

FAST = Adam(lr=1e-2)


@pytest.fixture(scope="module", params=["cnn-plain", "cnn-batch"])
def live(request):
    worker, _, state = fitted(FedAvg(work=SMALL), model=request.param, rounds=2)
    return worker, {"vars": state.server["vars"]}


def after(adapter, worker, model):
    state, x = adapter.init(worker.task, model), shards(seed=4).x
    for t in range(3):
        logits, state = adapter.step(worker.task, worker.predict(), model, state, x[8 * t : 8 * t + 8], rng.key(t))
    return logits, state


def test_with_all_layers_this_is_tent_on_all(live):
    worker, model = live
    ours, a = after(Surgical(layers=("all",), opt=FAST, steps=2), worker, model)
    theirs, b = after(Tent(params="all", opt=FAST, steps=2), worker, model)
    assert gap({"l": ours}, {"l": theirs}) < 1e-6
    assert gap(a["params"], b["params"]) < 1e-6


def test_only_the_chosen_layers_are_tuned(live):
    worker, model = live
    for layers, expected in (
        (("first",), {"body.0.weight", "body.0.bias"}),
        (("head",), {"head.weight", "head.bias"}),
        (("first", "head.weight"), {"body.0.weight", "body.0.bias", "head.weight"}),
    ):
        _, state = after(Surgical(layers=layers, opt=FAST), worker, model)
        assert set(state["params"]) == expected
        assert all(not torch.equal(p, model["vars"]["params"][n]) for n, p in state["params"].items())


def test_relative_norms_by_hand_and_the_step_they_scale(live):
    worker, model = live
    grads = {"a": torch.tensor([3.0, 4.0]), "b": torch.tensor([1.0])}
    params = {"a": torch.tensor([0.0, 10.0]), "b": torch.tensor([4.0])}
    norms = relative_norms(grads, params)  # 5/10 and 1/4
    assert [float(n) for n in norms.values()] == pytest.approx([1.0, 0.5])
    start = tree.pick(model["vars"]["params"], set(worker.task.params))
    plain, scaled = (
        tree.sub(after(Surgical(layers=("all",), opt=FAST, rate=r), worker, model)[1]["params"], start)
        for r in ("same", "rgn")
    )
    assert tree.norm(scaled) < tree.norm(plain)


def test_an_unknown_layer_is_refused_by_name(live):
    worker, model = live
    reason = Surgical(layers=("conv9.*",)).refusal(worker.task, model)
    assert "Surgical" in reason and "conv9.*" in reason
    with pytest.raises(ValueError, match="layers="):
        Surgical(layers=())
