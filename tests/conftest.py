"""Shared set-up: one torch thread per test process; property tests are random by seed, never by clock."""

import os
import signal
import tempfile

os.environ["ACCLIMATE_SECRETS"] = tempfile.mkdtemp(prefix="acclimate-keys-")  # no key of a test in the home folder
os.environ.pop("COLUMNS", None)  # a window's width is none of the tests' business
os.environ["OMP_NUM_THREADS"] = "1"  # for the processes that tests start: they share two cores

import pytest
import torch
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) == signal.SIG_IGN:  # started in the background of a script: tests of Ctrl-C need it
    signal.signal(signal.SIGINT, signal.default_int_handler)
torch.set_num_threads(1)  # two busy workers on two cores; more threads only fight each other
settings.register_profile(
    "steady", deadline=None, derandomize=True, max_examples=40, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("steady")


@pytest.fixture(autouse=True)
def no_width_is_set(monkeypatch):
    """Some libraries set COLUMNS for the whole process."""
    monkeypatch.delenv("COLUMNS", raising=False)


def pytest_collection_modifyitems(items):
    """What is known to be slow is not stuck after the fifteen minutes of the others, least of all on a busy machine."""
    for item in items:
        if item.get_closest_marker("slow") and not item.get_closest_marker("timeout"):
            item.add_marker(pytest.mark.timeout(1800))
