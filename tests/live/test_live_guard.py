"""What a guarded live model says of itself while it cannot judge yet, and what comes back with a step."""

import pytest
import torch
from test_live import deployed, stream

import acclimate as ac
from acclimate.core import tree

A = ac.adapters


def test_a_guard_says_nothing_of_a_window_with_empty_places():
    live = deployed("tent", guard=True, window=8)
    filling = [live(x) for x in stream(8).split(1)]
    assert [bool(a.guard) for a in filling] == [False] * 7 + [True]
    assert [a.estimate is None for a in filling] == [True] * 7 + [False]
    assert filling[0].note == "the window fills: 1 of 8 samples"
    whole = deployed("tent", guard=True, window=8)(stream(8))
    assert filling[-1].estimate == pytest.approx(whole.estimate, abs=1e-5)
    live.reset()
    assert live(stream(7)).estimate is None and live(stream(1)).estimate is not None


def test_a_guard_says_nothing_of_an_adapter_that_waits_for_samples():
    live = deployed("em", guard=True, window=8)
    assert (live(stream(16)).guard, live(stream(16)).estimate) == ({}, None)
    live.prepare(stream(40))
    assert live(stream(8)).guard and live(stream(8)).estimate is not None


def test_a_guarded_adapter_is_as_unprepared_as_it_was_when_a_step_comes_back():
    live = deployed("em", guard=True)
    assert any(bool(torch.isnan(v).any()) for v in live.state["rule"].values())  # which no state is equal to
    live.reset()
    live.prepare(stream(40))
    live.restore(1)
    assert not live.prepared and live(stream(3)).note.startswith("Guarded waits for 32 samples")
    live.restore(2)
    assert live.prepared


@pytest.mark.parametrize("name", ["mbsl", "em"])
def test_predictions_of_an_adapter_that_waits_are_the_unadapted_models(name):
    live, x = deployed(name), stream(12)
    plain = live.worker.predict()(live.model, x).logits
    assert live(x).note.endswith("waits for 32 samples in one request, or for prepare(x)")
    torch.testing.assert_close(live.predict(x), plain)
    live.prepare(stream(40))
    assert not torch.equal(live.predict(x), plain)


def test_predictions_that_are_no_numbers_are_the_unadapted_models():
    live, x = deployed("tent", window=8), stream(12)
    live(stream(8))
    params = dict.fromkeys(live.state["params"], torch.tensor(torch.nan))
    broken = tree.map(lambda nan, v: v * nan, params, live.state["params"])
    live.session = {**live.session, "adapter": {**live.state, "params": broken}}
    torch.testing.assert_close(live.predict(x), live.worker.predict()(live.model, x).logits)


def test_an_adapter_that_prepares_on_nothing_keeps_what_it_learned():
    live = deployed("tent", window=8)
    live(stream(8))
    before = live.session
    with pytest.raises(ValueError, match="prepare: Tent wants no samples before its first answer"):
        live.prepare(stream(40))
    assert live.session is before and live.step == 1
