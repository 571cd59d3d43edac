"""One step of fine-tuning by autograd of torch itself: which loss, which mode, which parameters."""

import pytest
import torch
import torch.nn.functional as F

from acclimate.core import SGD, Work, rng
from acclimate.personal import FineTune
from support import client_data, gap, shards, task

STEP = {"opt": SGD(lr=0.1), "work": Work(iterations=1, batch=24)}


@pytest.mark.parametrize("balanced", [False, True])
@pytest.mark.parametrize("parts", ["all", "head"])
def test_a_step_by_hand(parts, balanced):
    t, own = task("cnn-batch"), client_data(shards(), 1)
    model = {"vars": t.init(rng.key(0))}
    moved = {k: b + 0.3 for k, b in model["vars"]["buffers"].items()}  # running statistics that are not the batch's
    model["vars"] = {**model["vars"], "buffers": moved}
    modes = []

    def predict(model, x, mode="eval", key=None):
        modes.append(mode)
        return t.apply(model["vars"], x, mode, key)

    record = FineTune(parts=parts, **STEP, **({"balanced": True} if balanced else {}))  # unless asked, it is not
    got = record.run(t, predict, model, own, rng.key(3))
    x, y = own["x"][own["rows"]], own["y"][own["rows"]]
    leaves = {k: p.clone().requires_grad_() for k, p in model["vars"]["params"].items()}
    out = t.apply({**model["vars"], "params": leaves}, x, "eval" if parts == "head" else "train")
    counts = torch.bincount(y, minlength=5).float()
    shift = (counts + 1).log() if balanced else 0.0
    F.cross_entropy(out.logits + shift, y).backward()
    want = {k: (p - 0.1 * p.grad).detach() if parts == "all" or k in t.head else p.detach() for k, p in leaves.items()}
    assert gap(got["vars"]["params"], {k: want[k] for k in got["vars"]["params"]}) < 1e-5
    assert gap(got["vars"]["buffers"], moved if parts == "head" else out.buffers) < 1e-5
    assert set(modes) == ({"eval"} if parts == "head" else {"train"})


def test_the_head_is_probed_first_with_a_key_of_its_own():
    t, own, model = task("cnn-batch"), client_data(shards(), 1), {"vars": task("cnn-batch").init(rng.key(0))}

    def predict(model, x, mode="eval", key=None):
        return t.apply(model["vars"], x, mode, key)

    record = FineTune(parts="head-then-all", opt=SGD(lr=0.1), work=Work(epochs=1, batch=8))
    first = record._tune(t, predict, model, own, t.head, rng.fold(rng.key(3), 0))
    second = record._tune(t, predict, first, own, None, rng.fold(rng.key(3), 1))
    assert gap(record.run(t, predict, model, own, rng.key(3))["vars"], second["vars"]) == 0
