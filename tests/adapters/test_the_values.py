"""THE by value: Algorithm 2 on a linear model in float64, two batches, against torch's own Adam, sample by sample."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from acclimate.adapters.the import THE
from acclimate.adapters.the_history import paper, released
from acclimate.adapters.theplus import THEPlus
from acclimate.core import SGD, Adam, Out, rng


def drawn(seed, *shape):
    return torch.from_numpy(np.random.default_rng(seed).normal(size=shape))


def predict(model, x, mode="eval", key=None):
    return Out(x @ model["vars"]["params"]["w"].T, x, {})


def deployed(dim=4):
    local, other = drawn(2, dim), drawn(3, dim) + 1.0
    head = {"weight": 2 * drawn(1, 3, dim), "bias": drawn(4, 3)}
    vars = {"params": {"w": 2 * drawn(0, 3, dim)}, "buffers": {}}
    return {"vars": vars, "head": head, "descriptors": {"local": local, "global": other}}


def entropy(logits):
    p = logits.softmax(-1)
    return -(p * p.log()).sum()


def weight_by_hand(model, z, smooth, loss, decay, steps):
    """e of one sample: `steps` of Adam on two free numbers, both one at first (Eq. 3 to 5)."""
    generic, personal = z @ model["vars"]["params"]["w"].T, z @ model["head"]["weight"].T + model["head"]["bias"]
    p, q = generic.softmax(-1), personal.softmax(-1)
    agree = float(p @ q / p.norm() / q.norm())
    share = {"slw": agree, "em": 1.0, "fa": 0.0, "sum": 0.5}[loss]
    free = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.Adam([free], lr=0.1, weight_decay=decay)
    for _ in range(steps):
        e = free.softmax(0)
        apart = [(smooth - model["descriptors"][w]).norm() for w in ("global", "local")]
        value = share * entropy(e[0] * generic + e[1] * personal) + (1 - share) * (e[0] * apart[0] + e[1] * apart[1])
        opt.zero_grad()
        value.backward()
        opt.step()
    e = free.softmax(0).detach()
    return e, e[0] * generic + e[1] * personal


@pytest.mark.parametrize("loss", ["slw", "em", "fa", "sum"])
@pytest.mark.parametrize("decay", [0.0, 0.2])
def test_two_batches_equal_the_samples_one_after_the_other(loss, decay):
    """With decay the free numbers' start counts, too: they are pulled from one to zero, each at Adam's own pace."""
    model, x = deployed(), drawn(7, 5, 4)
    adapter, steps = THE(loss=loss, alpha=0.2, beta=0.6), 20
    if decay:
        adapter, steps = replace(adapter, steps=7, opt=Adam(lr=0.1, weight_decay=decay)), 7
    state, got, told = adapter.init(None, model), [], []
    for part in (x[:3], x[3:]):
        logits, state, more = adapter.trace(None, predict, model, state, part, rng.key(0))
        got.append(logits)
        told.append(more)
    history, last, es = None, None, []
    for n, z in enumerate(x):
        history = z if history is None else 0.2 * last + 0.8 * history
        last, smooth = z, 0.6 * z + 0.4 * history
        e, expected = weight_by_hand(model, z, smooth, loss, decay, steps)
        torch.testing.assert_close(torch.cat(got)[n], expected, rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(torch.cat([t["personal_weight"] for t in told])[n], e[1], rtol=1e-6, atol=1e-9)
        torch.testing.assert_close(torch.cat([t["smoothed_feature"] for t in told])[n], smooth, rtol=1e-9, atol=1e-12)
        es.append(float(e[0]))
    assert torch.cat(got).dtype == torch.float64 and (np.std(es) > 0.003 or not decay)
    torch.testing.assert_close(state["history"], history)
    assert torch.equal(state["last"], x[-1]) and float(state["started"]) == 1.0


def test_before_the_first_sample_the_state_is_zero_for_features_of_any_width():
    for dim in (1, 4):
        state = THE().init(None, deployed(dim))
        assert [v.tolist() for v in state.values()] == [[0.0] * dim, [0.0] * dim, 0.0]


@pytest.mark.parametrize("form", [paper, released])
@pytest.mark.parametrize("width", [1, 2])
def test_histories_equal_their_recurrences(form, width):
    f, alpha, state = drawn(8, 8, width), 0.3, None
    for part in (f[:4], f[4:7], f[7:]):
        expected = []
        for i, z in enumerate(part):
            before = expected[-1] if expected else None if state is None else state["history"]
            if before is None:
                expected.append(z)
            elif form is paper:
                last = part[i - 1] if i else state["last"]
                expected.append(alpha * last + (1 - alpha) * before)
            else:
                expected.append(alpha * z + (1 - alpha) * before if i else before)
        zero = torch.zeros(width, dtype=torch.float64)
        given = {"history": zero, "last": zero, "started": zero[0]} if state is None else state
        got = form(part, given, alpha)
        torch.testing.assert_close(got, torch.stack(expected), rtol=1e-9, atol=1e-12)
        state = {"history": got[-1], "last": part[-1], "started": zero[0] + 1}


def test_one_weight_for_a_batch_minimises_the_mean():
    model, x = deployed(), drawn(9, 3, 4)
    adapter = THE(per="batch", loss="fa", history=False, steps=5, opt=SGD(lr=0.3))
    logits, state, told = adapter.trace(None, predict, model, adapter.init(None, model), x, rng.key(0))
    apart = [(x - model["descriptors"][w]).norm(dim=-1).mean() for w in ("global", "local")]
    free = torch.ones(2, dtype=torch.float64, requires_grad=True)
    opt = torch.optim.SGD([free], lr=0.3)
    for _ in range(5):
        e = free.softmax(0)
        opt.zero_grad()
        (e[0] * apart[0] + e[1] * apart[1]).backward()
        opt.step()
    e = free.softmax(0).detach()
    torch.testing.assert_close(told["personal_weight"], e[1].expand(3), rtol=1e-6, atol=1e-9)
    assert not state["history"].any()


def test_answers_are_free_of_batches_in_the_papers_form_per_sample_alone():
    free = {(v, p): THE(variant=v, per=p).batch_free for v in ("paper", "released") for p in ("sample", "batch")}
    assert [key for key, is_free in free.items() if is_free] == [("paper", "sample")]


def test_the_with_tuning_of_no_steps_tells_and_answers_the_same():
    model, x = deployed(), drawn(10, 5, 4)
    ours, state, told = THEPlus(steps=0).trace(None, predict, model, THEPlus().init(None, model), x, rng.key(0))
    expected, after, more = THE().trace(None, predict, model, THE().init(None, model), x, rng.key(0))
    torch.testing.assert_close(ours, expected, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(state, after, rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(told["personal_weight"], more["personal_weight"], rtol=1e-9, atol=1e-12)
    torch.testing.assert_close(
        THEPlus(steps=0).step(None, predict, model, THE().init(None, model), x, rng.key(0))[0], ours
    )
