"""How often functions are measured, with a device that tells what it is told."""

from types import SimpleNamespace

import pytest
import torch

from acclimate.core.nn import timing


class Took(list):
    needed = 0


@pytest.fixture
def device(monkeypatch):
    """Every measurement takes what comes next of these milliseconds, for all runs of it. The host needs so many clocks
    to fill the queue, and the device tells how long it slept."""
    took, slept = Took(), []

    class Event:
        def __init__(self, enable_timing):
            assert enable_timing

        def record(self):
            pass

        def query(self):
            return slept[-1] < took.needed

        def synchronize(self):
            pass

        def elapsed_time(self, end):
            return took.pop(0) * timing.REPEATS

    monkeypatch.setattr(torch.cuda, "Event", Event)
    monkeypatch.setattr(torch.cuda, "_sleep", slept.append)
    took.slept = slept
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


def test_what_ran_before_all_of_it_was_in_the_queue_is_measured_again_after_a_longer_sleep(device, monkeypatch):
    """Then the device waited for the host, and its time was the host's. The next measurement sleeps as long at once."""
    monkeypatch.setattr(timing, "CLOCK", 0.0)  # a host that is not slow: as long as it sleeps at least
    device.needed = 3 * timing.SLEEP
    device.extend((2.0, 2.5, 2.2))  # those that came too early are not looked at
    assert timing.milliseconds(lambda: None) == 2.0 and not device
    assert [clocks // timing.SLEEP for clocks in device.slept] == [1, 2, 4, 4, 4]


def test_a_host_that_never_fills_the_queue_in_time_ends_with_what_there_is(device, monkeypatch):
    monkeypatch.setattr(timing, "PASSES", 1)
    device.needed = float("inf")
    device.append(2.0)
    assert timing.milliseconds(lambda: None) == 2.0 and len(device.slept) == timing.AGAIN + 1


def test_a_function_runs_as_often_as_its_time_needs(device):
    """Once to be there, twice to see how long the host takes, and four times for each of two measurements."""
    ran = []
    device.extend((2.0, 2.0))
    assert timing.milliseconds(lambda: ran.append(1)) == 2.0 and len(ran) == 11


def test_the_device_sleeps_twice_as_long_as_the_host_needs_for_all_runs(device, monkeypatch):
    clock = iter((10.0, 10.5))  # half a second for two runs, a whole one for four
    monkeypatch.setattr(timing, "time", SimpleNamespace(perf_counter=lambda: next(clock)))
    device.extend((2.0, 2.0))
    timing.milliseconds(lambda: None)
    assert device.slept == [2 * timing.CLOCK] * 2
