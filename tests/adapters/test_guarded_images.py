"""The guard beside batches of images: what a corruption does to the un-adapted model shows on kept images."""

from dataclasses import dataclass
from types import SimpleNamespace

import pytest
import torch

from acclimate.adapters import Guarded
from acclimate.core import Adapter, rng
from acclimate.ops.dressing import dressed

B, SIDE = 8, 8
TASK = SimpleNamespace(num_classes=2, head_weight="w")
MODEL = {"vars": {"params": {"w": torch.zeros(())}}}
LABELS = torch.tensor([0, 1] * 4)


def images(labels, seed=0):
    """Class 1 is bright on the right, class 0 on the left, with a little noise: floats in 0..1."""
    noise = 0.02 * torch.randn(len(labels), 1, SIDE, SIDE, generator=torch.Generator().manual_seed(seed))
    right = (torch.arange(SIDE) >= SIDE // 2).float().expand(len(labels), 1, SIDE, SIDE)
    side = torch.where(labels.view(-1, 1, 1, 1) == 1, right, 1.0 - right)
    return (0.2 + 0.6 * side + noise).clamp(0.0, 1.0)


def dark(x):
    return 0.3 * x


def right_side(x):
    return x[..., SIDE // 2 :].mean((-3, -2, -1))


def predict(model, x, mode="eval", key=None):
    """The un-adapted model takes a bright right side for class 1: in the dark, everything is class 0."""
    one = 40.0 * (right_side(x) - 0.4)
    return SimpleNamespace(logits=torch.stack((-one, one), -1))


@dataclass(frozen=True)
class Relative(Adapter):
    """Compares the right side with the whole image, so that light does not matter."""

    def init(self, task, model):
        return {}

    def step(self, task, predict, model, state, x, key):
        one = 40.0 * (right_side(x) / x.mean((-3, -2, -1)).clamp_min(1e-3) - 1.0)
        return torch.stack((-one, one), -1), state


def seen(guard, x):
    kept = {"x": images(LABELS), "y": LABELS, "rows": torch.arange(B), "n": torch.tensor(B)}
    model = {**MODEL, "reference": guard.calibrate(TASK, predict, MODEL, kept)}
    logits, _, told = guard.trace(TASK, predict, model, guard.init(TASK, model), x, rng.key(0))
    return logits, {name: float(v[0]) for name, v in told.items()}


GUARD = Guarded(Relative(), kept=2 * B)
SHUFFLED = torch.tensor([1, 0, 0, 1, 1, 1, 0, 0])


def test_a_lead_that_only_the_streams_looks_show_is_found():
    x = dark(images(SHUFFLED, seed=1))
    assert predict(MODEL, x).logits.argmax(-1).tolist() == [0] * B  # the un-adapted model sees nothing in the dark
    without, lead = (seen(Guarded(Relative(), kept=2 * B, validated=v), x)[1] for v in (0.0, 1.0))
    plain = predict(MODEL, dressed(images(LABELS), x)).logits.argmax(-1)
    assert plain.tolist() == [0] * B and lead["gain"] - without["gain"] == pytest.approx(1.0 - 0.5)
    logits, told = seen(GUARD, x)
    assert told["used"] == 1 and torch.equal(logits.argmax(-1), SHUFFLED)


def test_a_stream_as_bright_as_at_home_shows_no_lead():
    x = images(SHUFFLED, seed=1)
    without, lead = (seen(Guarded(Relative(), kept=2 * B, validated=v), x)[1] for v in (0.0, 1.0))
    assert lead["gain"] == pytest.approx(without["gain"]) and lead["used"] == 0 and lead["flips"] == 0


def test_the_estimate_knows_what_the_streams_looks_do():
    frozen = Guarded(Relative(), kept=2 * B, margin=9.0)  # the un-adapted model answers
    bright, night = (seen(frozen, x)[1] for x in (images(SHUFFLED, 1), dark(images(SHUFFLED, 1))))
    assert bright["used"] == night["used"] == 0
    assert bright["estimate"] == pytest.approx(1.0, abs=0.02)
    assert night["estimate"] == pytest.approx(0.75, abs=0.15)  # all right as they are, half of them in the dark


def test_half_of_the_places_are_images_and_each_is_answered_twice():
    reference = Guarded(Relative(), kept=7).calibrate(
        TASK, predict, MODEL, {"x": images(LABELS), "y": LABELS, "rows": torch.arange(B), "n": torch.tensor(3)}
    )
    assert set(reference) == {"x", "y", "real", "prior"} and len(reference["x"]) == 4
    assert reference["real"].tolist() == [True, True, True, False]
