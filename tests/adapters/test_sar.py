"""SAR by value: its two passes, its filter and its restart; and Tent, where these are off."""

import math
from dataclasses import replace

import pytest
import torch

from acclimate.adapters import SAR, Tent
from acclimate.core import SGD, rng, tree
from support import CLASSES, deployed, equal, gap, task

KEY = rng.key(2)
PLAIN = SAR(opt=SGD(lr=0.1, momentum=0.9), margin=None, rho=0.0, reset_below=0.0)


def world(kind="cnn-group"):
    return deployed(task(kind), KEY, 8, sharper=6)


def entropies(t, vars, tuned, x):
    p = t.apply({**vars, "params": {**vars["params"], **tuned}}, x, "adapt").logits.softmax(-1)
    return -(p * p.log()).sum(-1)


@pytest.mark.parametrize("kind", ["cnn-batch", "cnn-group"])
def test_with_no_way_uphill_and_no_filter_it_is_tent(kind):
    t, model, predict, x = world(kind)
    ours, theirs = PLAIN, Tent(opt=PLAIN.opt)
    a, b = ours.init(t, model), theirs.init(t, model)
    for part in x.split(4) + x.flip(0).split(4):
        (one, a), (two, b) = (f.step(t, predict, model, s, part, KEY) for f, s in ((ours, a), (theirs, b)))
        torch.testing.assert_close(one, two, rtol=1e-5, atol=1e-5)
    assert gap(a["params"], b["params"]) < 1e-6 and gap(a["opt"], b["opt"]) < 1e-6
    assert gap(a["params"], ours.init(t, model)["params"]) > 1e-3


def test_the_gradient_is_taken_uphill_on_samples_that_stay_reliable():
    """The batch's middle entropy is the margin; one of those below it is above it uphill, and does not count."""
    t, model, predict, x = world()
    adapter = replace(PLAIN, rho=2.0, margin=1.0)
    start = {k: v.clone().requires_grad_() for k, v in adapter.init(t, model)["params"].items()}
    first = entropies(t, model["vars"], start, x)
    adapter = replace(adapter, margin=float(first.detach().median()) * 1.0001 / math.log(CLASSES))
    margin = adapter.margin * math.log(CLASSES)
    kept = [i for i, h in enumerate(first.tolist()) if h < margin]
    slope = torch.autograd.grad(first[kept].mean(), list(start.values()))
    length = math.sqrt(sum(float(g.square().sum()) for g in slope))
    above = {
        k: (p + 2.0 * g / length).detach().requires_grad_() for (k, p), g in zip(start.items(), slope, strict=True)
    }
    second = entropies(t, model["vars"], above, x)
    still = [i for i in kept if second.tolist()[i] < margin]
    assert 0 < len(still) < len(kept) < 8
    grads = torch.autograd.grad(second[still].mean(), list(above.values()))
    want = {k: p.detach() - 0.1 * g for (k, p), g in zip(start.items(), grads, strict=True)}
    logits, state, trace = adapter.trace(t, predict, model, adapter.init(t, model), x, KEY)
    assert gap(state["params"], want) < 1e-5
    assert [i for i in range(8) if trace["weight"][i] > 0] == still
    assert float(state["mean"]) == pytest.approx(second[still].mean().item(), abs=1e-5)
    torch.testing.assert_close(logits, t.apply(model["vars"], x, "adapt").logits)
    later = {**adapter.init(t, model), "mean": torch.tensor(0.5)}
    after = float(adapter.step(t, predict, model, later, x, KEY)[1]["mean"])
    assert after == pytest.approx(0.9 * 0.5 + 0.1 * float(state["mean"]), abs=1e-6)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_a_collapsed_model_starts_afresh(variant):
    t, model, predict, x = world()
    steady = replace(PLAIN, variant=variant)
    resets = replace(steady, reset_below=1.0)  # entropy is below ln C always
    fresh, moved = (f.step(t, predict, model, steady.init(t, model), x, KEY)[1] for f in (resets, steady))
    start = steady.init(t, model)
    assert equal(fresh["params"], start["params"]) and gap(moved["params"], start["params"]) > 0
    if variant == "paper":
        assert equal(fresh, start)
    else:
        assert equal(fresh["opt"], moved["opt"]) and torch.equal(fresh["mean"], moved["mean"])
    value = float(moved["mean"]) / math.log(CLASSES)
    for factor, back in ((0.999, False), (1.001, True)):
        state = replace(steady, reset_below=factor * value).step(t, predict, model, start, x, KEY)[1]
        assert equal(state["params"], start["params"]) is back


def test_one_sample_that_counts_is_enough_for_a_step():
    t, model, predict, x = world()
    start = PLAIN.init(t, model)
    sure = entropies(t, model["vars"], start["params"], x).sort().values.tolist()
    one = replace(PLAIN, margin=(sure[0] + sure[1]) / 2 / math.log(CLASSES))
    _, state, trace = one.trace(t, predict, model, start, x, KEY)
    assert float(trace["weight"].sum()) == 1.0
    assert gap(state["params"], start["params"]) > 0 and float(state["mean"]) == pytest.approx(sure[0], abs=1e-5)


def test_a_model_that_is_sure_has_collapsed_and_a_new_one_has_not():
    t, model, predict, x = world()
    model["vars"]["params"]["head.weight"] = 40 * model["vars"]["params"]["head.weight"]
    resets = replace(PLAIN, reset_below=1.0)
    start = resets.init(t, model)
    assert float(start["mean"]) < 0
    state = resets.step(t, predict, model, start, x, KEY)[1]
    assert 0 <= float(PLAIN.step(t, predict, model, start, x, KEY)[1]["mean"]) < 0.5
    assert equal(state, start)


@pytest.mark.parametrize("variant", ["paper", "released"])
def test_where_no_sample_counts_there_is_no_step(variant):
    t, model, predict, x = world()
    none = replace(PLAIN, margin=1e-6, variant=variant)
    warm = PLAIN.step(t, predict, model, PLAIN.init(t, model), x, KEY)[1]
    state = none.step(t, predict, model, warm, x, KEY)[1]
    assert torch.equal(state["mean"], warm["mean"])
    if variant == "paper":
        assert equal(state, warm)
    else:  # momentum goes on
        want = tree.add(warm["params"], warm["opt"]["velocity"], -0.1 * 0.9)
        assert gap(state["params"], want) < 1e-6


def test_frozen_layers_are_not_tuned_and_bad_settings_are_named():
    t, model, *_ = world()
    names = sorted(PLAIN.init(t, model)["params"])
    layer = names[-1].rpartition(".")[0]
    part = replace(PLAIN, frozen=(f"{layer}.*",))
    assert sorted(part.init(t, model)["params"]) == [n for n in names if not n.startswith(f"{layer}.")]
    assert part.refusal(t, model) is None
    assert replace(PLAIN, frozen=("norm",)).refusal(t, model) == "SAR: frozen=('norm',) leaves nothing to tune"
    assert "SAR: frozen=('stage9.*',): no parameter matches" in replace(PLAIN, frozen=("stage9.*",)).refusal(t, model)
    assert "needs normalisation layers" in PLAIN.refusal(task("cnn-plain"), model)
    for fields in ({"rho": -0.1}, {"margin": 0.0}, {"keep": 1.5}, {"reset_below": 2.0}):
        with pytest.raises(ValueError, match=f"SAR: {next(iter(fields))}="):
            SAR(**fields)
