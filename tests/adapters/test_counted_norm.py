"""Released ROID and DeYO forward a part of a batch: with fixed shapes, statistics of that part give the same."""

import math

import pytest
import torch

from acclimate.adapters import ROID, DeYO
from acclimate.core import SGD, Task, rng
from acclimate.models import CNN
from acclimate.ops.augment import Views, shuffle_patches
from acclimate.ops.losses import entropy
from acclimate.ops.memory_norms import CountedNorm
from support import CLASSES, deployed, images, task

KEY = rng.key(4)
VIEWS = Views(zoom=0.8, grey=0.0)


def world():
    return deployed(task("cnn-batch"), KEY, 8, sharper=6)


def test_statistics_of_some_samples_answer_as_these_alone():
    t, model, predict, x = world()
    some = torch.tensor([1, 4, 6])
    weight = torch.zeros(8).index_fill(0, some, 1.0)
    out = predict(model, x, CountedNorm(weight))
    torch.testing.assert_close(out.logits[some], predict(model, x[some], "still").logits, rtol=1e-4, atol=1e-5)
    assert all(torch.equal(out.buffers[k], v) for k, v in model["vars"]["buffers"].items())
    assert bool(torch.isfinite(predict(model, x, CountedNorm(torch.zeros(8))).logits).all())


def test_released_deyo_judges_by_the_shuffled_images_of_sure_samples_alone():
    t, model, predict, x = world()
    first = predict(model, x, "still").logits
    margin = float(entropy(first).median()) * 1.0001 / math.log(CLASSES)
    sure = (entropy(first) < margin * math.log(CLASSES)).nonzero()[:, 0]
    assert 2 <= len(sure) < 8
    told = {}
    for variant in ("paper", "released"):
        adapter = DeYO(margin=margin, least=-1.0, patches=2, variant=variant)
        told[variant] = adapter.trace(t, predict, model, adapter.init(t, model), x, KEY)[2]
    broken = shuffle_patches(x, rng.fold(KEY, "patches", 0), 2)[sure]
    label, p = first[sure].argmax(-1, keepdim=True), first[sure].softmax(-1)
    plpd = (p - predict(model, broken, "still").logits.softmax(-1)).take_along_dim(label, -1)[:, 0]
    torch.testing.assert_close(told["released"]["plpd"][sure], plpd, rtol=1e-4, atol=1e-5)
    assert float((told["paper"]["plpd"][sure] - plpd).abs().max()) > 1e-3


def test_released_roid_is_consistent_with_views_of_the_counting_samples_alone():
    t, model, predict, x = world()
    steps = {}
    for variant in ("paper", "released"):
        adapter = ROID(opt=SGD(lr=0.1), ensemble=1.0, views=VIEWS, correct=False, variant=variant)
        start = adapter.init(t, model)
        _, state, told = adapter.trace(t, predict, model, start, x, KEY)
        steps[variant] = {k: (v - state["params"][k]) / 0.1 for k, v in start["params"].items()}
    some = (told["weight"] > 0).nonzero()[:, 0]
    assert 2 <= len(some) < 8
    tuned = {k: v.clone().requires_grad_() for k, v in start["params"].items()}
    vars = {**model["vars"], "params": {**model["vars"]["params"], **tuned}}
    z, seen = (t.apply(vars, part, "still").logits for part in (x, VIEWS.views(x, rng.fold(KEY, "view"))[some]))
    z, weight = z[some], told["weight"][some]
    p, q = z.softmax(-1), seen.softmax(-1)
    top = p.clamp_max(0.99)
    each = -(top * (top / (1 - top) + 1e-5).log()).sum(-1)
    each = each - 0.5 * (p * seen.log_softmax(-1) + q * z.log_softmax(-1)).sum(-1)
    ((weight * each).sum() / 8).backward()
    for name, p in tuned.items():
        torch.testing.assert_close(steps["released"][name], p.grad, rtol=2e-3, atol=2e-5)
    apart = max(float((steps["paper"][k] - p.grad).abs().max()) for k, p in tuned.items())
    assert apart > 1e-3


@pytest.mark.parametrize("adapter", [DeYO, ROID])
def test_an_unknown_variant_is_named(adapter):
    with pytest.raises(ValueError, match="variant='other' must be"):
        adapter(variant="other")


@pytest.mark.parametrize("norm", ["batch", "iabn"])
def test_statistics_of_all_samples_are_those_of_the_batch(norm):
    t = Task(CNN(widths=(3, 4), hidden=8, kernel=3, norm=norm), (3, 10, 10), CLASSES)
    vars, x = t.init(KEY), images(4)[0]
    counted = t.apply(vars, x, CountedNorm(torch.ones(4))).logits
    torch.testing.assert_close(counted, t.apply(vars, x, "still").logits, rtol=1e-5, atol=1e-6)
