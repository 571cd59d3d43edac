"""How often functions are measured, with a device that tells what it is told."""

import pytest
import torch

from acclimate.core.nn import timing


@pytest.fixture
def device(monkeypatch):
    """Every measurement takes what comes next of these milliseconds, for all runs of it."""
    took = []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return took.pop(0) * timing.REPEATS

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", lambda clocks: None)
    return took


@pytest.mark.parametrize(("beaten", "left", "found"), [(float("inf"), 0, 2.0), (2.1, 0, 2.0), (1.9, 2, 3.0)])
def test_what_is_clearly_slower_than_another_is_measured_once(device, beaten, left, found):
    """3.0 is more than 1.5 times 1.9, but not 2.1."""
    device.extend((3.0, 2.0, 2.5))
    assert timing.milliseconds(lambda: None, beaten) == found and len(device) == left


@pytest.mark.parametrize(("times", "left", "found"), [((2.0, 2.01, 1.9), 1, 2.0), ((2.0, 2.1, 1.9), 0, 1.9)])
def test_two_measurements_that_are_alike_are_enough(device, times, left, found):
    """To one part in a hundred; choices forgive three."""
    device.extend(times)
    assert timing.milliseconds(lambda: None) == found and len(device) == left
