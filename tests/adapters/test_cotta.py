"""CoTTA by value: targets, the teacher after two batches, weights that go back."""

from dataclasses import replace

import pytest
import torch

from acclimate.adapters import CoTTA
from acclimate.adapters.cotta import restored
from acclimate.core import SGD, rng
from acclimate.core.loops import Warming, driven
from acclimate.ops.strong_views import StrongViews
from support import deployed, equal, gap, task

KEY = rng.key(4)
AS_IT_IS = StrongViews(
    light=0.0, contrast=0.0, saturation=0.0, hue=0.0, gamma=0.0, turn=0.0, shift=0.0, scale=0.0, blur=0.0, flip=False,
    noise=0.0,
)  # fmt: skip
PLAIN = CoTTA(opt=SGD(lr=0.2), ema=1.0, views=1, unsure=1.0, restore=0.0, augment=AS_IT_IS)


def world(kind="cnn-batch"):
    return deployed(task(kind), KEY, 12)


def elsewhere(params):
    """Parameters away from the source's: a student that says what its teacher says has nothing to learn."""
    return {k: p + 0.3 * rng.normal(rng.fold(KEY, k), *p.shape) for k, p in params.items()}


def taught(t, vars, params, x, soft, lr=0.2):
    """Parameters after one step of cross-entropy with soft labels, by autograd."""
    leaves = {k: p.clone().requires_grad_() for k, p in params.items()}
    logits = t.apply({**vars, "params": leaves}, x, "adapt").logits
    (-(soft * torch.log_softmax(logits, -1)).sum() / len(x)).backward()
    return {k: (p - lr * p.grad).detach() for k, p in leaves.items()}


def answer(t, vars, params, x):
    return t.apply({**vars, "params": params}, x, "adapt").logits


def test_with_a_still_teacher_one_view_and_no_restore_the_source_labels_the_stream():
    t, model, predict, x = world()
    vars = model["vars"]
    student = begun = elsewhere(vars["params"])
    state = {**PLAIN.init(t, model), "params": student}
    for part in x.split(4):
        logits, state = PLAIN.step(t, predict, model, state, part, KEY)
        source = t.apply(vars, part, "adapt").logits
        torch.testing.assert_close(logits, source, rtol=1e-3, atol=1e-3)
        student = taught(t, vars, student, part, source.softmax(-1))
    assert equal(state["teacher"], vars["params"])
    assert gap(state["params"], student) < 1e-4 and gap(student, begun) > 1e-2


def test_the_teacher_after_two_batches_by_hand():
    t, model, predict, x = world()
    vars, adapter = model["vars"], replace(PLAIN, ema=0.9, unsure=0.0)
    zero, begun = vars["params"], elsewhere(vars["params"])
    state = {**adapter.init(t, model), "params": begun}
    first, state = adapter.step(t, predict, model, state, x[:6], KEY)
    second, state = adapter.step(t, predict, model, state, x[6:], KEY)
    one = taught(t, vars, begun, x[:6], answer(t, vars, zero, x[:6]).softmax(-1))
    teacher = {k: 0.9 * zero[k] + 0.1 * one[k] for k in zero}
    target = answer(t, vars, teacher, x[6:])
    torch.testing.assert_close(second, target)
    two = taught(t, vars, one, x[6:], target.softmax(-1))
    assert gap(state["params"], two) < 1e-5 and gap(two, begun) > 1e-2
    assert gap(state["teacher"], {k: 0.9 * teacher[k] + 0.1 * two[k] for k in zero}) < 1e-5
    torch.testing.assert_close(first, answer(t, vars, zero, x[:6]))


@pytest.mark.parametrize("per", ["batch", "sample"])
def test_views_are_averaged_where_the_source_is_unsure(per):
    t, model, predict, x = world("cnn-plain")
    views, vars = StrongViews(), model["vars"]
    sure = t.apply(vars, x).logits.softmax(-1).amax(-1)
    plain = t.apply(vars, x).logits
    mean = torch.stack([t.apply(vars, views.views(x, rng.fold(KEY, "view", i))).logits for i in range(3)]).mean(0)
    assert gap(plain, mean) > 1e-4
    limit = float(sure.median())
    for unsure in (limit, float(sure.mean()) * 0.999, float(sure.mean()) * 1.001):
        adapter = replace(PLAIN, views=3, unsure=unsure, per=per, augment=views)
        got = adapter.step(t, predict, model, adapter.init(t, model), x, KEY)[0]
        for i in range(len(x)):
            confident = float(sure.mean() if per == "batch" else sure[i]) >= unsure
            torch.testing.assert_close(got[i], (plain if confident else mean)[i], rtol=1e-4, atol=1e-5)


def test_the_source_decides_and_never_follows_the_student():
    t, model, predict, x = world("cnn-plain")
    adapter = replace(PLAIN, views=3, augment=StrongViews())
    far = {k: 4.0 * p for k, p in model["vars"]["params"].items()}
    state = {**adapter.init(t, model), "params": far, "teacher": far}
    sure, later = (answer(t, model["vars"], p, x).softmax(-1).amax(-1) for p in (model["vars"]["params"], far))
    assert float(later.mean()) > float(sure.mean()) + 0.05
    between = replace(adapter, unsure=float(sure.mean() + later.mean()) / 2)
    for some, views in ((between, True), (replace(adapter, unsure=0.9 * float(sure.mean())), False)):
        target, _, told = some.trace(t, predict, model, state, x, KEY)
        torch.testing.assert_close(told["confidence"], sure)
        assert (gap(target, answer(t, model["vars"], far, x)) > 1e-2) is views


def test_views_are_recorded_once_however_many_there_are_and_chunks_change_no_answer():
    """A recording runs a loop's body once: what it launches and holds is that of one chunk."""
    t, model, predict, x = world()
    asked = []

    def counted(model, x, mode="eval", key=None):
        asked.append(len(x))
        return predict(model, x, mode)

    def answers(adapter, predict):
        return adapter.step(t, predict, model, adapter.init(t, model), x[:4], KEY)[0]

    many = replace(PLAIN, augment=StrongViews(), views=6)
    for views in (6, 12, 18):
        asked.clear()
        with driven(Warming()):
            answers(replace(many, views=views, chunk=2), counted)
        assert len(asked) == 4  # the source, the teacher, one chunk of views, the student
    by_hand = torch.stack(
        [t.apply(model["vars"], many.augment.views(x[:4], rng.fold(KEY, "view", i)), "adapt").logits for i in range(6)]
    )
    for chunk in (1, 2, 4, 8):
        torch.testing.assert_close(answers(replace(many, chunk=chunk), predict), by_hand.mean(0), rtol=1e-4, atol=1e-4)


def test_weights_go_back_one_by_one_and_the_teacher_is_not_touched():
    t, model, predict, x = world()
    source = model["vars"]["params"]
    other = {k: p + 1.0 for k, p in source.items()}
    some = restored(other, source, 0.3, KEY)
    back = torch.cat([(some[k] == source[k]).flatten() for k in source])
    assert float(back.float().mean()) == pytest.approx(0.3, abs=0.06) and back.numel() > 250
    assert all(bool(((some[k] == source[k]) | (some[k] == other[k])).all()) for k in source)
    for name, p in other.items():  # every weight has the chance that its own name draws
        chosen = rng.bernoulli(rng.fold(KEY, name), 0.3, *p.shape)
        assert torch.equal(some[name], torch.where(chosen, source[name], p))
    assert restored(other, source, 0.0, KEY) is other
    every, none = replace(PLAIN, ema=0.9, restore=1.0), replace(PLAIN, ema=0.9)
    a, b = (f.step(t, predict, model, {**f.init(t, model), "params": other}, x, KEY)[1] for f in (every, none))
    third = replace(PLAIN, ema=0.9, restore=0.3)
    c = third.step(t, predict, model, {**third.init(t, model), "params": other}, x, KEY)[1]
    assert equal(c["params"], restored(b["params"], source, 0.3, rng.fold(KEY, "restore")))  # draws of its own
    assert equal(a["params"], source) and equal(a["teacher"], b["teacher"]) and gap(b["teacher"], source) > 1e-4


def test_inputs_without_views_need_none_and_bad_settings_are_named():
    t, model, *_ = world()
    t.shape = (5,)
    assert CoTTA().refusal(t, model).startswith("CoTTA needs images to augment")
    assert CoTTA().refusal(t, model).endswith("set unsure=0") and CoTTA(unsure=0.0).refusal(t, model) is None
    for fields in ({"views": 0}, {"chunk": 0}, {"ema": 1.1}, {"unsure": -0.1}, {"restore": 2.0}, {"per": "client"}):
        with pytest.raises(ValueError, match=f"CoTTA: {next(iter(fields))}="):
            CoTTA(**fields)
