"""What takes too long is ended, and the timer of pytest goes on."""

import signal
import threading

import pytest
from alarm import Hang, at_most


def test_what_hangs_is_ended_and_the_timer_before_goes_on():
    before, (left, _) = signal.getsignal(signal.SIGALRM), signal.setitimer(signal.ITIMER_REAL, 500.0)
    try:
        with pytest.raises(Hang), at_most(0.05):
            threading.Event().wait()
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 499.96 and signal.getsignal(signal.SIGALRM) is before
        with at_most(250.0):
            assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 250.0
        assert 0 < signal.getitimer(signal.ITIMER_REAL)[0] <= 499.96
    finally:
        signal.setitimer(signal.ITIMER_REAL, left)
