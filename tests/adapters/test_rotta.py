"""RoTTA by value: when it learns, what counts how much, whose statistics answer. Its memory: tests/ops."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.adapters import RoTTA
from acclimate.core import SGD, rng
from acclimate.ops.strong_views import StrongViews
from support import CLASSES, deployed, equal, gap, task

KEY = rng.key(6)
SMALL = RoTTA(capacity=12, every=16, opt=SGD(lr=0.5), rate=0.2, ema=0.9)


def world(kind="cnn-batch"):
    return deployed(task(kind), KEY, 48, sharper=4)


def served(adapter, t, model, predict, x, size):
    state, out = adapter.init(t, model), []
    for part in x.split(size):
        logits, state = adapter.step(t, predict, model, state, part, KEY)
        out.append(logits)
    return torch.cat(out), state


def test_the_source_answers_until_the_first_step_and_the_cut_does_not_matter():
    t, model, predict, x = world()
    one, a = served(SMALL, t, model, predict, x[:24], 8)
    source = t.apply(model["vars"], x[:24]).logits
    torch.testing.assert_close(one[:16], source[:16])
    assert gap(one[16:], source[16:]) > 1e-4 and int(a["arrived"]) == 24
    assert a["arrived"].dtype == torch.int64  # a float stops counting at 16,777,216
    two, b = served(SMALL, t, model, predict, x[:16], 4)
    whole, c = served(SMALL, t, model, predict, x[:16], 16)
    torch.testing.assert_close(two, whole)
    assert equal(b["memory"]["label"], c["memory"]["label"]) and gap(b["teacher"], c["teacher"]) < 1e-5
    before = served(SMALL, t, model, predict, x[:12], 4)[1]
    assert equal(before["teacher"], SMALL.init(t, model)["teacher"])
    # a batch of three times `every` learns three times
    assert gap(served(SMALL, t, model, predict, x, 48)[1]["buffers"], c["buffers"]) > 1e-3


def test_one_step_by_hand_on_a_model_without_statistics():
    """Group norm: cross-entropy with the teacher, weighted by age, over what the memory holds."""
    t, model, predict, x = world("cnn-group")
    state = {**SMALL.init(t, model), "params": {k: p + 0.2 for k, p in SMALL.init(t, model)["params"].items()}}
    logits, new = SMALL.step(t, predict, model, state, x[:16], KEY)
    torch.testing.assert_close(logits, t.apply(model["vars"], x[:16]).logits)
    memory, vars = new["memory"], model["vars"]
    held = [i for i in range(12) if memory["held"][i] > 0]
    assert len(held) + 3 >= CLASSES and len(held) < 12  # some places are empty
    views = StrongViews().views(memory["x"], rng.fold(KEY, "views", 0))[held]
    soft = t.apply(vars, memory["x"][held]).logits.softmax(-1)
    leaves = {k: p.clone().requires_grad_() for k, p in state["params"].items()}
    log = torch.log_softmax(t.apply({**vars, "params": {**vars["params"], **leaves}}, views).logits, -1)
    age = memory["age"][held] / 12
    weight = torch.exp(-age) / (1 + torch.exp(-age))
    (-(soft * log).sum(-1) * weight).mean().backward()
    tuned = {k: (p - 0.5 * p.grad).detach() for k, p in leaves.items()}
    assert gap(new["params"], tuned) < 1e-5 and gap(tuned, state["params"]) > 1e-3
    teacher = {k: 0.9 * vars["params"][k] + 0.1 * tuned[k] for k in tuned}
    assert gap(new["teacher"]["params"], teacher) < 1e-6


def test_running_statistics_go_to_those_of_the_memory_and_then_normalise():
    t, model, predict, x = world()
    _, new = served(SMALL, t, model, predict, x[:16], 16)
    memory, vars = new["memory"], model["vars"]
    held = memory["held"] > 0
    assert 0 < int(held.sum()) < 12
    seen = t.normalise(memory["x"][held])
    conv = next(n for n in vars["params"] if vars["params"][n].dim() == 4).removesuffix(".weight")
    maps = torch.nn.functional.conv2d(seen, vars["params"][f"{conv}.weight"], vars["params"][f"{conv}.bias"])
    maps = maps.double().numpy()
    names = [n for n in vars["buffers"] if n.endswith("running_mean")]
    wide = names[0].replace("mean", "var")
    mean = 0.8 * vars["buffers"][names[0]].numpy() + 0.2 * maps.mean((0, 2, 3))
    var = 0.8 * vars["buffers"][wide].numpy() + 0.2 * maps.var((0, 2, 3))
    np.testing.assert_allclose(new["teacher"]["buffers"][names[0]], mean, rtol=1e-4, atol=1e-5)
    np.testing.assert_allclose(new["teacher"]["buffers"][wide], var, rtol=1e-4, atol=1e-5)
    assert gap(new["buffers"][names[0]], new["teacher"]["buffers"][names[0]]) > 1e-5  # the student saw views
    answers = SMALL.step(t, predict, model, new, x[16:20], KEY)[0]
    taught = {"params": {**vars["params"], **new["teacher"]["params"]}, "buffers": new["teacher"]["buffers"]}
    torch.testing.assert_close(answers, t.apply(taught, x[16:20]).logits)


def test_a_client_that_holds_two_classes_may_fill_its_memory_with_them():
    t, model, predict, x = world()
    model["prior"] = torch.tensor([0.48, 0.48, 0.02, 0.01, 0.01])

    def only_two(model, x, mode="eval", key=None):
        out = predict(model, x, mode)
        return out._replace(logits=out.logits + torch.tensor([50.0, 50.0, 0.0, 0.0, 0.0]))

    for prior, most in (("uniform", 3), ("client", 6)):
        adapter = replace(SMALL, prior=prior)
        memory = served(adapter, t, model, only_two, x, 16)[1]["memory"]
        counts = [int(((memory["label"] == c) & (memory["held"] > 0)).sum()) for c in range(CLASSES)]
        assert max(counts) <= most and counts[2:] == [0, 0, 0]
        assert max(counts) == most


def test_what_is_missing_is_named():
    t, model, *_ = world()
    assert SMALL.refusal(t, model) is None
    assert replace(SMALL, capacity=4).refusal(t, model) == "RoTTA: capacity=4 must be at least the number of classes, 5"
    assert "build it with norm='batch' or 'group'" in SMALL.refusal(task("cnn-plain"), model)
    assert "personalise with ClassPrior (personal=prior)" in replace(SMALL, prior="client").refusal(t, model)
    t.shape = (5,)
    assert "RoTTA needs images to augment" in SMALL.refusal(t, model)
    for fields in ({"capacity": 0}, {"every": 0}, {"rate": 2.0}, {"ema": -1.0}, {"timeliness": -1.0}, {"prior": "own"}):
        with pytest.raises(ValueError, match=f"RoTTA: {next(iter(fields))}="):
            RoTTA(**fields)
