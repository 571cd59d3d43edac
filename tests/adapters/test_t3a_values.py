"""T3A by value: two batches of a linear model against support sets that are kept as lists."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from acclimate.adapters.t3a import T3A
from acclimate.core import Out, rng
from support import equal

TASK = SimpleNamespace(head_weight="w", head_bias="b", num_classes=3)


def predict(model, x, mode="eval", key=None):
    params = model["vars"]["params"]
    return Out(x @ params["w"].T + params.get("b", 0.0), x, {})


class Supports:
    """Sec. 3: every class's supports, as lists of (entropy under the head, unit vector)."""

    def __init__(self, w, b, keep):
        self.w, self.b, self.keep = w, b, keep
        self.held = [[] for _ in w]
        self.join(w)

    def join(self, rows):
        for z in rows:
            logits = self.w @ z + self.b
            p = np.exp(logits) / np.exp(logits).sum()
            self.held[logits.argmax()].append((-(p * np.log(p)).sum(), z / np.linalg.norm(z)))
        if self.keep > 0:
            self.held = [sorted(s, key=lambda e: e[0])[: self.keep] for s in self.held]

    def answer(self, z):
        sums = [sum((v for _, v in s), np.zeros(len(z))) for s in self.held]
        return [z @ s / max(np.linalg.norm(s), 1e-12) for s in sums]


@pytest.mark.parametrize("keep", [1, 2, 20, -1])
@pytest.mark.parametrize("per", ["batch", "sample"])
@pytest.mark.parametrize("bias", [True, False])
def test_two_batches_by_hand(keep, per, bias):
    draw = np.random.default_rng(4)
    w, b = draw.normal(size=(3, 4)), 3 * draw.normal(size=3) if bias else np.zeros(3)
    x = draw.normal(size=(9, 4)) * draw.uniform(0.3, 3, size=(9, 1))
    params = {"w": torch.from_numpy(w)} | ({"b": torch.from_numpy(b)} if bias else {})
    model, adapter, supports = {"vars": {"params": params, "buffers": {}}}, T3A(keep, per), Supports(w, b, keep)
    state = adapter.init(TASK, model)
    first = w @ w.T + b
    assert (list(first.argmax(1)) != list(first.argmax(0))) is bias  # the bias is that of the class that is answered
    for part in (x[:5], x[5:]):
        got, state = adapter.step(TASK, predict, model, state, torch.from_numpy(part), rng.key(0))
        expected = []
        for group in part[:, None] if per == "sample" else [part]:
            supports.join(group)
            expected += [supports.answer(z) for z in group]
        assert got.numpy() == pytest.approx(np.array(expected), rel=1e-9, abs=1e-12)


def test_a_head_whose_rows_another_class_claims():
    """Row 0 lies in class 1's half: class 0 starts without a support and answers zero until a feature joins it."""
    w, b = np.array([[1.0, 0.0], [3.0, 0.0], [0.0, 1.0]]), np.zeros(3)
    params = {"w": torch.from_numpy(w), "b": torch.from_numpy(b)}
    model, x = {"vars": {"params": params, "buffers": {}}}, torch.tensor([[-2.0, -3.0], [1.0, 1.0]]).double()
    for keep in (2, -1):
        adapter, supports = T3A(keep, "sample"), Supports(w, b, keep)
        assert [len(s) for s in supports.held] == [0, 2, 1]
        got, _ = adapter.step(TASK, predict, model, adapter.init(TASK, model), x, rng.key(0))
        for z, ours in zip(x.numpy(), got.numpy(), strict=True):
            supports.join(z[None])
            assert ours == pytest.approx(np.array(supports.answer(z)), rel=1e-9, abs=1e-12)


@pytest.mark.parametrize("keep", [2, -1])
def test_a_personal_head_that_adds_to_the_models_own_starts_the_supports_with_it(keep):
    """FedRoD answers with the sum of two heads: its rows are the first supports."""
    draw = np.random.default_rng(5)
    own, more = (tuple(torch.from_numpy(draw.normal(size=s)) for s in ((3, 4), (3,))) for _ in range(2))
    model = {
        "vars": {"params": {"w": own[0], "b": own[1]}, "buffers": {}},
        "head": {"weight": more[0], "bias": more[1]},
    }
    adapter = T3A(keep)
    whole = {"w": own[0] + more[0], "b": own[1] + more[1]}
    wanted = adapter.init(TASK, {"vars": {"params": whole, "buffers": {}}})
    got, alone = (adapter.init(TASK, m) for m in ({**model, "summed": torch.ones(())}, model))
    assert equal(got, wanted) and not equal(alone, wanted)
