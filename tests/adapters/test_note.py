"""NOTE by value: when it learns, from what, and with whose statistics. Its memory: tests/ops; its layer: tests/core."""

from dataclasses import replace

import pytest
import torch

from acclimate.adapters import NOTE
from acclimate.core import SGD, Task, rng
from acclimate.models import CNN
from support import CLASSES, deployed, equal, gap, task

KEY = rng.key(8)
SMALL = NOTE(capacity=24, every=16, opt=SGD(lr=0.5), rate=0.1)  # the rate of torch's batch norm


def world():
    net = CNN(widths=(3, 4), hidden=8, kernel=3, norm="iabn")
    return deployed(Task(net, (3, 10, 10), CLASSES, (0.5,) * 3, (0.5,) * 3), KEY, 48)


def served(adapter, t, model, predict, x, size):
    state, out = adapter.init(t, model), []
    for at in range(0, len(x), size):
        logits, state = adapter.step(t, predict, model, state, x[at : at + size], rng.advance(KEY, at))
        out.append(logits)
    return torch.cat(out), state


@pytest.mark.parametrize("steps", [1, 2])
def test_an_update_by_hand(steps):
    """Down the mean entropy of the samples held, normalised with their own statistics; running ones follow."""
    t, model, predict, x = world()
    logits, new = served(replace(SMALL, steps=steps), t, model, predict, x[:16], 16)
    torch.testing.assert_close(logits, t.apply(model["vars"], x[:16]).logits)
    held = new["memory"]["held"] > 0
    assert int(held.sum()) == 16 < 24
    assert new["memory"]["seen"].tolist() == torch.bincount(logits.argmax(-1), minlength=CLASSES).tolist()
    vars = model["vars"]
    for _ in range(steps):
        leaves = {k: p.clone().requires_grad_(k in t.norm) for k, p in vars["params"].items()}
        out = t.apply(
            {**vars, "params": leaves}, new["memory"]["x"][held], "train"
        )  # no empty places, its own momentum
        p = out.logits.softmax(-1)
        (-(p * p.log()).sum(-1)).mean().backward()
        moved = {k: (p - 0.5 * p.grad if k in t.norm else p).detach() for k, p in leaves.items()}
        vars = {"params": moved, "buffers": out.buffers}
    tuned = {k: p for k, p in vars["params"].items() if k in t.norm}
    assert gap(new["params"], tuned) < 1e-5 and gap(new["buffers"], vars["buffers"]) < 1e-5
    assert gap(tuned, {k: model["vars"]["params"][k] for k in tuned}) > 1e-3
    after = SMALL.step(t, predict, model, new, x[16:20], KEY)[0]
    torch.testing.assert_close(after, t.apply(vars, x[16:20]).logits, rtol=1e-4, atol=1e-5)


def test_samples_are_answered_alone_and_the_cut_does_not_matter():
    t, model, predict, x = world()
    one, a = served(SMALL, t, model, predict, x, 16)
    two, b = served(SMALL, t, model, predict, x, 4)
    torch.testing.assert_close(one, two, rtol=1e-3, atol=1e-4)
    assert equal(a["memory"], b["memory"]) and gap(a["params"], b["params"]) < 1e-4
    three, c = served(SMALL, t, model, predict, x, 48)  # one batch, answered before its three updates
    torch.testing.assert_close(three, t.apply(model["vars"], x).logits)
    assert gap(c["buffers"], model["vars"]["buffers"]) > 1e-3 and int(c["arrived"]) == 48
    assert c["arrived"].dtype == torch.int64  # a float stops counting at 16,777,216
    still = replace(SMALL, capacity=8, opt=SGD(lr=1e-12), rate=0.0)  # answers do not change: one batch fills as three
    assert equal(*(served(still, t, model, predict, x, size)[1]["memory"] for size in (48, 16)))
    before = served(SMALL, t, model, predict, x[:12], 4)[1]
    assert equal(before["params"], SMALL.init(t, model)["params"])


def test_the_rest_of_a_batch_is_no_reason_to_learn():
    """Twenty samples, in one batch or in two: one update, with the sixteenth."""
    t, model, predict, x = world()
    whole, two = (served(SMALL, t, model, predict, x[:20], size)[1] for size in (20, 16))
    assert gap(whole["params"], two["params"]) < 1e-6 and gap(whole["buffers"], two["buffers"]) < 1e-6
    assert gap(whole["params"], SMALL.init(t, model)["params"]) > 1e-3


def test_what_is_missing_is_named():
    t, model, *_ = world()
    assert SMALL.refusal(t, model) is None
    reason = "NOTE needs instance-aware batch norm, and this model has none; train it with norm='iabn'"
    assert SMALL.refusal(task("cnn-batch"), model) == reason
    assert replace(SMALL, capacity=4).refusal(t, model) == "NOTE: capacity=4 must be at least the number of classes, 5"
    assert "personalise with ClassPrior (personal=prior)" in replace(SMALL, prior="client").refusal(t, model)
    for fields in ({"capacity": 0}, {"every": 0}, {"rate": 2.0}, {"steps": 0}, {"prior": "own"}):
        with pytest.raises(ValueError, match=f"NOTE: {next(iter(fields))}="):
            NOTE(**fields)
