"""A guard counts every sample once: where a live window moves on or is frozen, and where a last batch wraps."""

from dataclasses import replace
from types import SimpleNamespace

import pytest
import torch
from test_guarded import GOOD, GUARD, KEY, SAME, B, C, live, predict

from acclimate.core import stream
from acclimate.live import session
from acclimate.ops import guarding

ONCE = replace(GUARD, forget=1.0, bonus=0.0)
"""The gain is that of flips alone, over all samples so far."""
TASK = SimpleNamespace(num_classes=C, head_weight="w", shape=(2 * C,))


def begun(guard):
    model, _ = live(guard)
    return model, session.begin(TASK, guard, model, B, torch.float32)


def asked(guard, model, state, x):
    return session.request(TASK, predict, guard, model, state, x, KEY, torch.tensor(True))


def test_between_two_commits_samples_of_the_window_are_not_counted_again():
    model, state = begun(ONCE)
    first = asked(ONCE, model, state, GOOD)
    sums, gain = first.state["adapter"]["sums"], float(first.told["gain"])
    bar = float(sums["squares"].sqrt() / sums["samples"])
    for came in (1, 3, 7):
        later = asked(ONCE, model, first.state, SAME[:came])
        assert not bool(later.committed) and set(later.state["adapter"]) == set(first.state["adapter"])
        assert float(later.told["gain"]) == pytest.approx(gain * B / (B + came))
    for errors, used in ((0.99, 1.0), (1.01, 0.0)):  # the error bar of eight samples with flips and one without
        most = errors * (gain * B - 0.001 * (B + 1)) / (bar * B)
        guard = replace(ONCE, margin=0.001, errors=most)
        assert float(asked(guard, model, first.state, SAME[:1]).told["used"]) == used
    whole = asked(ONCE, model, first.state, SAME)
    assert bool(whole.committed) and float(whole.state["adapter"]["sums"]["samples"]) == 2 * B


def test_what_came_before_is_forgotten_by_as_much_of_a_batch_as_is_new():
    guard = replace(ONCE, forget=0.5)
    model, state = begun(guard)
    first = asked(guard, model, state, GOOD)
    later, left = asked(guard, model, first.state, SAME[:4]), 0.5**0.5
    assert float(later.told["gain"]) == pytest.approx(float(first.told["gain"]) * left * B / (left * B + 4))


def test_all_of_a_frozen_models_window_counts_because_nothing_of_it_was_kept():
    model, state = begun(ONCE)
    first = session.held(state, asked(ONCE, model, state, GOOD))
    assert float(first.state["adapter"]["sums"]["samples"]) == 0 and int(first.state["fresh"]) == B
    later = session.held(first.state, asked(ONCE, model, first.state, SAME[:1]))
    three_of_seven = float(asked(ONCE, model, state, GOOD).told["gain"]) * 3 / 4  # of four flips the first is gone
    assert float(later.told["gain"]) == pytest.approx(three_of_seven) and int(later.state["fresh"]) == B + 1
    assert later.state["adapter"] is state["adapter"]


@pytest.mark.parametrize("beyond", [2, 5])
def test_what_a_last_batch_repeats_is_not_counted_again(beyond):
    model, _ = live(ONCE)
    x = torch.cat((GOOD, SAME))
    data = {"x": x, "rows": torch.arange(B + beyond), "n": torch.tensor(B + beyond)}
    gain = stream.run(TASK, predict, ONCE, model, data, stream.Protocol(batch=B), KEY, trace=True).trace["gain"]
    assert float(gain[B]) == pytest.approx(float(gain[0]) * B / (B + beyond))


def test_a_stream_that_is_shorter_than_a_batch_counts_each_sample_once():
    model, _ = live(ONCE)
    data = {"x": GOOD, "rows": torch.tensor([0, 4, 5]), "n": torch.tensor(3)}
    padded = {**data, "rows": torch.tensor([0, 4, 5, 0, 0, 0, 0, 0]), "ragged": torch.tensor(True)}
    served = stream.run(TASK, predict, ONCE, model, padded, stream.Protocol(batch=B), KEY, trace=True).trace
    whole = stream.run(TASK, predict, ONCE, model, {**data, "n": torch.tensor(3)}, stream.Protocol(batch=3), KEY, True)
    assert float(served["gain"][0]) == pytest.approx(float(whole.trace["gain"][0]))


def test_sums_of_no_new_sample_are_those_of_before():
    p, ref = torch.full((2, 3), 1 / 3), {"rare": torch.zeros(3), "confidence": torch.tensor(0.5)}
    ref |= {"prior": torch.full((3,), 1 / 3), "home": {"ratio": torch.ones(3), "level": torch.tensor(0.7)}}
    before = {name: torch.tensor(float(i + 1)) for i, name in enumerate(guarding.SUMS)}
    sums, seen = guarding.weighed(before, p, p, ref, 0.5, torch.zeros(2, dtype=torch.bool))
    assert {k: float(v) for k, v in sums.items()} == {k: float(v) for k, v in before.items()}
    nothing = dict.fromkeys(guarding.SUMS, torch.tensor(0.0))
    _, seen = guarding.weighed(nothing, p, p, ref, 0.5, torch.zeros(2, dtype=torch.bool))
    assert not any(bool(torch.isnan(v)) for v in seen.values())
